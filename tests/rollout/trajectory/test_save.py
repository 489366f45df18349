"""What an archived rollout says, and what cannot stop it from being archived."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from osmosis_ai.rollout.trajectory.save import save_trajectory, snapshot_messages
from osmosis_ai.rollout.types import ExecutionResult, RolloutSample, RolloutStatus
from tests.rollout.trajectory.corpus import ANSWER, ASK


def result_of(sample: RolloutSample | None) -> ExecutionResult:
    return ExecutionResult(status=RolloutStatus.SUCCESS, sample=sample)


async def test_the_snapshot_is_archived_whatever_a_grader_does_later(tmp_path: Path) -> None:
    sample = RolloutSample(messages=[{"role": "assistant", "content": "before"}])
    snapshot = snapshot_messages(sample)
    sample.messages[0]["content"] = "after"  # type: ignore[index]  # what a grader may do
    await save_trajectory(
        rollout_id="r1", result=result_of(sample), artifact_root=tmp_path, messages=snapshot
    )
    document = json.loads((tmp_path / "r1" / "trajectory.json").read_text())
    assert document["steps"][0]["message"] == "before"


@pytest.mark.parametrize("sample", [None, RolloutSample(messages=ASK, trajectory_messages=None)])
async def test_nothing_is_written_where_nothing_is_to_be_archived(
    tmp_path: Path, sample: RolloutSample | None
) -> None:
    await save_trajectory(rollout_id="r1", result=result_of(sample), artifact_root=tmp_path)
    assert not (tmp_path / "r1").exists()


async def test_a_folder_in_the_files_place_is_no_reason_to_fail(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "r1" / "trajectory.json").mkdir(parents=True)
    assert (await archive_quietly(tmp_path)) == ["trajectory.json"]
    assert "r1" in caplog.text


async def archive_quietly(root: Path) -> list[str]:
    await save_trajectory(
        rollout_id="r1", result=result_of(RolloutSample(messages=ANSWER)), artifact_root=root
    )
    return sorted(path.name for path in (root / "r1").iterdir())


async def test_a_link_in_the_files_place_is_replaced_and_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("mine")
    (tmp_path / "r1").mkdir()
    (tmp_path / "r1" / "trajectory.json").symlink_to(elsewhere)
    assert await archive_quietly(tmp_path) == ["trajectory.json"]
    assert elsewhere.read_text() == "mine"
    assert not (tmp_path / "r1" / "trajectory.json").is_symlink()


@pytest.mark.parametrize("rollout_id", ["../out", "a/b", "", ".."])
async def test_an_id_cannot_leave_its_directory(
    tmp_path: Path, rollout_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    await save_trajectory(
        rollout_id=rollout_id,
        result=result_of(RolloutSample(messages=ANSWER)),
        artifact_root=root,
    )
    assert "path segment" in caplog.text
    assert names_below(tmp_path) == ["root"]


def names_below(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*"))
