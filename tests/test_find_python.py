"""The Makefile's Python: the newest that runs, wherever it is kept."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FIND_PYTHON = Path(__file__).parents[1] / "tools/find-python"
MINOR = sys.version_info.minor


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A PATH folder with what a shell script needs, and no Python."""
    folder = tmp_path / "tools"
    folder.mkdir()
    for name in ("ls", "sed", "sort", "tr"):
        (folder / name).symlink_to(str(shutil.which(name)))
    return folder


def test_one_on_the_path_is_found(tools: Path, tmp_path: Path) -> None:
    _write_python(tools / f"python3.{MINOR}")
    assert _runs(_find(f"{tools}", home=tmp_path))


def test_a_shim_that_does_not_run_is_not_picked(tools: Path, tmp_path: Path) -> None:
    """pyenv leaves such shims on PATH for each version that any of its roots has."""
    for minor in range(11, 15):
        _write_shim(tmp_path / f"shims/python3.{minor}")
    _write_python(tools / "python3")
    assert _runs(_find(f"{tmp_path}/shims:{tools}", home=tmp_path))


def test_one_under_a_pyenv_root_in_the_home_is_found(tools: Path, tmp_path: Path) -> None:
    _write_python(tmp_path / f".pyenv/versions/3.{MINOR}.9/bin/python")
    assert _runs(_find(f"{tools}", home=tmp_path))


def test_one_under_the_root_whose_shims_are_on_the_path_is_found(
    tools: Path, tmp_path: Path
) -> None:
    """Also where the home is another's, as in an empty environment."""
    _write_shim(tmp_path / f"elsewhere/shims/python3.{MINOR}")
    _write_python(tmp_path / f"elsewhere/versions/3.{MINOR}.9/bin/python")
    assert _runs(_find(f"{tmp_path}/elsewhere/shims:{tools}", home=tmp_path))


def test_one_that_uv_knows_is_found(tools: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept/python"
    _write_python(kept)
    _write_script(tools / "uv", f'[ "$2" = find ] && echo "{kept}"')
    assert _runs(_find(f"{tools}", home=tmp_path))


def test_none_says_what_to_do(tools: Path, tmp_path: Path) -> None:
    _write_shim(tools / "python3.14")
    with pytest.raises(subprocess.CalledProcessError) as caught:
        _find(f"{tools}", home=tmp_path)
    assert "make PYTHON=/path/to/python" in caught.value.stderr


def _find(path: str, *, home: Path) -> str:
    return subprocess.run(
        [FIND_PYTHON, "newest"],
        env={"PATH": path, "HOME": str(home)},
        capture_output=True,
        check=True,
        text=True,
    ).stdout.strip()


def _runs(python: str) -> bool:
    answer = subprocess.check_output([python, "-c", "import sys; print(sys.version)"], text=True)
    return answer.strip() == sys.version


def _write_python(target: Path) -> None:
    # A script, not a link: a linked interpreter would look for its library beside the link.
    _write_script(target, f'exec "{sys.executable}" "$@"')


def _write_shim(target: Path) -> None:
    _write_script(target, "echo command not found >&2; exit 127")


def _write_script(target: Path, text: str) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(f"#!/bin/sh\n{text}\n")
    target.chmod(0o755)
