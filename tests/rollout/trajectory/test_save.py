"""What an archived rollout says, and what cannot stop it from being archived."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.rollout.trajectory.report import TrajectoryReport
from osmosis_ai.rollout.trajectory.save import add_report, save_trajectory, snapshot_messages
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


def report(*prompt_tokens: int, model_name: str | None = None) -> TrajectoryReport:
    calls = [{"prompt_tokens": tokens} for tokens in prompt_tokens]
    return TrajectoryReport.model_validate(
        {"model_name": model_name, "samples": {"s": {"llm_call_metrics": calls}}}
    )


async def archive(root: Path, **given: Any) -> None:
    sample = RolloutSample(messages=[*ASK, {"role": "assistant", "content": "\ud800"}], reward=1.0)
    await save_trajectory(rollout_id="r1", result=result_of(sample), artifact_root=root, **given)


def read(root: Path) -> Any:
    return json.loads((root / "r1" / "trajectory.json").read_text())


@pytest.mark.parametrize(
    "late", [report(7), report(7, 8, 9), report(model_name="m"), TrajectoryReport()]
)
@pytest.mark.parametrize("early", [None, report(1), report(1, 2)])
async def test_a_late_report_leaves_what_an_early_one_would_have_left(
    tmp_path: Path, early: TrajectoryReport | None, late: TrajectoryReport
) -> None:
    """The latest wins, but what an earlier one said of a step and the latest does not say stays."""
    await archive(tmp_path / "late", report=early)
    add_report("r1", late, artifact_root=tmp_path / "late")
    await archive(tmp_path / "early", report=late)
    late_one, early_one = read(tmp_path / "late"), read(tmp_path / "early")
    assert late_one["extra"] == early_one["extra"]
    assert late_one["agent"] == early_one["agent"]
    if early is None:
        assert late_one == early_one
    assert "made_safe" in late_one["extra"]["osmosis"]


def test_a_late_report_on_nothing_is_no_news(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    add_report("r1", report(7), artifact_root=tmp_path)
    assert "no trajectory for the controller's report" in caplog.text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("left", ["", "[]", "{}", '{"steps": 7, "extra": {"osmosis": {}}}'])
def test_a_late_report_on_what_is_no_trajectory_is_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, left: str
) -> None:
    file = tmp_path / "r1" / "trajectory.json"
    file.parent.mkdir()
    file.write_text(left)
    add_report("r1", report(7), artifact_root=tmp_path)
    assert "the late report is not saved" in caplog.text
    assert file.read_text() == left


async def test_a_late_report_does_not_follow_a_link(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await archive(tmp_path / "elsewhere")
    file = tmp_path / "r1" / "trajectory.json"
    file.parent.mkdir()
    file.symlink_to(tmp_path / "elsewhere" / "r1" / "trajectory.json")
    add_report("r1", report(7), artifact_root=tmp_path)
    assert file.is_symlink()
    assert "metrics" not in read(tmp_path / "elsewhere")["steps"][-1]
    assert "the late report is not saved" in caplog.text
