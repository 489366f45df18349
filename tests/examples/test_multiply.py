"""The multiply example measures the same in any order, and takes any model as it is."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.testing import LoggedCall, ScriptedModel, call_tool

EXAMPLE = Path(__file__).parents[2] / "examples/multiply"
CONFIG = "configs/eval/multiply.toml"


def copy_example(target: Path) -> Path:
    """A copy of the example, without what was run in it."""
    skip = shutil.ignore_patterns(".osmosis", "__pycache__")
    return shutil.copytree(EXAMPLE, target, ignore=skip)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    return copy_example(tmp_path / "multiply")


@pytest.fixture(scope="module")
def one_by_one(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The records of the evaluation as it is printed, with one rollout at a time."""
    workspace = copy_example(tmp_path_factory.mktemp("one-by-one") / "multiply")
    return evaluate(workspace, "one", "--max-in-flight", "1")


def evaluate(workspace: Path, name: str, *flags: str) -> list[dict[str, Any]]:
    """Run the evaluation with the command line; its records in the order of their items."""
    osmosis = Path(sys.executable).with_name("osmosis")
    done = subprocess.run(
        [osmosis, "eval", "run", CONFIG, "--name", name, *flags],
        cwd=workspace,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    with (workspace / f".osmosis/evals/{name}/records.jsonl").open(encoding="utf-8") as lines:
        records = [json.loads(line) for line in lines]
    return sorted(records, key=lambda record: (record["item"], record["attempt"]))


def measured(records: list[dict[str, Any]], *, left_out: frozenset[str] = frozenset()) -> list[Any]:
    """What the records say, without names and times."""
    times = frozenset(key for record in records for key in record if key.endswith("_sec"))
    skip = left_out | times | {"rollout_id"}
    return [{key: value for key, value in r.items() if key not in skip} for r in records]


def test_the_order_of_rollouts_changes_no_record(one_by_one: list[dict[str, Any]], workspace: Path):
    many = evaluate(workspace, "many", "--max-in-flight", "64")
    assert measured(many) == measured(one_by_one)

    rows = (workspace / "data/multiply.jsonl").read_text(encoding="utf-8").splitlines()
    (workspace / "data/multiply.jsonl").write_text("\n".join(reversed(rows)), encoding="utf-8")
    backwards = evaluate(workspace, "backwards")
    row = frozenset({"row"})
    assert [record["row"] for record in backwards] != [record["row"] for record in one_by_one]
    assert measured(backwards, left_out=row) == measured(one_by_one, left_out=row)


def test_the_policy_is_sometimes_wrong_and_not_always_on_the_same_attempts(
    one_by_one: list[dict[str, Any]],
):
    """An example in which all is right or all is wrong would show nothing."""
    assert len(one_by_one) == 800
    assert {record["outcome"] for record in one_by_one} == {"scored"}
    by_row: dict[int, set[float]] = {}
    for record in one_by_one:
        by_row.setdefault(record["row"], set()).add(record["reward"])
    passed = sum(record["reward"] == 1.0 for record in one_by_one)
    assert 0.6 < passed / len(one_by_one) < 0.9
    assert sum(rewards == {0.0, 1.0} for rewards in by_row.values()) > 50
    assert {record["calls"] for record in one_by_one} == {1, 2, 3}


def test_a_real_endpoint_takes_a_change_of_the_model_and_nothing_else(workspace: Path):
    config = workspace / CONFIG
    text = config.read_text(encoding="utf-8").replace("scripted:policy:reply", "my-model")
    with ScriptedModel(multiply_with_tool) as model:
        config.write_text(f'{text}\n[model]\nbase_url = "{model.base_url}"\n', encoding="utf-8")
        records = evaluate(workspace, "real", "--limit", "10", "--no-probe")
    assert [record["reward"] for record in records] == [1.0] * 40
    assert {call.request["model"] for call in model.calls} == {"my-model"}
    assert len(model.calls) == 80


def multiply_with_tool(request: dict[str, Any], _call: LoggedCall) -> Any:
    """A model that always calls the tool, and says what the tool said."""
    user, last = request["messages"][1], request["messages"][-1]
    if last["role"] == "tool":
        return f"#### {last['content']}"
    val1, val2 = re.findall(r"= (-?\d+)", user["content"])
    return call_tool("multiply", val1=int(val1), val2=int(val2))


def test_the_rows_are_what_the_script_beside_them_writes(workspace: Path):
    before = (workspace / "data/multiply.jsonl").read_bytes()
    (workspace / "data/multiply.jsonl").unlink()
    subprocess.run([sys.executable, "data/make_multiply.py"], cwd=workspace, check=True)
    assert (workspace / "data/multiply.jsonl").read_bytes() == before
    assert before.count(b"\n") >= 200


def test_a_tool_call_that_makes_no_sense_is_answered(workspace: Path):
    """A model's slip is for the model to mend; it must not end the rollout."""
    config = workspace / CONFIG
    text = config.read_text(encoding="utf-8").replace("scripted:policy:reply", "clumsy")
    script = [call_tool("multiply", val1="many"), "I give up."]
    with ScriptedModel(script) as model:
        config.write_text(f'{text}\n[model]\nbase_url = "{model.base_url}"\n', encoding="utf-8")
        flags = ["--rows", "7", "--max-in-flight", "1", "--no-probe"]
        config.write_text(config.read_text(encoding="utf-8").replace("n = 4", "n = 1"), "utf-8")
        records = evaluate(workspace, "clumsy", *flags)
    assert [record["reward"] for record in records] == [0.0]
    assert (
        "error: call multiply with the numbers" in model.calls[1].request["messages"][-1]["content"]
    )
