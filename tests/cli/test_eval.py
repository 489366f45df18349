"""`osmosis eval run`, `list` and `show`, as a person or a program meets them."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from osmosis_ai.cli.main import main
from osmosis_ai.eval.record import parse_record
from tests.eval.demo import CONFIG, make_demo
from tests.eval.full_disk import file_size_limit

Capture = pytest.CaptureFixture[str]
QUESTIONS = ("one", "two", "broken", "judge", "loud")
CONFIG_PATH = "configs/eval/demo.toml"


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workspace, and the current directory."""
    make_demo(tmp_path, *QUESTIONS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def osmosis(*args: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "osmosis_ai.cli.main", *args],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        **options,
    )


def answer(capsys: Capture) -> dict[str, Any]:
    document = json.loads(capsys.readouterr().out)
    assert document["schema_version"] == 1
    return document


def evaluated(capsys: Capture, *flags: str) -> None:
    assert main(["eval", "run", CONFIG_PATH, *flags]) == 0
    capsys.readouterr()


def test_a_run_in_json_is_one_document_and_nothing_else(workspace: Path) -> None:
    """A program reads stdout; whatever rollouts and their children print goes elsewhere."""
    done = osmosis("eval", "run", CONFIG_PATH, "--json", "-n", "2")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["operation"], document["status"]) == ("eval.run", "success")
    assert document["message"] == "10 of 10 rollouts are done, 1 of them without a result."
    summary = document["resource"]["summary"]
    assert (summary["mean"]["value"], summary["mean"]["over"]) == (3 / 7, 7)
    assert (summary["outcomes"]["workflow_failed"], summary["outcomes"]["no_result"]) == (2, 1)
    assert document["resource"]["folder"] == str(workspace / ".osmosis/evals/demo")
    commands = [step["command"] for step in document["next_steps_structured"]]
    assert commands == [
        "osmosis eval show demo --failed",
        f"osmosis eval run {CONFIG_PATH} --n 2 --retry-no-result",
        f"osmosis eval run {CONFIG_PATH} --n 2 --retry-failed",
        "osmosis eval show demo --row 0",
    ]
    for said in ("said by a rollout", "said by a child", "imported hello"):
        assert said in done.stderr
        assert said not in done.stdout


def test_what_rollouts_print_and_log_is_in_the_log_of_the_run(workspace: Path) -> None:
    osmosis("eval", "run", CONFIG_PATH, "--plain")
    log = (workspace / ".osmosis/evals/demo/server.log").read_text()
    for said in ("imported hello", "said by a rollout", "said by a child"):
        assert said in log
    assert "ERROR osmosis_ai.rollout.execution: rollout" in log
    assert "RuntimeError: the tool is broken" in log


def test_a_failed_rollouts_traceback_is_for_the_log_alone(workspace: Path) -> None:
    """A thousand of them would hide what matters."""
    done = osmosis("eval", "run", CONFIG_PATH)
    assert "Traceback (most" not in done.stderr + done.stdout
    assert "workflow_failed  1  of 5" in done.stdout
    assert "Tracebacks  .osmosis/evals/demo/server.log" in done.stdout


def test_the_header_says_what_is_about_to_run(workspace: Path) -> None:
    done = osmosis("eval", "run", CONFIG_PATH, "--limit", "3", "--plain")
    assert done.stderr.splitlines()[1:5] == [
        "Driver: in-process, LocalBackend (8 at once)",
        "Model: scripted:policy:reply",
        "Data: data/demo.jsonl (3 of 5 rows, 1 attempt each)",
        "Run folder: .osmosis/evals/demo",
    ]
    again = osmosis("eval", "run", CONFIG_PATH, "--plain")
    assert "Run folder: .osmosis/evals/demo (3 of 5 rollouts are done)" in again.stderr


def test_a_run_in_plain_is_a_line_for_each_number(workspace: Path, capsys: Capture) -> None:
    assert main(["eval", "run", CONFIG_PATH, "--plain", "--n", "2"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "Mean reward: 0.4286 (over 7 scored of 10 rollouts; standard error 0.0816)",
        "Pass rate: 42.9% (3 of 7 with a reward of at least 1; 95% interval 8.8% to 85.4%)",
        "pass@1: 0.3750 (over 4 rows with 1 attempt that count; standard error 0.1250)",
        "pass@2: 1.0000 (over 3 rows with 2 attempts that count; standard error 0.0000)",
        "pass^2: 0.0000 (over 3 rows with 2 attempts that count; standard error 0.0000)",
        "Rewards: 0 to 1 (quartiles 0, 0, 1)",
        "No signal: 0.0% (0 of 3 rows give each of their attempts the same reward)",
        "Model calls: 8 (over 10 rollouts)",
        "Tokens: 16 (8 in, 8 out)",
        "scored: 7 (of 10)",
        "workflow_failed: 2 (of 10)",
        "no_result: 1 (of 10)",
        "workflow_failed: 2 (RuntimeError: the tool is broken (main.py:37, in run))",
        "no_result: 1 (NoResult: the judge does not answer (main.py:49, in grade))",
        "Run folder: .osmosis/evals/demo (records.jsonl, summary.json, rollouts, server.log)",
        "Tracebacks: .osmosis/evals/demo/server.log",
        "10 of 10 rollouts are done, 1 of them without a result.",
        "See what failed: osmosis eval show demo --failed",
        f"Run the 1 without a result again: osmosis eval run {CONFIG_PATH} --n 2 --retry-no-result",
        f"Run the 2 that failed again: osmosis eval run {CONFIG_PATH} --n 2 --retry-failed",
        "Look at one row: osmosis eval show demo --row 0",
    ]


def test_show_tells_where_the_time_went(workspace: Path, capsys: Capture) -> None:
    evaluated(capsys)
    assert main(["eval", "show", "demo", "--plain"]) == 0
    told = dict(line.split(": ", 1) for line in capsys.readouterr().out.splitlines())
    for name, over in {"Rollout": 5, "Waiting": 5, "Model": 5, "Tools": 5, "Grading": 4}.items():
        assert told[f"{name} time"].endswith(f"over {over} rollouts)")
    assert told["Call time"].endswith("over 4 calls)")
    assert "Cost" not in told
    assert main(["eval", "show", "demo", "--json"]) == 0
    timing = answer(capsys)["data"]["timing"]
    on_disk = json.loads((workspace / ".osmosis/evals/demo/timing.json").read_bytes())
    assert {key: on_disk[key] for key in timing} == timing
    assert timing["cost_usd"] is None
    assert main(["eval", "show", "demo", "--row", "0"]) == 0
    assert re.search(
        r"waiting \d.*model \d.*tools \d.*grading \d", capsys.readouterr().out, re.DOTALL
    )


def test_a_value_for_failed_workflows_is_told_beside_the_mean(
    workspace: Path, capsys: Capture
) -> None:
    config = workspace / CONFIG_PATH
    config.write_text(CONFIG + "[evaluation]\nworkflow_failed_reward = 0\n")
    main(["eval", "run", CONFIG_PATH, "--plain", "--rows", "0,2"])
    assert capsys.readouterr().out.startswith(
        "Mean reward: 0.5000 "
        "(over 1 scored and 1 failed workflows taken as 0, of 2 rollouts; "
        "standard error 0.5000)\n"
        "Pass rate: 50.0% (1 of 2 with a reward of at least 1; 95% interval 9.5% to 90.5%)\n"
    )


def test_too_few_scored_rollouts_end_the_command_with_1(workspace: Path, capsys: Capture) -> None:
    """A mean over what is left would be believed by whoever reads the exit code alone."""
    command = ["eval", "run", CONFIG_PATH, "--rows", "0,1,2", "--plain", "--min-scored"]
    assert main([*command, "0.6"]) == 0
    capsys.readouterr()
    assert main([*command, "0.99"]) == 1
    assert "2 of 3 rollouts are scored (66.67%)" in capsys.readouterr().err
    assert main([*command, "1.5"]) == 2


def test_equal_rewards_are_warned_of(workspace: Path, capsys: Capture) -> None:
    assert main(["eval", "run", CONFIG_PATH, "--rows", "0,1", "--json"]) == 0
    warning = json.loads(capsys.readouterr().err.splitlines()[-1])["warning"]
    assert warning["message"] == "all 2 rewards are 1; is the grader right?"
    assert main(["eval", "run", CONFIG_PATH, "--n", "2", "--rows", "0,1", "--plain"]) == 0
    assert "is the grader right" not in capsys.readouterr().err


def test_the_numbers_of_a_run_by_a_metadata_key(workspace: Path, capsys: Capture) -> None:
    rows = [
        {"user_prompt": word, "ground_truth": label, "metadata": {"difficulty": level}}
        for word, label, level in (
            ("one", "one", "easy"),
            ("two", "no", "hard"),
            ("x", "x", "easy"),
        )
    ]
    data = workspace / "data/demo.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    evaluated(capsys)
    assert main(["eval", "show", "demo", "--by", "difficulty", "--json"]) == 0
    easy, hard = answer(capsys)["items"]
    assert (easy["value"], easy["rows"], easy["mean"]["value"]) == ("easy", 2, 1.0)
    assert (hard["value"], hard["rows"], hard["passed"]) == ("hard", 1, 0)
    assert main(["eval", "show", "demo", "--by", "difficulty", "--plain"]) == 0
    assert capsys.readouterr().out.splitlines()[1] == (
        "hard\t1\t1\t0.0000 of 1\t-\t0.0% of 1\t0.0% to 79.3%"
    )
    assert main(["eval", "show", "demo", "--by", "difficult"]) == 1
    assert "did you mean 'difficulty'?" in capsys.readouterr().err


def test_a_run_without_a_scored_rollout_shows_no_mean(workspace: Path, capsys: Capture) -> None:
    main(["eval", "run", CONFIG_PATH, "--plain", "--rows", "2"])
    out = capsys.readouterr().out
    assert out.startswith("Mean reward: - (over 0 scored of 1 rollouts)\nPass rate: - (0 of 0")


def test_the_next_step_works_from_where_one_is(
    workspace: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Run from outside of the workspace, a name would not be found."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere.parent.parent)
    config = str(workspace / CONFIG_PATH)
    main(["eval", "run", config, "--plain", "--rows", "0"])
    command = capsys.readouterr().out.splitlines()[-1].partition(": ")[2]
    assert main(command.split()[1:]) == 0
    assert "row 0, attempt 0: scored" in capsys.readouterr().out


def test_flags_reach_the_run(workspace: Path, capsys: Capture) -> None:
    evaluated(capsys, "--name", "mine", "--rows", "3", "--max-in-flight", "1")
    evaluated(capsys, "--name", "mine", "--rows", "2-3")
    records = workspace / ".osmosis/evals/mine/records.jsonl"
    assert len(records.read_bytes().splitlines()) == 2
    evaluated(capsys, "--name", "mine", "--rows", "2-3", "--retry-failed")
    assert len(records.read_bytes().splitlines()) == 3
    evaluated(capsys, "--name", "mine", "--rows", "2-3", "--retry-no-result")
    tries = [parse_record(line).try_index for line in records.read_bytes().splitlines()]
    assert sorted(tries) == [0, 0, 1, 1]
    main(["eval", "show", "mine", "--plain"])
    assert "earlier tries: 2 (kept, and not counted)" in capsys.readouterr().out
    evaluated(capsys, "--name", "mine", "--fresh")
    assert len(list((workspace / ".osmosis/evals").glob("mine.archive-*"))) == 1


def test_a_torn_line_is_a_warning(workspace: Path, capsys: Capture) -> None:
    evaluated(capsys)
    records = workspace / ".osmosis/evals/demo/records.jsonl"
    records.write_bytes(records.read_bytes()[:-10])
    assert main(["eval", "run", CONFIG_PATH, "--json"]) == 0
    warning = json.loads(capsys.readouterr().err.splitlines()[0])
    assert "was torn" in warning["warning"]["message"]


def test_our_own_warnings_reach_the_person(workspace: Path, capsys: Capture) -> None:
    evaluated(capsys, "--rows", "0")
    (workspace / ".osmosis/evals/demo/.summary.json.tmp").mkdir()
    assert main(["eval", "run", CONFIG_PATH, "--rows", "0-1", "--plain"]) == 0
    assert "summary.json is not up to date: Is a directory\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("n = 1", "n = x"), "Invalid TOML"),
        (("demo", "dmo"), "did you mean 'demo'?"),
        (("main.py", "mian.py"), "did you mean 'main.py'?"),
        (("n = 1", "n = 0"), f"Invalid eval config: {CONFIG_PATH}\n"),
        (("n = 1", "grader_timeout_s = 0"), "grader_timeout_s: must be more than 0, got 0"),
        (
            ("n = 1", "agent_workflow_timeout_s = -1.5"),
            "agent_workflow_timeout_s: must be more than 0, got -1.5",
        ),
        (("[env]", "[evn]"), "Unrecognized section; did you mean 'env'?"),
    ],
)
def test_a_faulty_file_is_told_and_nothing_is_made(
    workspace: Path, capsys: Capture, change: tuple[str, str], message: str
) -> None:
    config = workspace / CONFIG_PATH
    config.write_text(("[evaluation]\nn = 1\n" + CONFIG).replace(*change))
    assert main(["eval", "run", CONFIG_PATH, "--plain"]) == 1
    assert message in capsys.readouterr().err
    assert not (workspace / ".osmosis").exists()


def test_faults_of_a_file_are_listed_for_programs(workspace: Path, capsys: Capture) -> None:
    (workspace / CONFIG_PATH).write_text(CONFIG + "[evaluation]\nn = 0\nx = 1\n")
    assert main(["eval", "run", CONFIG_PATH, "--json"]) == 1
    error = json.loads(capsys.readouterr().err)["error"]
    assert [issue["key"] for issue in error["details"]["issues"]] == [
        "evaluation.n",
        "evaluation.x",
    ]


@pytest.mark.parametrize(
    ("text", "trace", "message"),
    [
        ("import nowhere_to_be_found\n", "line 1, in <module>", "No module named"),
        ("raise SystemExit('no')\n", "line 1, in <module>", "SystemExit: no"),
        ("x = [\n", "    x = [\n", "SyntaxError: '[' was never closed"),
        (
            "import osmosis_ai._extras as e\n"
            "with e.requires_extra('ray', 'this'):\n    raise ModuleNotFoundError(name='ray')\n",
            "line 2, in <module>",
            "failed: this needs the package ray, which is not installed",
        ),
    ],
)
def test_an_entrypoint_that_fails_shows_its_own_traceback(
    workspace: Path, capsys: Capture, text: str, trace: str, message: str
) -> None:
    (workspace / "rollouts/demo/main.py").write_text(text)
    assert main(["eval", "run", CONFIG_PATH]) == 1
    err = capsys.readouterr().err
    assert trace in err
    assert err.count(message) == 1
    assert "osmosis_ai" not in err.partition("Error: ")[0]
    assert "contextlib" not in err
    (workspace / "rollouts/demo/main.py").write_text("backend = None\n")
    assert main(["eval", "run", CONFIG_PATH, "--driver", "in-process", "--json"]) == 1
    error = json.loads(capsys.readouterr().err.splitlines()[-1])["error"]
    assert (error["code"], error["details"]) == ("VALIDATION", {"key": "entrypoint"})


@pytest.mark.parametrize(
    ("file", "text", "kept"),
    [
        ("rollouts/demo/main.py", "import nowhere_to_be_found\n", []),
        ("rollouts/demo/main.py", "print('said')\nimport nowhere_to_be_found\n", ["server.log"]),
        ("rollouts/demo/policy.py", "x = [\n", []),
    ],
)
def test_a_run_that_never_began_is_not_kept(
    workspace: Path, capsys: Capture, file: str, text: str, kept: list[str]
) -> None:
    """A list of runs is of those that measured something, or could have."""
    before = (workspace / file).read_text()
    (workspace / file).write_text(text)
    assert main(["eval", "run", CONFIG_PATH]) == 1
    folder = workspace / ".osmosis/evals/demo"
    assert sorted(path.name for path in folder.glob("*")) == kept
    assert folder.exists() is bool(kept)
    capsys.readouterr()
    assert main(["eval", "list"]) == 0
    assert capsys.readouterr().out.startswith("No runs yet")
    (workspace / file).write_text(before)
    evaluated(capsys)
    (workspace / file).write_text(text)
    assert main(["eval", "run", CONFIG_PATH]) == 1
    assert (folder / "run.json").exists(), "what has a record stays"


@pytest.mark.parametrize(
    ("old", "new", "lacks"),
    [
        ("backend =", "bckend =", ": its LocalBackend is named `bckend`"),
        ("backend = LocalBackend", "backend = dict", ": its `backend` is a dict"),
    ],
)
def test_a_check_says_what_nothing_can_run(
    workspace: Path, capsys: Capture, old: str, new: str, lacks: str
) -> None:
    main_py = workspace / "rollouts/demo/main.py"
    main_py.write_text(main_py.read_text().replace(old, new))
    assert main(["rollout", "check", "demo", "--plain"]) == 0
    assert capsys.readouterr().err == (
        f"Warning: main.py has no ExecutionBackend named `backend`{lacks}, and no `app`: unless it "
        "listens by itself when it is started, nothing can run it\n"
    )
    assert main(["rollout", "check", "dmo", "--plain"]) == 1
    assert "; did you mean 'demo'?" in capsys.readouterr().err


def test_a_dataset_that_is_not_there_may_be_misspelt(workspace: Path, capsys: Capture) -> None:
    for dataset, meant in {"dmo": "demo", "data/dmo.jsonl": "data/demo.jsonl"}.items():
        text = CONFIG.replace('dataset = "demo"', f'dataset = "{dataset}"')
        (workspace / CONFIG_PATH).write_text(text)
        assert main(["eval", "run", CONFIG_PATH, "--plain"]) == 1
        err = capsys.readouterr().err
        assert f"; did you mean '{meant}'?" in err
        assert ".jsonl.csv" not in err


def test_a_run_that_is_in_use_is_refused(workspace: Path) -> None:
    (workspace / "data/demo.jsonl").write_text('{"user_prompt": "stuck", "ground_truth": "x"}\n')
    with _running("eval", "run", CONFIG_PATH, cwd=workspace) as (process, stderr):
        _read_until(stderr, "waiting")
        second = osmosis("eval", "run", CONFIG_PATH, "--json", cwd=workspace)
        assert second.returncode == 1
        error = json.loads(second.stderr)["error"]
        assert error["code"] == "CONFLICT"
        assert f"in use by process {process.pid}" in error["message"]
        shown = osmosis("eval", "list", "--plain", cwd=workspace)
        assert shown.stdout.split("\t")[:2] == ["demo", "running"]


@contextmanager
def _running(*args: str, cwd: Path) -> Iterator[tuple[subprocess.Popen[str], IO[str]]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "osmosis_ai.cli.main", *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
    )
    with process:
        assert process.stderr is not None
        try:
            yield process, process.stderr
        finally:
            process.kill()


def _read_until(stream: IO[str], text: str) -> str:
    read = ""
    while text not in read:
        line = stream.readline()
        assert line, read
        read += line
    return read


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_one_interrupt_ends_cleanly_and_the_same_command_goes_on(
    workspace: Path, kind: signal.Signals
) -> None:
    """What ran has no record, what had ended has one."""
    rows = [{"user_prompt": question, "ground_truth": "x"} for question in ("one", "stuck")]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (workspace / "data/demo.jsonl").write_text(lines)
    flags = ("--max-in-flight", "1", "--json")
    with _running("eval", "run", CONFIG_PATH, *flags, cwd=workspace) as (process, stderr):
        _read_until(stderr, "waiting")
        process.send_signal(kind)
        assert process.stdout is not None
        assert process.stdout.read() == ""
        error = json.loads(stderr.read().splitlines()[-1])["error"]
        assert process.wait(60) == 130
    assert error["code"] == "INTERRUPTED"
    assert "1 of 2 rollouts are done; the same command goes on" in error["message"]
    folder = workspace / ".osmosis/evals/demo"
    assert len((folder / "records.jsonl").read_bytes().splitlines()) == 1
    assert json.loads((folder / "summary.json").read_bytes())["pending"] == 1
    assert json.loads((folder / "timing.json").read_bytes())["sessions"][0]["end"] == "interrupted"


def test_an_interrupt_before_the_run_is_one_too(workspace: Path) -> None:
    (workspace / "rollouts/demo/main.py").write_text(
        "import os, signal; os.kill(os.getpid(), signal.SIGINT)\n"
        "from osmosis_ai.rollout import AgentWorkflow, LocalBackend\n"
        "class W(AgentWorkflow):\n    async def run(self, ctx): return []\n"
        "backend = LocalBackend(workflow=W)\n"
    )
    done = osmosis("eval", "run", CONFIG_PATH, "--plain", cwd=workspace)
    assert done.returncode == 130
    assert "Stopped: 0 of 5 rollouts are done" in done.stderr


def test_a_second_interrupt_leaves_at_once(workspace: Path) -> None:
    """Also where a workflow blocks the loop and would never hear of the first."""
    (workspace / "rollouts/demo/main.py").write_text(
        "import time\n"
        "from osmosis_ai.rollout import AgentWorkflow, LocalBackend\n"
        "class W(AgentWorkflow):\n"
        "    async def run(self, ctx):\n"
        "        print('waiting', flush=True)\n"
        "        time.sleep(600)\n"
        "backend = LocalBackend(workflow=W)\n"
    )
    with _running("eval", "run", CONFIG_PATH, cwd=workspace) as (process, stderr):
        _read_until(stderr, "waiting")
        process.send_signal(signal.SIGINT)
        _read_until(stderr, "Press Ctrl-C again")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130


def test_a_run_that_died_goes_on_to_the_same_summary(workspace: Path, capsys: Capture) -> None:
    """Resumed equals never having stopped: nothing is lost, nothing runs twice."""
    main_py = workspace / "rollouts/demo/main.py"
    die = """== "loud":
            died = os.environ["DEMO_GREETING"] + "/died"
            if not os.path.exists(died):
                open(died, "w").close()
                os._exit(9)"""
    main_py.write_text(main_py.read_text().replace('== "loud":', die))
    config = workspace / CONFIG_PATH
    config.write_text(CONFIG.replace("hello", str(workspace)))
    flags = ("eval", "run", CONFIG_PATH, "-n", "2", "--max-in-flight", "2")
    assert osmosis(*flags).returncode == 9
    records = workspace / ".osmosis/evals/demo/records.jsonl"
    before = records.read_bytes()
    assert 0 < before.count(b"\n") < 10
    assert main([*flags]) == 0
    assert records.read_bytes().startswith(before)
    assert records.read_bytes().count(b"\n") == 10
    assert main([*flags, "--name", "whole"]) == 0
    died, whole = (workspace / f".osmosis/evals/{n}/summary.json" for n in ("demo", "whole"))
    assert died.read_bytes() == whole.read_bytes()


def test_a_run_that_is_halted_says_why_and_is_partial(workspace: Path, capsys: Capture) -> None:
    with file_size_limit(4000):
        assert main(["eval", "run", CONFIG_PATH, "--rows", "0", "-n", "20", "--json"]) == 1
    captured = capsys.readouterr()
    document, error = json.loads(captured.out), json.loads(captured.err.splitlines()[-1])
    assert document["status"] == "partial"
    assert document["resource"]["state"] == "incomplete"
    assert "records.jsonl cannot be written: File too large" in error["error"]["message"]
    evaluated(capsys, "--rows", "0", "-n", "20")


def test_runs_are_listed_newest_first(workspace: Path, capsys: Capture) -> None:
    assert main(["eval", "list"]) == 0
    assert capsys.readouterr().out == "No runs yet: osmosis eval run CONFIG makes one.\n"
    for name in ("first", "second", "third"):
        evaluated(capsys, "--name", name, "--rows", "0")
        run_json = workspace / f".osmosis/evals/{name}/run.json"
        document = json.loads(run_json.read_bytes())
        document["created_at"] = {"first": "2026-01-01", "second": "2026-01-02"}.get(
            name, "2026-02"
        )
        run_json.write_text(json.dumps(document))
    assert main(["eval", "list", "--json", "--limit", "2"]) == 0
    page = answer(capsys)
    assert [item["name"] for item in page["items"]] == ["third", "second"]
    assert (page["total_count"], page["has_more"], page["next_offset"]) == (3, True, 2)
    assert page["items"][0]["state"] == "finished"
    main(["eval", "list", "--json", "--all", "--limit", "1"])
    assert (page := answer(capsys))["has_more"] is False
    assert page["next_offset"] is None
    main(["eval", "list", "--plain"])
    assert capsys.readouterr().out.splitlines()[0].split("\t") == [
        "third",
        "finished",
        "demo",
        "scripted:policy:reply",
        "1/5",
        "1",
        "1/1",
        "1.0000 of 1",
        "100.0% of 1",
        "2026-02",
    ]
    main(["eval", "list", "--limit", "2"])
    assert "2 of 3; --all shows all" in capsys.readouterr().out


@pytest.mark.parametrize("file", ["run.json", "records.jsonl"])
def test_a_run_that_cannot_be_read_does_not_hide_the_others(
    workspace: Path, capsys: Capture, file: str
) -> None:
    evaluated(capsys, "--name", "good", "--rows", "0")
    evaluated(capsys, "--name", "bad", "--rows", "0")
    (workspace / ".osmosis/evals/bad" / file).write_text("{\n")
    assert main(["eval", "list", "--plain"]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("good\t")
    assert "Warning: " in captured.err


def test_a_run_is_shown_by_name_or_folder(
    workspace: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluated(capsys)
    assert main(["eval", "show", "demo", "--json"]) == 0
    by_name = answer(capsys)["data"]
    assert by_name["summary"]["finished"] == 5
    monkeypatch.chdir("/")
    assert main(["eval", "show", by_name["folder"], "--json"]) == 0
    assert answer(capsys)["data"] == by_name


def test_a_run_that_is_not_there_is_not_found(workspace: Path, capsys: Capture) -> None:
    evaluated(capsys)
    assert main(["eval", "show", "dmo", "--json"]) == 1
    error = json.loads(capsys.readouterr().err)["error"]
    assert (error["code"], "did you mean 'demo'?" in error["message"]) == ("NOT_FOUND", True)


def test_what_failed_is_listed(workspace: Path, capsys: Capture) -> None:
    evaluated(capsys, "--n", "2")
    assert main(["eval", "show", "demo", "--failed", "--json"]) == 0
    items = answer(capsys)["items"]
    assert [(item["row"], item["attempt"], item["outcome"]) for item in items] == [
        (2, 0, "workflow_failed"),
        (2, 1, "workflow_failed"),
        (3, 0, "no_result"),
    ]
    assert items[0]["error_message"] == "the tool is broken"
    assert Path(items[0]["folder"]).is_dir()
    main(["eval", "show", "demo", "--failed", "--plain", "--limit", "1"])
    assert capsys.readouterr().out.startswith("2\t0\t0\tworkflow_failed\t-\t0\t0\t")
    main(["eval", "show", "demo", "--failed", "--all"])
    assert "NoResult: the judge does not answer (main.py:49, in grade)" in capsys.readouterr().out


def test_a_try_that_was_replaced_has_not_failed(workspace: Path, capsys: Capture) -> None:
    evaluated(capsys, "--rows", "2")
    main_py = workspace / "rollouts/demo/main.py"
    before = main_py.read_text()
    evaluated(capsys, "--rows", "2", "--retry-failed")
    assert main_py.read_text() == before
    main(["eval", "show", "demo", "--failed", "--json"])
    assert [item["try"] for item in answer(capsys)["items"]] == [1]
    main(["eval", "show", "demo", "--row", "2", "--json"])
    assert [item["try"] for item in answer(capsys)["items"]] == [0, 1]
    main(["eval", "show", "demo", "--row", "2"])
    assert "row 2, attempt 0, try 1: workflow_failed" in capsys.readouterr().out


def test_nothing_that_failed_is_said(workspace: Path, capsys: Capture) -> None:
    evaluated(capsys, "--rows", "0")
    main(["eval", "show", "demo", "--failed"])
    assert capsys.readouterr().out == "No rollout failed.\n"


def test_a_row_is_shown_in_full(workspace: Path, capsys: Capture) -> None:
    evaluated(capsys)
    assert main(["eval", "show", "demo", "--row", "2"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("row 2, attempt 0: workflow_failed\n")
    assert "Error        RuntimeError: the tool is broken (main.py:37, in run)" in out
    assert ".osmosis/evals/demo/rollouts/" in out
    assert re.search(r"Traceback    \.osmosis/evals/demo/server\.log +below [0-9a-f]{32}", out)
    assert "Reward" not in out
    assert main(["eval", "show", "demo", "--row", "9", "--plain"]) == 2
    assert capsys.readouterr().err == ("Error: run 'demo' takes the rows 0-4, and not row 9\n")


@pytest.mark.parametrize("columns", ["80", "140"])
def test_a_path_is_never_folded(
    workspace: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    """It is there to be copied."""
    monkeypatch.setenv("COLUMNS", columns)
    evaluated(capsys)
    assert main(["eval", "show", "demo", "--row", "2"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"Folder +\.osmosis/evals/demo/rollouts/[0-9a-f]{32} *\n", out)
    assert main(["eval", "show", "demo"]) == 0
    assert "Tracebacks  .osmosis/evals/demo/server.log" in capsys.readouterr().out


def test_a_run_without_a_score_says_so_and_what_to_do(workspace: Path, capsys: Capture) -> None:
    """8 of 8 done with nothing to show for it is no success that a person wants."""
    flags = ["--rows", "3", "--name", "lost", "--no-probe"]
    assert main(["eval", "run", CONFIG_PATH, *flags, "--fresh", "--plain"]) == 0
    captured = capsys.readouterr()
    assert "Warning: 0 of 1 rollouts are scored: 1 no_result\n" in captured.err
    again = f"osmosis eval run {CONFIG_PATH} --name lost --rows 3 --no-probe --retry-no-result"
    assert f"Run the 1 without a result again: {again}\n" in captured.out
    assert main([*again.split()[1:], "--plain"]) == 0
    assert "earlier tries: 1" in capsys.readouterr().out


def test_a_log_that_is_gone_is_not_pointed_to(workspace: Path, capsys: Capture) -> None:
    evaluated(capsys)
    (workspace / ".osmosis/evals/demo/server.log").unlink()
    assert main(["eval", "show", "demo", "--plain"]) == 0
    assert "Tracebacks" not in capsys.readouterr().out


def test_a_failed_call_is_told_with_its_row(workspace: Path, capsys: Capture) -> None:
    rows = '{"user_prompt": "unreachable", "ground_truth": "x"}\n'
    (workspace / "data/demo.jsonl").write_text(rows)
    evaluated(capsys)
    main(["eval", "show", "demo", "--row", "0"])
    assert "1 failed" in (out := capsys.readouterr().out)
    assert "the model did not answer" in out
    main(["eval", "show", "demo", "--plain"])
    assert "Model calls: 1 (1 failed, over 1 rollouts)" in capsys.readouterr().out


def test_an_incomplete_run_says_what_is_pending(workspace: Path, capsys: Capture) -> None:
    evaluated(capsys)
    records = workspace / ".osmosis/evals/demo/records.jsonl"
    records.write_bytes(records.read_bytes().splitlines(keepends=True)[0])
    main(["eval", "show", "demo", "--plain"])
    assert "pending: 4 (of 5)" in capsys.readouterr().out
    main(["eval", "show", "demo", "--json"])
    assert answer(capsys)["data"]["state"] == "incomplete"


@pytest.mark.parametrize("columns", [50, 100])
def test_in_a_terminal_a_bar_shows_mean_and_failures(workspace: Path, columns: int) -> None:
    sent = in_terminal("eval", "run", CONFIG_PATH, columns=columns)
    lines = screen(sent).splitlines()
    # A command is left whole, to be copied.
    assert max(len(line) for line in lines if "osmosis eval" not in line) <= columns
    assert any("5/5 mean 1.00 of 3, 1 failed, 1 no result" in line for line in lines)
    assert "said by a rollout" in lines
    assert "said by a child" in lines


def test_colour_is_left_out_where_it_is_not_wanted(workspace: Path) -> None:
    coloured = re.compile(r"\x1b\[[0-9;]*[349][0-9]")
    assert coloured.search(in_terminal("eval", "run", CONFIG_PATH, columns=80))
    plain = in_terminal("eval", "run", CONFIG_PATH, "--fresh", columns=80, NO_COLOR="1")
    assert not coloured.search(plain)


def test_a_debugger_gets_the_terminal(workspace: Path) -> None:
    """The bar makes way for it, and comes back."""
    main_py = workspace / "rollouts/demo/main.py"
    text = main_py.read_text().replace('== "loud":', '== "loud":\n            breakpoint()')
    main_py.write_text(text)
    sent = in_terminal(
        "eval", "run", CONFIG_PATH, "--max-in-flight", "1", columns=100, typed="p question\nc\n"
    )
    assert "(Pdb)" in sent
    assert "'loud'" in sent
    assert "5/5 mean 1.00 of 3" in screen(sent)


def test_whoever_quits_the_debugger_stops_the_run(workspace: Path) -> None:
    """As Ctrl-C does: no record says that the agent failed, and nothing stops at the line again."""
    main_py = workspace / "rollouts/demo/main.py"
    text = main_py.read_text().replace("question = ctx", "breakpoint(); question = ctx")
    main_py.write_text(text)
    sent = in_terminal(
        *("eval", "run", CONFIG_PATH, "--max-in-flight", "2"), columns=100, typed="c\nq\n", code=130
    )
    assert sent.count("(Pdb)") == 2
    assert "Stopped: " in sent
    assert "rollouts are done; the same command goes on from there." in sent
    assert "BdbQuit" not in sent
    records = (workspace / ".osmosis/evals/demo/records.jsonl").read_text()
    assert "workflow_failed" not in records
    main_py.write_text(text.replace("breakpoint(); ", ""))
    assert main(["eval", "run", CONFIG_PATH, "--fresh"]) == 0


def test_the_recipe_for_debugging_can_be_gone_on_with(workspace: Path) -> None:
    """As `--fresh` is in it, the same command would start over."""
    main_py = workspace / "rollouts/demo/main.py"
    text = main_py.read_text().replace('== "loud":', '== "loud":\n            breakpoint()')
    main_py.write_text(text)
    recipe = ("--rows", "3-4", "--n", "1", "--max-in-flight", "1", "--name", "debug", "--fresh")
    sent = in_terminal("eval", "run", CONFIG_PATH, *recipe, columns=140, typed="q\n", code=130)
    assert "1 of 2 rollouts are done; the same command without --fresh goes on from there." in sent
    sent = in_terminal("eval", "run", CONFIG_PATH, *recipe[:-1], columns=140, typed="c\n")
    assert "2 of 2 rollouts are done" in sent


def test_no_deadline_comes_nearer_at_the_debuggers_prompt(workspace: Path) -> None:
    main_py = workspace / "rollouts/demo/main.py"
    text = main_py.read_text().replace('== "loud":', '== "loud":\n            breakpoint()')
    main_py.write_text(text)
    look = "seconds = __import__('sys').modules['osmosis_ai.rollout.controller.clock']._SECONDS"
    sent = in_terminal(
        *("eval", "run", CONFIG_PATH, "--max-in-flight", "1"),
        columns=200,
        typed=f"{look}\np 'held', seconds.now() == seconds.now()\nc\n",
    )
    assert "('held', True)" in sent


def test_the_debugger_of_ones_choice_is_called(workspace: Path) -> None:
    main_py = workspace / "rollouts/demo/main.py"
    text = main_py.read_text().replace('== "loud":', '== "loud":\n            breakpoint("mine")')
    main_py.write_text(text)
    sent = in_terminal("eval", "run", CONFIG_PATH, columns=100, PYTHONBREAKPOINT="builtins.print")
    assert "mine\r\n" in sent
    assert "5/5" in screen(sent)


def in_terminal(
    *args: str, columns: int, typed: str = "", code: int = 0, **environment: str
) -> str:
    """What a terminal of so many columns is sent."""
    keep = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "CI")}
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "osmosis_ai.cli.main", *args],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=keep | {"COLUMNS": str(columns), "TERM": "xterm"} | environment,
    )
    os.close(theirs)
    with process:
        os.write(ours, typed.encode())
        sent = b"".join(iter(lambda: _read(ours), b"")).decode()
        os.close(ours)
    assert process.returncode == code, sent
    return sent


def screen(sent: str) -> str:
    """What stood on the screen at one time or another."""
    styled = re.sub(r"\x1b\[[0-9;?]*[A-LN-Za-ln-z]", "\n", sent)
    return re.sub(r"\x1b\[[0-9;]*m", "", styled).replace("\r", "\n")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # Linux: the other end has been closed
        return b""
