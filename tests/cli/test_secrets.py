"""Secrets come from a file, the environment or a prompt, and stay out of every file and message."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.cli.main import main
from osmosis_ai.cli.mode import Mode
from osmosis_ai.cli.secrets import parse_secrets, secrets_set
from osmosis_ai.errors import ConfigError
from osmosis_ai.testing import HttpReply, ScriptedModel
from tests.eval.demo import CONFIG, make_demo

Capture = pytest.CaptureFixture[str]
CONFIG_PATH = "configs/eval/demo.toml"


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    config = make_demo(tmp_path, "one")
    config.write_text(f'{CONFIG}\n[secrets]\nrequired = ["DEMO_KEY"]\n')
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_secrets_file_is_names_and_values() -> None:
    text = "# a comment\n\nexport A = 'one two'\nB=\"x=y\"\nC=\nD='\nE=a'b\n"
    assert parse_secrets(text) == {"A": "one two", "B": "x=y", "C": "", "D": "'", "E": "a'b"}


@pytest.mark.parametrize("line", ["hunter2", "1A=hunter2", "A=hunter2\0"])
def test_a_bad_line_is_told_by_its_number_alone(line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_secrets(f"OK=1\n{line}\n")
    assert "line 2" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    bad.write_bytes(b"A=\xff")
    for file in (tmp_path / "none", bad):
        with (
            pytest.raises(ConfigError, match=str(file)),
            secrets_set(["A"], file=str(file), mode=Mode.PLAIN),
        ):
            pass


def test_the_file_wins_and_the_environment_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEMO_KEY", "old")
    monkeypatch.setattr("sys.stdin", io.StringIO("DEMO_KEY=new\nDEMO_NEW=x\nNOT_ASKED_FOR=y\n"))
    with secrets_set(["DEMO_KEY", "DEMO_NEW"], file="-", mode=Mode.PLAIN):
        assert (os.environ["DEMO_KEY"], os.environ["DEMO_NEW"]) == ("new", "x")
        assert "NOT_ASKED_FOR" not in os.environ
    assert os.environ["DEMO_KEY"] == "old"
    assert "DEMO_NEW" not in os.environ


def test_a_run_takes_its_secrets_from_a_file_and_writes_none_down(
    workspace: Path, capsys: Capture
) -> None:
    (workspace / "keys").write_text("DEMO_KEY=hunter2\n")
    assert main(["eval", "run", CONFIG_PATH, "--secrets-file", "keys"]) == 0
    assert_hidden(workspace)


def assert_hidden(workspace: Path) -> str:
    """No file of the run has the secret; returns all there is, to look for what stands instead."""
    files = [path for path in (workspace / ".osmosis").rglob("*") if path.is_file()]
    assert files
    found = [path.name for path in files if b"hunter2" in path.read_bytes()]
    assert found == []
    return "\n".join(path.read_text(errors="replace") for path in files)


def test_all_that_is_missing_is_told_where_nobody_can_be_asked(
    workspace: Path, capsys: Capture
) -> None:
    config = workspace / CONFIG_PATH
    config.write_text(CONFIG + '[secrets]\nrequired = ["DEMO_KEY", "DEMO_OTHER", "HOME"]\n')
    assert main(["eval", "run", CONFIG_PATH, "--json"]) == 1
    error = json.loads(capsys.readouterr().err)["error"]
    assert error["code"] == "INTERACTIVE_REQUIRED"
    assert error["details"] == {
        "missing": ["DEMO_KEY", "DEMO_OTHER"],
        "flags": ["--secrets-file"],
    }
    assert main(["eval", "run", CONFIG_PATH, "--plain"]) == 1
    assert "DEMO_KEY, DEMO_OTHER: not set in the environment" in capsys.readouterr().err
    assert not (workspace / ".osmosis").exists()


LEAKING = """
import logging
import os

from osmosis_ai.rollout import AgentWorkflow, Grader, LocalBackend
from osmosis_ai.rollout.server import create_rollout_server

KEY = os.environ["DEMO_KEY"]
print("imported with", KEY)


class Workflow(AgentWorkflow):
    async def run(self, ctx):
        logging.getLogger("mine").warning("logged %s", KEY)
        print("printed", KEY, flush=True)
        os.system("echo said by a child: $DEMO_KEY")
        if ctx.prompt[-1]["content"] == "raises":
            raise RuntimeError(f"refused: {KEY}")
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": KEY}}
        told = {"role": "assistant", "content": f"the key is {KEY}", "tool_calls": [call]}
        return [*ctx.prompt, told]


class IsTold(Grader):
    async def grade(self, ctx):
        ctx.sample.extra_fields = {"seen": KEY}
        ctx.set_reward(float(KEY in ctx.sample.messages[-1]["content"]))


backend = LocalBackend(workflow=Workflow, grader=IsTold)
app = create_rollout_server(backend=backend)
"""


@pytest.mark.parametrize("driver", ["in-process", "process"])
def test_a_secret_that_a_rollout_gives_away_is_left_out_of_all_files_and_messages(
    workspace: Path, driver: str
) -> None:
    """The grader sees it as it is: what is hidden is what is written down and said."""
    (workspace / "rollouts/demo/main.py").write_text(LEAKING)
    rows = [{"user_prompt": name, "ground_truth": "x"} for name in ("raises", "tells")]
    (workspace / "data/demo.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (workspace / "keys").write_text("DEMO_KEY=hunter2\n")
    flags = ("--secrets-file", "keys", "--driver", driver, "--json")
    done = subprocess.run(
        [sys.executable, "-m", "osmosis_ai.cli.main", "eval", "run", CONFIG_PATH, *flags],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "hunter2" not in done.stdout + done.stderr
    summary = json.loads(done.stdout)["resource"]["summary"]
    assert (summary["mean"]["value"], summary["mean"]["over"]) == (1.0, 1)
    written = assert_hidden(workspace)
    for said in ("imported with", "logged", "printed", "said by a child:"):
        assert f"{said} [REDACTED]" in written
    assert "RuntimeError: refused: [REDACTED]" in written
    assert "the key is [REDACTED]" in written
    trajectories = list((workspace / ".osmosis").rglob("trajectory.json"))
    assert ["[REDACTED]" in path.read_text() for path in trajectories] == [True]
    records = next((workspace / ".osmosis").rglob("records.jsonl")).read_text()
    assert '"error_message":"refused: [REDACTED]"' in records


FAULTY = "raise {error}(__import__('os').environ['DEMO_KEY'])\n"


@pytest.mark.parametrize("mode", ["--json", "--plain"])
def test_a_traceback_shows_no_secret(workspace: Path, mode: str) -> None:
    (workspace / "rollouts/demo/main.py").write_text(FAULTY.format(error="RuntimeError"))
    done = subprocess.run(
        [sys.executable, "-m", "osmosis_ai.cli.main", "eval", "run", CONFIG_PATH, mode],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "DEMO_KEY": "hunter2"},
    )
    assert done.returncode == 1
    assert "hunter2" not in done.stdout + done.stderr
    assert "RuntimeError: [REDACTED]" in done.stderr


CRASHING = """
import sys
from osmosis_ai.cli.main import Command, Group, main
from osmosis_ai.redaction import hide

def crash():
    hide(["hunter2"])
    raise ZeroDivisionError("hunter2 in a fault")

groups = {"test": Group("x", {"crash": Command("__main__:crash", "x")})}
sys.exit(main(["test", "crash"], groups=groups))
"""


def test_a_fault_of_ours_shows_none_either() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CRASHING], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "hunter2" not in done.stderr.replace('hide(["hunter2"])', "")
    assert "ZeroDivisionError: [REDACTED] in a fault\nThis is a fault of osmosis-ai" in done.stderr


def test_a_person_at_a_terminal_is_asked_and_nothing_is_echoed(workspace: Path) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "osmosis_ai.cli.main", "eval", "run", CONFIG_PATH]
    with subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    ) as process:
        os.close(theirs)
        said = b""
        try:
            while b"DEMO_KEY (hidden)" not in said:
                said += os.read(ours, 4096)
            os.write(ours, b"\n")
            while b"cannot be empty" not in said or said.count(b"(hidden)") < 2:
                said += os.read(ours, 4096)
            os.write(ours, b"hunter2\n")
            while chunk := os.read(ours, 4096):
                said += chunk
        except OSError:  # the terminal is gone with its process
            pass
        finally:
            os.close(ours)
        assert process.wait(60) == 0
    assert b"hunter2" not in said


def test_a_model_that_repeats_its_key_does_not_give_it_away(
    workspace: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Servers say which key they refuse, and the message goes into records and onto the screen."""

    def refuse(request: Any, call: Any) -> HttpReply:
        message = f"Incorrect API key provided: {call.headers['authorization']}"
        return HttpReply(401, {"error": {"message": message}})

    monkeypatch.setenv("DEMO_MODEL_KEY", "hunter2-of-the-model")
    with ScriptedModel(refuse) as model:
        table = f'[model]\nbase_url = "{model.base_url}"\napi_key_env = "DEMO_MODEL_KEY"\n'
        config = CONFIG.replace("scripted:policy:reply", "real-name")
        (workspace / CONFIG_PATH).write_text(config + table)
        for flag in ("--probe", "--no-probe"):
            assert main(["eval", "run", CONFIG_PATH, "--plain", flag]) == 1
            captured = capsys.readouterr()
            assert "hunter2" not in captured.out + captured.err
            assert "Incorrect API key provided: Bearer [REDACTED]" in captured.err
    assert '"error_message":"the model did not answer: ' in assert_hidden(workspace)
