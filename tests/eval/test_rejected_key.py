"""A key rejected half way: the run ends, nothing is lost, and nothing is counted as 0."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from osmosis_ai.cli.main import main
from osmosis_ai.eval.record import Record
from osmosis_ai.eval.run_folder import find_run
from osmosis_ai.testing import HttpReply, ScriptedModel
from tests.eval.demo import CONFIG, make_demo

Capture = pytest.CaptureFixture[str]
Go: TypeAlias = Callable[..., tuple[int, dict[str, Any], str]]
CONFIG_PATH = "configs/eval/demo.toml"
REJECTED = HttpReply(401, {"error": {"message": "this key has been revoked"}})
ROWS, GOOD, IN_FLIGHT = 24, 9, 4


@dataclass
class Policy:
    """Repeats the question, until its key is revoked."""

    good: float
    calls: int = 0
    questions: Counter[str] = field(default_factory=Counter)

    def __call__(self, request: dict[str, Any], call: Any) -> Any:
        self.calls += 1
        if self.calls > self.good:
            return REJECTED
        question = request["messages"][-1]["content"]
        self.questions[question] += 1
        return question


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    make_demo(tmp_path, *(f"question {index}" for index in range(ROWS)))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def policy(workspace: Path) -> Iterator[Policy]:
    policy = Policy(good=GOOD)
    with ScriptedModel(policy) as model:
        config = CONFIG.replace("scripted:policy:reply", "real-name")
        table = f'[model]\nbase_url = "{model.base_url}"\nmax_retries = 0\n'
        (workspace / CONFIG_PATH).write_text(config + table)
        yield policy


@pytest.fixture
def go(capsys: Capture) -> Go:
    def run(*flags: str) -> tuple[int, dict[str, Any], str]:
        in_flight = ("--max-in-flight", str(IN_FLIGHT))
        code = main(["eval", "run", CONFIG_PATH, "--json", *in_flight, *flags])
        captured = capsys.readouterr()
        return code, json.loads(captured.out or "{}"), captured.err

    return run


def records(workspace: Path) -> list[Record]:
    return list(find_run("demo", evals_dir=workspace / ".osmosis/evals").records())


def test_a_key_rejected_half_way_ends_the_run_and_loses_nothing(
    workspace: Path, policy: Policy, go: Go
) -> None:
    code, document, err = go()
    assert (code, document["status"]) == (1, "partial")
    error = json.loads(err.splitlines()[-1])["error"]
    assert error["code"] == "AUTH_REQUIRED"
    assert "this key has been revoked\nIt rejects the key" in error["message"]
    assert "The same command goes on with the other" in document["message"]
    outcomes = Counter(record.outcome.value for record in records(workspace))
    # One call was the question before the first rollout.
    assert outcomes["scored"] == GOOD - 1
    assert 1 <= outcomes["no_result"] <= 2 * IN_FLIGHT
    assert outcomes.total() < ROWS
    hit = [record for record in records(workspace) if record.outcome == "no_result"]
    assert {record.reward for record in hit} == {None}
    assert all("answered 401: this key" in str(record.error_message) for record in hit)
    assert document["resource"]["summary"]["mean"]["value"] == 1.0

    policy.good = float("inf")
    code, document, _ = go("--retry-no-result")
    summary = document["resource"]["summary"]
    assert (code, summary["mean"]["over"], summary["mean"]["value"]) == (0, ROWS, 1.0)
    rollouts = [name for name in policy.questions if name.startswith("question")]
    assert (len(rollouts), {policy.questions[name] for name in rollouts}) == (ROWS, {1})


def test_a_key_rejected_at_once_runs_nothing(workspace: Path, policy: Policy, go: Go) -> None:
    policy.good = 0
    code, document, err = go()
    assert (code, document, policy.calls) == (1, {}, 1)
    assert "It rejects the key" in json.loads(err.splitlines()[-1])["error"]["message"]
    assert not (workspace / ".osmosis/evals/demo/run.json").exists()


def test_without_the_first_question_the_first_rollouts_end_the_run(
    workspace: Path, policy: Policy, go: Go
) -> None:
    policy.good = 0
    code, document, err = go("--no-probe")
    assert code == 1
    assert document["resource"]["summary"]["mean"]["value"] is None
    assert "the model rejects the key: " in json.loads(err.splitlines()[-1])["error"]["message"]
    assert policy.calls <= 2 * IN_FLIGHT


def test_a_run_whose_last_rollouts_were_rejected_has_not_succeeded(
    workspace: Path, policy: Policy, go: Go
) -> None:
    """Nothing is pending, and yet the numbers are not what was asked for."""
    code, document, _ = go("--rows", f"0-{GOOD - 1}")
    assert (code, document["status"]) == (1, "partial")
    assert document["resource"]["summary"]["pending"] == 0


def test_the_end_of_the_run_says_how_to_go_on(
    workspace: Path, policy: Policy, capsys: Capture
) -> None:
    assert main(["eval", "run", CONFIG_PATH, "--plain", "--max-in-flight", "1"]) == 1
    captured = capsys.readouterr()
    assert "8 scored of 24 rollouts" in captured.out
    assert (
        "9 of 24 rollouts are done, 1 of them without a result. "
        "The same command goes on with the other 15."
    ) in captured.out
    assert "--max-in-flight 1 --retry-no-result\n" in captured.out
    assert captured.err.splitlines()[-2:] == [
        "Error: model 'real-name': the model endpoint answered 401: this key has been revoked",
        "It rejects the key: look at `[model] api_key_env` and the variable it names.",
    ]
