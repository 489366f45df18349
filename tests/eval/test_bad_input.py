"""What models, rows and disks do wrong, end to end: nothing is lost, and nothing counts as 0."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.cli.main import main
from osmosis_ai.errors import RunError
from osmosis_ai.eval.config import EvalConfig, load_config
from osmosis_ai.eval.evaluation import RunOptions, evaluate
from osmosis_ai.eval.outcome import Outcome
from osmosis_ai.eval.record import Record
from osmosis_ai.eval.run_folder import Run, find_run
from osmosis_ai.testing import HangUp, HttpReply, ScriptedModel, StreamReply
from tests.eval.demo import CONFIG, make_demo

MAIN = """
import asyncio
import json
import urllib.request

from osmosis_ai.rollout import AgentWorkflow, Grader, LocalBackend, get_rollout_context
from osmosis_ai.rollout.server import create_rollout_server


def call_model(context, messages, stream):
    body = {"model": "m", "messages": messages, "stream": stream}
    request = urllib.request.Request(
        context.chat_completions_url + "/chat/completions",
        data=json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {context.api_key}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        return read_stream(response) if stream else json.load(response)["choices"][0]["message"]


def read_stream(response):
    content = ""
    for line in response:
        if line.startswith(b"data: {"):
            event = json.loads(line[6:])
            if "error" in event:
                raise RuntimeError(event["error"]["message"])
            content += "".join(one["delta"].get("content") or "" for one in event["choices"])
    return {"role": "assistant", "content": content}


class Workflow(AgentWorkflow):
    async def run(self, ctx):
        context, stream = get_rollout_context(), "stream" in ctx.prompt[-1]["content"][:100]
        message = await asyncio.to_thread(call_model, context, ctx.prompt, stream)
        return [*ctx.prompt, message]


class IsThere(Grader):
    async def grade(self, ctx):
        ctx.set_reward(float(bool(ctx.sample.messages[-1])))


backend = LocalBackend(workflow=Workflow, grader=IsThere)
app = create_rollout_server(backend=backend)
"""

HTML = "<html><body><h1>Bad gateway</h1></body></html>"
BIG = "x" * 20_000_000
STRANGE_CALLS: list[Any] = [
    {"id": None, "function": "not an object"},
    {"id": 3, "type": "function", "function": {"name": None, "arguments": "{torn"}},
    {"function": {"name": "f", "arguments": {"a": [1]}}},
    "text",
]


def answering(message: Any, **fields: Any) -> HttpReply:
    body = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], **fields}
    return HttpReply(200, json.dumps(body), {"Content-Type": "application/json"})


SURROGATE_EVENT = b'data: {"choices": [{"index": 0, "delta": {"content": "\\ud800"}}]}\n\n'

GOOD: dict[str, Any] = {
    "plain": "an answer",
    "equal": "an answer",
    "lone \ud800 surrogate": answering({"role": "assistant", "content": "lone \udfff"}),
    "not a number": answering(
        {"role": "assistant", "content": "x"}, usage={"total_tokens": float("nan")}
    ),
    "tool calls": answering({"role": "assistant", "content": None, "tool_calls": STRANGE_CALLS}),
    "no role": answering({"content": "x"}),
    "stream of surrogates": StreamReply([SURROGATE_EVENT]),
    "stream from whole": answering({"role": "assistant", "content": "lone \ud800"}),
    "stream from tool calls": answering({"role": "assistant", "tool_calls": STRANGE_CALLS}),
    "stream from no calls": answering({"role": "assistant", "content": "x", "tool_calls": "none"}),
    BIG: "an answer",
}
"""Each of them is graded."""

BAD: dict[str, tuple[Any, str]] = {
    "empty choices": ({"choices": []}, "answered without choices"),
    "null choices": (HttpReply(200, {"choices": None}), "answered without choices"),
    "message of text": (HttpReply(200, {"choices": [{"message": "x"}]}), "without a message"),
    "choice of nothing": (HttpReply(200, {"choices": [{}]}), "a choice without a message"),
    "page": (HttpReply(200, HTML), "not a JSON object: '<html><body><h1>Bad gateway"),
    "error page": (HttpReply(502, HTML), "answered 502: '<html><body><h1>Bad gateway"),
    "torn body": (HttpReply(200, '{"choices": [{"mess'), "not a JSON object"),
    "nothing": (HttpReply(200, b""), "not a JSON object"),
    "hang up": (HangUp(), "gave no answer"),
    "half an answer": (HangUp(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"), "gave no answer"),
    "torn stream": (StreamReply(["half of"], end="cut"), ""),
    "short stream": (StreamReply(["half of"], end="short"), ""),
    "stream that is an error": (HttpReply(500, HTML), "answered 500"),
    "stream of nothing": (StreamReply([], end="short"), "ended before it began"),
}
"""Each of them has no result, for this reason."""


def reply(request: dict[str, Any], call: Any) -> Any:
    # On the wire to a server a lone surrogate cannot stay what it was.
    question = request["messages"][-1]["content"].replace("\ufffd", "\ud800")
    return GOOD[question] if question in GOOD else BAD[question][0]


@pytest.fixture
def model() -> Iterator[ScriptedModel]:
    with ScriptedModel(reply) as serving:
        yield serving


def make_workspace(root: Path, model: ScriptedModel, questions: list[str]) -> EvalConfig:
    path = make_demo(root)
    (root / "rollouts/demo/main.py").write_text(MAIN)
    rows = [{"user_prompt": question, "ground_truth": "x"} for question in questions]
    (root / "data/demo.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = CONFIG.replace("scripted:policy:reply", "real-name")
    options = f'[model]\nbase_url = "{model.base_url}"\nmax_retries = 0\nprobe = false\n'
    path.write_text(config + options)
    return load_config(path)


def run_of(root: Path) -> tuple[Run, dict[int, Record]]:
    run = find_run("demo", evals_dir=root / ".osmosis/evals")
    return run, {record.row: record for record in run.records()}


@pytest.mark.parametrize("driver", ["in-process", "process"])
async def test_what_a_model_does_wrong_costs_its_own_rollout_and_is_never_0(
    tmp_path: Path, model: ScriptedModel, driver: str
) -> None:
    questions = [*GOOD, "equal", *BAD]
    config = make_workspace(tmp_path, model, questions)
    result = await evaluate(config, options=RunOptions(driver=driver, max_in_flight=4))
    assert result.halted_by is None
    run, records = run_of(tmp_path)
    found = {questions[row][:40]: record for row, record in records.items()}
    outcomes = {
        name: (record.outcome.value, record.error_message) for name, record in found.items()
    }
    for name in GOOD:
        assert outcomes[name[:40]] == ("scored", None), name[:40]
    for name, (_, reason) in BAD.items():
        outcome, message = outcomes[name]
        assert outcome == Outcome.NO_RESULT, (name, message)
        assert reason in str(message)
    assert {record.reward for record in records.values()} == {1.0, None}
    summary = result.summary
    assert (summary.mean.value, summary.mean.over) == (1.0, len(GOOD) + 1)
    assert (summary.finished, summary.pending) == (len(questions), 0)
    for row in range(len(GOOD) + 1):
        folder = run.paths.rollouts / records[row].rollout_id
        assert json.loads((folder / "sample.json").read_bytes())["sample"]["messages"]
        assert json.loads((folder / "trajectory.json").read_bytes())["steps"]


def _works(program: str, *arguments: str) -> bool:
    found = shutil.which(program)
    return found is not None and not subprocess.run([found, *arguments], check=False).returncode


FULL_DISK = """
mount -t tmpfs -o size=300k none .osmosis
"$@" > first.json 2> first.err || echo $? > first.code
mount -o remount,size=64m none .osmosis
"$@" > second.json 2> second.err
cp .osmosis/evals/demo/records.jsonl .
"""


def test_a_full_disk_ends_the_run_and_the_same_command_goes_on(tmp_path: Path) -> None:
    """A disk of its own, so small that it fills up half way, and larger the second time."""
    namespaces = ["unshare", "--user", "--map-root-user", "--mount"]
    if not _works(*namespaces, "true"):
        pytest.skip("needs the right to mount")
    make_demo(tmp_path, *(f"question {number}" for number in range(80)))
    (tmp_path / ".osmosis").mkdir()
    command = [sys.executable, "-m", "osmosis_ai.cli.main"]
    arguments = ["eval", "run", "configs/eval/demo.toml", "--json", "--max-in-flight", "2"]
    subprocess.run(
        [*namespaces, "sh", "-ec", FULL_DISK, "sh", *command, *arguments], cwd=tmp_path, check=True
    )
    first, second = (
        json.loads((tmp_path / f"{name}.json").read_bytes()) for name in ("first", "second")
    )
    error = json.loads((tmp_path / "first.err").read_text().splitlines()[-1])["error"]
    assert (tmp_path / "first.code").read_text() == "1\n"
    assert (first["status"], second["status"]) == ("partial", "success")
    assert "No space left on device. What it holds is safe" in error["message"]
    done = first["resource"]["summary"]["outcomes"]["scored"]
    assert 0 < done == first["resource"]["summary"]["finished"] < 80
    summary = second["resource"]["summary"]
    assert (summary["mean"]["value"], summary["mean"]["over"]) == (1.0, 80)
    records = (tmp_path / "records.jsonl").read_bytes().splitlines()
    assert len({json.loads(line)["row"] for line in records}) == len(records) == 80


async def test_a_data_set_that_changed_between_two_goes_is_refused_and_nothing_is_lost(
    tmp_path: Path, model: ScriptedModel
) -> None:
    """Back as it was, the run goes on, and pays for nothing twice."""
    config = make_workspace(tmp_path, model, ["plain", "no role", "equal"])
    await evaluate(config, options=RunOptions(rows="0-1"))
    data = tmp_path / "data/demo.jsonl"
    before = data.read_text()
    data.write_text(before.replace("no role", "equal"))
    with pytest.raises(RunError, match="the data set changed"):
        await evaluate(config)
    data.write_text(before)
    summary = (await evaluate(config)).summary
    assert (summary.mean.value, summary.mean.over, summary.superseded) == (1.0, 3, 0)
    assert len(model.calls) == 3


DYING = """
import os
import signal

from osmosis_ai.rollout import (
    AgentWorkflow,
    AgentWorkflowConfig,
    ConcurrencyConfig,
    Grader,
    LocalBackend,
)
from osmosis_ai.rollout.server import create_rollout_server


class Workflow(AgentWorkflow):
    async def run(self, ctx):
        died = os.environ["DEMO_GREETING"]
        if ctx.prompt[-1]["content"] == "question 6" and not os.path.exists(died):
            open(died, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return [*ctx.prompt, {"role": "assistant", "content": "x"}]


class Passing(Grader):
    async def grade(self, ctx):
        ctx.set_reward(1.0)


config = AgentWorkflowConfig(name="dying", concurrency=ConcurrencyConfig(max_concurrent=2))
app = create_rollout_server(
    backend=LocalBackend(workflow=Workflow, grader=Passing, workflow_config=config)
)
"""


KILL_THE_RUN = "os.kill(os.getppid(), signal.SIGKILL)"


def test_a_server_that_dies_half_way_ends_the_run_and_the_same_command_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What it had not answered is pending, not without a result: the next server runs it."""
    path = make_demo(tmp_path, *(f"question {number}" for number in range(12)))
    (tmp_path / "rollouts/demo/main.py").write_text(DYING)
    path.write_text(CONFIG.replace("hello", str(tmp_path / "died")))
    monkeypatch.chdir(tmp_path)
    command = ["eval", "run", str(path), "--json"]
    assert main(command) == 1
    captured = capsys.readouterr()
    document, error = json.loads(captured.out), json.loads(captured.err.splitlines()[-1])["error"]
    counts = document["resource"]["summary"]
    assert (document["status"], error["code"]) == ("partial", "NETWORK")
    assert "ended with signal 9. Its log, " in error["message"]
    assert counts["outcomes"]["scored"] == counts["finished"] < 12
    assert "The same command goes on with the other" in document["message"]
    assert main(command) == 0
    summary = json.loads(capsys.readouterr().out)["resource"]["summary"]
    assert (summary["mean"]["value"], summary["mean"]["over"]) == (1.0, 12)
    assert list((tmp_path / ".osmosis/evals/demo/rollouts").glob(".journals/*")) == []


def test_a_run_killed_with_its_server_goes_on_to_the_summary_of_one_that_was_not(
    tmp_path: Path,
) -> None:
    """The server ends with the run; the next one finds nothing of it but the records."""
    path = make_demo(tmp_path, *(f"question {number}" for number in range(12)))
    killing = DYING.replace("os.kill(os.getpid(), signal.SIGKILL)", KILL_THE_RUN)
    (tmp_path / "rollouts/demo/main.py").write_text(killing)
    path.write_text(CONFIG.replace("hello", str(tmp_path / "died")))
    command = [sys.executable, "-m", "osmosis_ai.cli.main", "eval", "run", str(path), "--name"]
    codes = [
        subprocess.run(
            [*command, name], cwd=tmp_path, check=False, stdout=subprocess.DEVNULL
        ).returncode
        for name in ("killed", "killed", "whole")
    ]
    assert codes == [-signal.SIGKILL, 0, 0]
    killed, whole = (
        (tmp_path / f".osmosis/evals/{name}/summary.json").read_bytes()
        for name in ("killed", "whole")
    )
    assert json.loads(killed)["outcomes"]["scored"] == 12
    assert killed == whole
