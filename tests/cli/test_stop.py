"""`osmosis eval stop`: a run ends from another terminal, and only the run that is meant."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from osmosis_ai.cli.main import main
from osmosis_ai.errors import RunError
from osmosis_ai.eval.lock import lock_holder, process_start, run_lock
from osmosis_ai.eval.run_folder import read_run
from osmosis_ai.eval.stop import stop_run
from tests.eval.demo import make_demo

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    make_demo(tmp_path, "one", "stuck")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@contextmanager
def _stuck_run(workspace: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "osmosis_ai.cli.main", "eval", "run"]
    with subprocess.Popen(
        [*command, "configs/eval/demo.toml", "--max-in-flight", "1", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=workspace,
    ) as process:
        assert process.stderr is not None
        try:
            while "waiting" not in process.stderr.readline():
                assert process.poll() is None
            yield process
        finally:
            process.kill()


def test_a_run_that_is_stopped_ends_cleanly_and_keeps_what_it_has(
    workspace: Path, capsys: Capture
) -> None:
    with _stuck_run(workspace) as process:
        assert main(["eval", "stop", "demo", "--json"]) == 0
        assert process.wait(30) == 130
    document = json.loads(capsys.readouterr().out)
    assert (document["operation"], document["status"]) == ("eval.stop", "success")
    assert document["resource"]["state"] == "incomplete"
    assert document["message"].startswith("Stopped: 1 of 2 rollouts are done.")
    assert main(["eval", "stop", "demo", "--plain"]) == 0
    assert "Nobody works on it: 1 of 2 rollouts are done." in capsys.readouterr().out


def test_a_run_that_does_not_end_in_time_is_told(workspace: Path, capsys: Capture) -> None:
    with _stuck_run(workspace):
        assert main(["eval", "stop", "demo", "--patience", "0", "--json"]) == 1
    assert "still goes on after 0 s" in json.loads(capsys.readouterr().err)["error"]["message"]


@pytest.mark.parametrize("written", [f"{os.getpid()} 12\n", f"{os.getpid()}\n", "", "no process"])
def test_a_process_that_only_has_the_id_is_left_alone(workspace: Path, written: str) -> None:
    """Ids are given out again: the one that wrote the file started at another time."""
    assert main(["eval", "run", "configs/eval/demo.toml", "--rows", "0"]) == 0
    run = read_run(workspace / ".osmosis/evals/demo")
    with run.paths.lock.open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.truncate()
        lock.write(written)
        lock.flush()
        with pytest.raises(RunError, match="which process that is cannot be told"):
            stop_run(run, patience_sec=0)


def test_who_holds_a_lock_is_known_while_it_does(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    assert lock_holder(path) is None
    with run_lock(path):
        holder = lock_holder(path)
        assert holder is not None
        assert (holder.pid, holder.started) == (os.getpid(), process_start(os.getpid()))
    assert lock_holder(path) is None


def test_a_process_that_is_not_there_has_no_start() -> None:
    assert process_start(2**22 + 1) is None


def test_the_lock_file_of_another_user_is_not_believed(tmp_path: Path) -> None:
    """Whoever can write it could have us end any process of our own."""
    with (
        run_lock(tmp_path / "run.lock"),
        pytest.raises(RunError, match="belongs to another user"),
    ):
        lock_holder(tmp_path / "run.lock", user_id=os.getuid() + 1)
