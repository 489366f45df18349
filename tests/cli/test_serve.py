"""`osmosis rollout serve` serves what a name or a path means."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

ENTRYPOINT = "import os\nprint('port', os.environ['_OSMOSIS_ROLLOUT_PORT'])\nimport beside\n"


def osmosis(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "osmosis_ai.cli.main", "rollout", "serve", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


@pytest.fixture
def rollout(tmp_path: Path) -> Path:
    folder = tmp_path / "rollouts/demo"
    folder.mkdir(parents=True)
    (folder / "main.py").write_text(ENTRYPOINT)
    (folder / "beside.py").write_text("raise SystemExit(7)")
    return folder


def test_a_name_means_the_rollout_of_the_workspace(rollout: Path) -> None:
    """And its own modules are found."""
    done = osmosis("demo", "--port", "8123", cwd=rollout.parents[1])
    assert (done.returncode, done.stdout) == (7, "port 8123\n")


def test_a_path_means_the_file_also_outside_a_workspace(rollout: Path, tmp_path: Path) -> None:
    (tmp_path / "rollouts").rename(tmp_path / "elsewhere")
    done = osmosis(tmp_path / "elsewhere/demo/main.py", cwd=Path("/"))
    assert (done.returncode, done.stdout) == (7, "port 8000\n")


def test_a_port_in_use_is_one_sentence(rollout: Path) -> None:
    (rollout / "main.py").write_text("app = object()\n")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = osmosis("demo", "--port", str(port), cwd=rollout)
    assert done.returncode == 1
    assert done.stderr == (
        f"Error: cannot listen at 127.0.0.1:{port}: Address already in use; choose another port "
        "with --port\n"
    )


def test_a_misspelt_rollout_is_known(rollout: Path) -> None:
    assert "; did you mean 'demo'?" in osmosis("dmo", cwd=rollout).stderr


def test_what_is_neither_is_said(rollout: Path) -> None:
    done = osmosis("nothing", cwd=rollout)
    assert done.returncode == 1
    assert "nothing is no file, and there is no" in done.stderr
