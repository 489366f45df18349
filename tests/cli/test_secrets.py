"""Secrets come from a file, the environment or a prompt, and stay out of every file and message."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from osmosis_ai.cli.main import main
from osmosis_ai.cli.mode import Mode
from osmosis_ai.cli.secrets import parse_secrets, secrets_set
from osmosis_ai.errors import ConfigError
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
    assert main(["eval", "run", CONFIG_PATH, "--plain"]) == 1
    assert "DEMO_KEY" in capsys.readouterr().err
    (workspace / "keys").write_text("DEMO_KEY=hunter2\n")
    assert main(["eval", "run", CONFIG_PATH, "--secrets-file", "keys"]) == 0
    files = [path for path in (workspace / ".osmosis").rglob("*") if path.is_file()]
    assert files
    assert not any(b"hunter2" in path.read_bytes() for path in files)


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
