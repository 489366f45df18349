"""What users' code prints while a run is going on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from osmosis_ai.cli.capture import captured_prints

Capture = pytest.CaptureFixture[str]


def test_prints_go_to_stderr_and_stdout_comes_back(capfd: Capture) -> None:
    before = sys.stdout
    with captured_prints():
        print("one", end=" ")
        sys.stdout.writelines(["two", "\n"])
        subprocess.run(["echo", "three"], check=True)
        assert sys.stdout.encoding == sys.stderr.encoding
    print("four")
    assert sys.stdout is before
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("four\n", "one two\nthree\n")


def test_prints_are_kept_in_the_log_from_when_there_is_one(tmp_path: Path, capfd: Capture) -> None:
    log = tmp_path / "server.log"
    with captured_prints() as capture:
        print("early")
        capture.log_to(log)
        print("late \ud800")
        subprocess.run(["echo", "child"], check=True)
    assert log.read_text() == "late \\ud800\nchild\n"
    assert "early" in capfd.readouterr().err


def test_a_log_on_a_full_disk_does_not_fail_a_print(capfd: Capture) -> None:
    """The print is a rollout's, and the rollout did nothing wrong."""
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full here")
    with captured_prints() as capture:
        capture.log_to(Path("/dev/full"))
        print("one")
        print("two")
    assert capfd.readouterr().err == "one\ntwo\n"


def test_a_debugger_gets_stdout_back(capfd: Capture) -> None:
    with captured_prints() as capture:
        capture.pause()
        print("to the terminal", flush=True)
        os.write(1, b"as bytes\n")
        capture.resume()
        print("captured")
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("to the terminal\nas bytes\n", "captured\n")
