"""`osmosis eval run --isolated`: what a rollout declares is there, and what it does not is told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.wheelhouse import write_wheel

MAIN = """
import os, sys
import tinydep
from osmosis_ai.rollout import AgentWorkflow, LocalBackend
from osmosis_ai.rollout.server import create_rollout_server
from osmosis_ai.testing import ExactMatchGrader

class Answers(AgentWorkflow):
    async def run(self, ctx):
        assert os.environ["PATH"].startswith(os.path.dirname(sys.executable))
        return [*ctx.prompt, {"role": "assistant", "content": str(tinydep.VALUE)}]

backend = LocalBackend(workflow=Answers, grader=ExactMatchGrader)
app = create_rollout_server(backend=backend)
"""
CONFIG = """
[experiment]
rollout = "demo"
entrypoint = "main.py"
model_path = "scripted:policy:reply"
dataset = "rows"
"""


@pytest.fixture
def workspace(tmp_path: Path, offline: Path) -> Path:
    """Its rollout needs a package that is not installed here."""
    write_wheel(offline, "tinydep", "1.5", {"tinydep.py": "VALUE = 15\n"})
    rows = [{"user_prompt": "?", "ground_truth": "15"}, {"user_prompt": "?", "ground_truth": "16"}]
    for name, text in {
        "rollouts/demo/main.py": MAIN,
        "rollouts/demo/policy.py": "def reply(request, call):\n    return 'unused'\n",
        "rollouts/demo/pyproject.toml": '[project]\nname = "demo"\ndependencies = ["tinydep>=1"]\n',
        "data/rows.jsonl": "".join(json.dumps(row) + "\n" for row in rows),
        "demo.toml": CONFIG,
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def evaluated(workspace: Path, *flags: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "osmosis_ai.cli.main", "eval", "run", "demo.toml", *flags]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.run(command, cwd=workspace, text=True, check=False, timeout=300, **pipes)


def test_a_rollout_finds_what_it_declares(workspace: Path) -> None:
    done = evaluated(workspace, "--isolated", "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)["resource"]["summary"]
    assert (summary["outcomes"]["scored"], summary["passed"]) == (2, 1)
    assert "tinydep" not in done.stderr
    [environment] = (workspace / ".osmosis/environments").glob("*/bin/python")
    timing = json.loads((workspace / ".osmosis/evals/demo/timing.json").read_bytes())
    assert timing["sessions"][0]["driver"].startswith("isolated process ")
    again = evaluated(workspace, "--isolated", "--plain", "--name", "again")
    assert again.returncode == 0, again.stderr
    assert "making" not in again.stderr
    assert [environment] == list((workspace / ".osmosis/environments").glob("*/bin/python"))


def test_what_is_done_is_told_while_it_lasts(workspace: Path) -> None:
    done = evaluated(workspace, "--isolated", "--plain")
    first, second, *_ = done.stderr.splitlines()
    assert first.startswith("making ")
    assert first.endswith(" ...")
    assert second == "installing osmosis-ai, and what 'demo' declares: tinydep>=1 ..."


def test_a_terminal_shows_what_is_done(workspace: Path) -> None:
    ours, theirs = os.openpty()
    done = evaluated(workspace, "--isolated", stderr=theirs)
    os.close(theirs)
    assert done.returncode == 0
    assert b"making" in _read_all(ours)


def test_what_a_rollout_does_not_declare_is_its_own_error(workspace: Path) -> None:
    """Not ours, and not that of this environment: the end of its log says what is missing."""
    (workspace / "rollouts/demo/pyproject.toml").unlink()
    done = evaluated(workspace, "--isolated", "--plain")
    assert done.returncode == 1
    assert "ModuleNotFoundError: No module named 'tinydep'" in done.stderr


def test_what_cannot_be_installed_is_told_with_the_log(workspace: Path) -> None:
    project = workspace / "rollouts/demo/pyproject.toml"
    project.write_text('[project]\nname = "demo"\ndependencies = ["tinydep>=2"]\n')
    done = evaluated(workspace, "--isolated", "--plain")
    assert done.returncode == 1
    assert "tinydep" in done.stderr.partition("The log, ")[2]


@pytest.mark.parametrize(
    "flags", [("--driver", "in-process"), ("--server", "http://127.0.0.1:9")], ids=lambda f: f[0]
)
def test_it_is_for_a_process_of_its_own(workspace: Path, flags: tuple[str, str]) -> None:
    done = evaluated(workspace, "--isolated", *flags)
    assert done.returncode == 1
    assert "leave out --isolated, or take the driver 'process'" in done.stderr


def _read_all(terminal: int) -> bytes:
    found = b""
    try:
        while part := os.read(terminal, 4096):
            found += part
    except OSError:  # Linux ends a terminal that nobody holds so
        pass
    finally:
        os.close(terminal)
    return found
