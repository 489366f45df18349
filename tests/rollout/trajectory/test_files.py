"""The archive's files: how they look, how they are replaced, and what a link can do."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.rollout.context import RolloutContext
from osmosis_ai.rollout.trajectory import save_trajectory, snapshot_messages
from osmosis_ai.rollout.types import ExecutionResult, RolloutSample, RolloutStatus

MESSAGES = [{"role": "user", "content": "2 + 2"}, {"role": "assistant", "content": "4"}]


def result(sample: RolloutSample | None = None, **fields: Any) -> ExecutionResult:
    sample = sample or RolloutSample(messages=MESSAGES, **fields)
    return ExecutionResult(status=RolloutStatus.SUCCESS, sample=sample)


async def save(root: Path, **fields: Any) -> Any:
    """Save one trajectory, and read what was written; None where there is no file."""
    await save_trajectory(
        **{"rollout_id": "r", "result": result(), "artifact_root": root, **fields}
    )
    text = text_of(root / "r" / "trajectory.json")
    return None if text is None else json.loads(text)


def text_of(path: Path) -> str | None:
    return path.read_text() if path.exists() else None


async def test_a_trajectory_is_a_file_beside_the_artifacts(tmp_path: Path) -> None:
    os.makedirs(tmp_path / "r" / "artifacts")
    assert await save(tmp_path) is not None
    assert sorted(os.listdir(tmp_path / "r")) == ["artifacts", "trajectory.json"]


async def test_the_folder_is_made_where_the_backend_made_none(tmp_path: Path) -> None:
    assert await save(tmp_path / "root") is not None


async def test_without_a_root_it_is_the_one_of_the_rollout(tmp_path: Path) -> None:
    with RolloutContext(artifact_root=tmp_path):
        await save_trajectory(rollout_id="r", result=result())
    assert text_of(tmp_path / "r" / "trajectory.json")


async def test_arrays_of_numbers_alone_stand_on_one_line(tmp_path: Path) -> None:
    metadata = {
        "ids": [1, -2, 3.5],
        "nested": [[1], [2, 3]],
        "mixed": [1, "a"],
        "none": [],
        "text": "[\n  1,\n  2\n]",
    }
    document = await save(tmp_path, request_metadata=metadata)
    assert document["extra"]["osmosis"]["request_metadata"] == metadata
    text = text_of(tmp_path / "r" / "trajectory.json")
    assert text is not None
    assert text.startswith('{\n  "schema_version": "ATIF-v1.7",\n')
    assert '"ids": [1, -2, 3.5],' in text
    assert '"nested": [\n          [1],\n          [2, 3]\n        ],' in text
    assert '"mixed": [\n          1,\n          "a"\n        ],' in text


async def test_a_later_trajectory_replaces_the_file(tmp_path: Path) -> None:
    await save(tmp_path, result=result(reward=0.0))
    document = await save(tmp_path, result=result(reward=1.0))
    assert document["extra"]["osmosis"]["reward"] == 1.0


async def test_a_link_in_place_of_the_temporary_file_is_not_followed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A workflow writes below this folder, and must not write elsewhere through us."""
    os.mkdir(tmp_path / "r")
    os.symlink(tmp_path / "outside", tmp_path / "r" / ".trajectory.json.tmp")
    assert await save(tmp_path) is None
    assert text_of(tmp_path / "outside") is None
    assert "rollout r: its trajectory is not saved" in caplog.text


async def test_a_file_that_cannot_be_replaced_leaves_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    os.makedirs(tmp_path / "r" / "trajectory.json")
    await save_trajectory(rollout_id="r", result=result(), artifact_root=tmp_path)
    assert os.listdir(tmp_path / "r") == ["trajectory.json"]
    assert "its trajectory is not saved" in caplog.text


async def test_what_did_not_have_to_change_is_not_marked(tmp_path: Path) -> None:
    document = await save(tmp_path, request_metadata={"none": None})
    assert "made_safe" not in document["extra"]["osmosis"]


def nested(levels: int) -> RolloutSample:
    arguments: Any = 1
    for _ in range(levels):
        arguments = {"a": arguments}
    call = {"id": "c", "function": {"name": "f", "arguments": arguments}}
    return RolloutSample(messages=[{"role": "user", "content": "x", "tool_calls": [call]}])


async def test_a_conversation_too_deep_for_the_document_is_cut(tmp_path: Path) -> None:
    """What the encoder just takes lies deeper in the document, where it does not."""

    def is_taken(levels: int) -> bool:
        snapshot = snapshot_messages(nested(levels))
        return snapshot is not None and snapshot.changes == ()

    deepest = max(filter(is_taken, range(100, 300)))
    document = await save(tmp_path, result=result(nested(deepest)))
    assert "nested deeper" in " ".join(document["extra"]["osmosis"]["made_safe"])


async def test_diagnostics_are_sorted_and_made_safe(tmp_path: Path) -> None:
    await save(tmp_path, diagnostics={"b": 1, "a": {"d": object(), "c": Path("x")}})
    text = text_of(tmp_path / "r" / "diagnostics.json")
    assert text is not None
    read = json.loads(text)
    assert list(read) == ["a", "b", "made_safe"]
    assert read["a"] == {"c": "x", "d": "<object>"}
    assert text.startswith('{\n  "a": {\n    "c"')


async def test_diagnostics_are_written_without_a_sample(tmp_path: Path) -> None:
    outcome = ExecutionResult(status=RolloutStatus.FAILURE)
    assert await save(tmp_path, result=outcome, diagnostics={"a": 1}) is None
    assert text_of(tmp_path / "r" / "diagnostics.json") == '{\n  "a": 1\n}'
