"""A Node program becomes a rollout by being given a base URL."""

from __future__ import annotations

import json
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from osmosis_ai.rollout import ExecutionRequest, LocalBackend, RolloutContext
from osmosis_ai.testing import HttpReply, ScriptedModel

EXAMPLE = Path(__file__).parents[2] / "examples/subprocess-agent"

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="Node is not installed")


def test_its_conversations_are_scored(tmp_path: Path) -> None:
    skip = shutil.ignore_patterns(".osmosis", "__pycache__")
    workspace = shutil.copytree(EXAMPLE, tmp_path / "subprocess-agent", ignore=skip)
    done = subprocess.run(
        [
            Path(sys.executable).with_name("osmosis"),
            *("eval", "run", "configs/eval/count-words.toml", "--name", "one"),
        ],
        cwd=workspace,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    run = workspace / ".osmosis/evals/one"
    records = [json.loads(line) for line in (run / "records.jsonl").read_text().splitlines()]
    rewards = {record["row"]: record["reward"] for record in records}
    assert [rewards[row] for row in range(7)] == [1.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0]
    rollout_id = next(record["rollout_id"] for record in records if record["row"] == 0)
    sample = json.loads((run / "rollouts" / rollout_id / "sample.json").read_text())["sample"]
    assert [m["role"] for m in sample["messages"]] == ["user", "assistant", "tool", "assistant"]
    assert sample["extra_fields"]["endpoint"]["verdict"] == "clean"


def load_backend() -> LocalBackend:
    backend = runpy.run_path(str(EXAMPLE / "rollouts/count-words/main.py"))["backend"]
    assert isinstance(backend, LocalBackend)
    return backend


async def test_what_the_program_says_of_its_failure_is_the_rollouts() -> None:
    request = ExecutionRequest(id="r1", prompt=[{"role": "user", "content": "count"}])
    with (
        ScriptedModel(HttpReply(400, {"error": {"message": "too long"}})) as model,
        RolloutContext(model.base_url, rollout_id="r1"),
    ):
        result = await load_backend().run_workflow(request)
    assert "the agent failed: the model answered 400" in str(result.err_message)
    assert "too long" in str(result.err_message)
