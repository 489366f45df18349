"""Environments of rollouts: made once, with our wheel, and nothing left where that fails."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from osmosis_ai import __build__
from osmosis_ai.environment import Isolation, find_uv, make_environment, outside_variables
from osmosis_ai.errors import ConfigError
from osmosis_ai.packaging import MARKER_CODE
from tests.wheelhouse import write_wheel

TOOLS = [
    pytest.param(
        find_uv(), id="uv", marks=pytest.mark.skipif(find_uv() is None, reason="uv is absent")
    ),
    pytest.param(None, id="venv and pip"),
]


@pytest.fixture
def rollout(tmp_path: Path, offline: Path) -> Path:
    """A rollout that declares one package, which lies in a folder."""
    write_wheel(offline, "tinydep", "1.5", {"tinydep.py": "VALUE = 15\n"})
    folder = tmp_path / "rollouts" / "demo"
    folder.mkdir(parents=True)
    declare(folder, "tinydep>=1", "osmosis-ai[server]>=0.3.0rc1,<0.4")
    return folder


def declare(rollout: Path, *requirements: str) -> None:
    project = f'[project]\nname = "demo"\ndependencies = {list(requirements)!r}\n'
    (rollout / "pyproject.toml").write_text(project)


def isolation(
    tmp_path: Path, *, uv: str | None = find_uv(), steps: list[str] | None = None
) -> Isolation:
    return Isolation(tmp_path / "environments", (steps if steps is not None else []).append, uv)


def run(python: Path, code: str) -> str:
    done = subprocess.run([python, "-I", "-c", code], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def put_another(file: Path) -> None:
    # Not written in place: uv links it to its cache.
    file.unlink()
    file.write_text("__version__ = '0.3.8'\n")


def left_in(tmp_path: Path) -> set[str]:
    return {path.suffix or path.name for path in (tmp_path / "environments").iterdir()}


@pytest.mark.parametrize("uv", TOOLS)
async def test_it_holds_what_is_declared_and_our_wheel(
    rollout: Path, tmp_path: Path, uv: str | None
) -> None:
    """Offline, from a folder: what asks for osmosis-ai by its name gets ours all the same."""
    steps: list[str] = []
    python = await make_environment(rollout, isolation(tmp_path, uv=uv, steps=steps))
    assert run(python, "import tinydep; print(tinydep.VALUE)") == "15"
    assert run(python, MARKER_CODE) == __build__
    assert run(python, "import osmosis_ai.rollout.server") == ""
    assert [step.split()[0] for step in steps] == ["making", "installing"]
    assert "what 'demo' declares: tinydep>=1" in steps[1]


async def test_it_is_made_once_for_what_it_is_made_from(rollout: Path, tmp_path: Path) -> None:
    steps: list[str] = []
    first = await make_environment(rollout, isolation(tmp_path, steps=steps))
    assert await make_environment(rollout, isolation(tmp_path, steps=steps)) == first
    assert len(steps) == 2
    (rollout / "requirements.txt").write_text("tinydep==1.5\n")
    assert await make_environment(rollout, isolation(tmp_path, steps=steps)) != first
    assert "-r, requirements.txt" in steps[-1]


async def test_two_runs_at_once_make_it_once(rollout: Path, tmp_path: Path) -> None:
    first, second = list[str](), list[str]()
    pythons = await asyncio.gather(
        make_environment(rollout, isolation(tmp_path, steps=first)),
        make_environment(rollout, isolation(tmp_path, steps=second)),
    )
    assert pythons[0] == pythons[1]
    assert len(first) == 2
    assert [step.split(",")[0] for step in second] == ["waiting for another run"]


async def test_one_that_is_not_whole_or_not_ours_is_made_anew(
    rollout: Path, tmp_path: Path
) -> None:
    """Its maker was killed; its Python was upgraded away; somebody installed another's package."""
    steps: list[str] = []
    python = await make_environment(rollout, isolation(tmp_path, steps=steps))
    folder = python.parents[1]
    [ours] = folder.glob("lib/python*/site-packages/osmosis_ai/__init__.py")
    for spoil in ((folder / "complete").unlink, python.unlink, lambda: put_another(ours)):
        spoil()
        assert await make_environment(rollout, isolation(tmp_path, steps=steps)) == python
        assert run(python, MARKER_CODE) == __build__
    assert len(steps) == 8


@pytest.mark.parametrize("uv", TOOLS)
async def test_what_cannot_be_had_is_told_with_the_log(
    rollout: Path, tmp_path: Path, uv: str | None
) -> None:
    declare(rollout, "tinydep>=2")
    with pytest.raises(ConfigError, match=r"(?s)rollouts/demo cannot be made.*tinydep") as caught:
        await make_environment(rollout, isolation(tmp_path, uv=uv))
    assert ".log, ends:" in str(caught.value)
    assert left_in(tmp_path) == {".log", ".lock"}


async def test_another_python_is_looked_for_by_uv(rollout: Path, tmp_path: Path) -> None:
    (rollout / "pyproject.toml").write_text('[project]\nrequires-python = ">=3.99"\n')
    tool = tmp_path / "uv"
    tool.write_text('#!/bin/sh\necho "$@"\nexit 1\n')
    tool.chmod(0o755)
    with pytest.raises(ConfigError, match=r"venv --no-project --python >=3\.99"):
        await make_environment(rollout, isolation(tmp_path, uv=str(tool)))
    with pytest.raises(ConfigError, match=r"asks for Python >=3\.99, and this is .* install uv"):
        await make_environment(rollout, isolation(tmp_path, uv=None))


async def test_a_version_of_ours_that_is_not_this_one_is_told(
    rollout: Path, tmp_path: Path
) -> None:
    """The registry's package would meet it, and is not taken for it."""
    declare(rollout, "osmosis-ai>=0.4")
    with pytest.raises(ConfigError, match="osmosis-ai"):
        await make_environment(rollout, isolation(tmp_path))


async def test_another_projects_package_is_refused(rollout: Path, tmp_path: Path) -> None:
    other = {"osmosis_ai/__init__.py": "__version__ = '0.3.8'\n"}
    (tmp_path / "other").mkdir()
    wheel = write_wheel(tmp_path / "other", "osmosis_ai", "0.3.8", other)
    with pytest.raises(ConfigError, match="another project's osmosis-ai"):
        await make_environment(rollout, isolation(tmp_path), wheel=wheel)
    assert left_in(tmp_path) == {".log", ".lock"}


async def test_a_cancelled_run_leaves_no_half_of_one(rollout: Path, tmp_path: Path) -> None:
    """The tool ends with all it has started, and the next run finds the lock free."""
    told = tmp_path / "told"
    os.mkfifo(told)
    tool = tmp_path / "uv"
    tool.write_text(f'#!/bin/sh\nfor last; do :; done\nmkdir "$last"\necho up >{told}\nsleep 60\n')
    tool.chmod(0o755)
    making = asyncio.create_task(make_environment(rollout, isolation(tmp_path, uv=str(tool))))
    assert await asyncio.to_thread(told.read_text) == "up\n"
    making.cancel()
    with pytest.raises(asyncio.CancelledError):
        await making
    assert left_in(tmp_path) == {".log", ".lock"}
    await make_environment(rollout, isolation(tmp_path))


async def test_a_folder_that_cannot_be_written_is_one_sentence(
    rollout: Path, tmp_path: Path
) -> None:
    (tmp_path / "environments").touch()
    with pytest.raises(ConfigError, match=r"cannot be made in .*environments: .*exists"):
        await make_environment(rollout, isolation(tmp_path))


KILLED = """
import asyncio, sys
from pathlib import Path
from osmosis_ai.environment import Isolation, make_environment
rollout, root, uv = sys.argv[1:]
asyncio.run(make_environment(Path(rollout), Isolation(Path(root), print, uv)))
"""


async def test_the_tool_of_a_killed_run_is_waited_for(rollout: Path, tmp_path: Path) -> None:
    """It writes into the folder still: nobody else may, before it has ended."""
    told, go_on = tmp_path / "told", tmp_path / "go-on"
    os.mkfifo(told)
    os.mkfifo(go_on)
    tool = tmp_path / "uv"
    tool.write_text(f"#!/bin/sh\necho up >{told}\nread line <{go_on}\n")
    tool.chmod(0o755)
    root = tmp_path / "environments"
    command = [sys.executable, "-c", KILLED, str(rollout), str(root), str(tool)]
    maker = await asyncio.create_subprocess_exec(*command, stdout=subprocess.DEVNULL)
    assert await asyncio.to_thread(told.read_text) == "up\n"
    maker.kill()
    await maker.wait()
    waiting = asyncio.Event()

    def on_step(step: str) -> None:
        if step.startswith("waiting"):
            waiting.set()

    making = asyncio.create_task(make_environment(rollout, Isolation(root, on_step)))
    await asyncio.wait_for(waiting.wait(), 60)
    await asyncio.to_thread(go_on.write_text, "go on\n")
    assert run(await making, MARKER_CODE) == __build__


def test_uv_is_found_on_the_path_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    beside = Path(sys.executable).with_name("uv")
    assert find_uv() == (str(beside) if beside.is_file() else None)
    (tmp_path / "uv").write_text("#!/bin/sh\n")
    (tmp_path / "uv").chmod(0o755)
    assert find_uv() == shutil.which("uv") == str(tmp_path / "uv")


def test_nothing_of_this_environment_reaches_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    monkeypatch.setenv("SEARCH_URL", "http://127.0.0.1")
    found = outside_variables()
    assert "PYTHONPATH" not in found
    assert found["SEARCH_URL"] == "http://127.0.0.1"
