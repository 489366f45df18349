"""An environment of a rollout's own: what it declares, and our wheel; made once and kept.

Its name is a digest of what it is made from. Whoever wants the same one meanwhile waits for it, and
one that cannot be made leaves nothing but its log.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import platform
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from osmosis_ai.declaration import meets, read_declaration
from osmosis_ai.errors import ConfigError
from osmosis_ai.log_file import LogSink
from osmosis_ai.packaging import check_is_ours, sdk_wheel


def find_uv() -> str | None:
    """The program `uv`: on the path, or beside the interpreter that runs."""
    beside = Path(sys.executable).with_name("uv")
    return shutil.which("uv") or (str(beside) if beside.is_file() else None)


@dataclass(frozen=True, slots=True)
class Isolation:
    """Where environments are kept, and how they are made."""

    root: Path
    """Each has a folder below it."""
    on_step: Callable[[str], None]
    """Is told what is being done: it may take minutes."""
    uv: str | None = field(default_factory=find_uv)
    """The program; with None they are made with venv and pip."""


async def make_environment(
    rollout_dir: Path, isolation: Isolation, *, wheel: Path | None = None
) -> Path:
    """The interpreter of a rollout's environment, which is made where it is not there yet.

    It holds what `pyproject.toml` and `requirements.txt` of the rollout declare, and our wheel with
    its extra `server`. Raises ConfigError with the end of the log where it cannot be made, or would
    hold another project's osmosis-ai.
    """
    recipe = _read_recipe(rollout_dir, (wheel or sdk_wheel()).absolute(), isolation.uv)
    place = _Place(isolation.root.absolute() / recipe.digest)
    try:
        place.folder.parent.mkdir(parents=True, exist_ok=True)
        async with _lock(place, isolation) as lock:
            if not await asyncio.to_thread(place.is_usable):
                await _make(recipe, place, lock, isolation)
    except OSError as error:
        raise ConfigError(
            f"the environment of {rollout_dir} cannot be made in {isolation.root}: {error}"
        ) from error
    return place.python


@dataclass(frozen=True, slots=True)
class _Recipe:
    """What an environment is made from, and with what."""

    rollout_dir: Path
    wheel: Path
    python: str
    """An interpreter, or what one must be."""
    requirements: tuple[str, ...]
    uv: str | None
    digest: str

    @property
    def tool(self) -> str:
        return "venv and pip" if self.uv is None else "uv"

    def commands(self, place: _Place) -> Iterator[tuple[str, Sequence[str]]]:
        """Each with what it does."""
        folder, python = str(place.folder), str(place.python)
        if self.uv is None:
            yield f"making {folder} with venv", [self.python, "-m", "venv", folder]
            install = [python, "-m", "pip", "install", "--no-input", "--disable-pip-version-check"]
        else:
            create = [self.uv, "venv", "--no-project", "--python", self.python, folder]
            yield f"making {folder} with uv", create
            install = [self.uv, "pip", "install", "--python", python]
        # By its path: the registry's package of this name is another project's.
        ours = f"osmosis-ai[server] @ {self.wheel.as_uri()}"
        declared = f"what {self.rollout_dir.name!r} declares: {', '.join(self.requirements) or '-'}"
        yield f"installing osmosis-ai, and {declared}", [*install, ours, *self.requirements]


def _read_recipe(rollout_dir: Path, wheel: Path, uv: str | None) -> _Recipe:
    declared = read_declaration(rollout_dir)
    python = _choose_python(rollout_dir, declared.python, uv)
    requirements = declared.requirements
    if (rollout_dir / "requirements.txt").is_file():
        requirements += ("-r", "requirements.txt")
    made_from = (sys.version, sys.base_prefix, declared.python, requirements)
    whole = hashlib.sha256(repr(made_from).encode())
    for file in [wheel, *sorted(rollout_dir.glob("requirements*.txt"))]:
        whole.update(hashlib.sha256(file.read_bytes()).digest())
    return _Recipe(rollout_dir, wheel, python, requirements, uv, whole.hexdigest()[:16])


def _choose_python(rollout_dir: Path, asked_for: str, uv: str | None) -> str:
    """The one that runs, unless the rollout asks for another: uv finds that."""
    version = platform.python_version()
    if meets(version, asked_for):
        return sys.executable
    if uv is None:
        raise ConfigError(
            f"{rollout_dir / 'pyproject.toml'} asks for Python {asked_for}, and this is {version}: "
            "run osmosis with that Python, or install uv, which finds it"
        )
    return asked_for


@dataclass(frozen=True, slots=True)
class _Place:
    """Where an environment lies, and what belongs to it beside it."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def mark(self) -> Path:
        """Is there when all the rest is."""
        return self.folder / "complete"

    @property
    def log(self) -> Path:
        return self.folder.with_suffix(".log")

    @property
    def lock(self) -> Path:
        return self.folder.with_suffix(".lock")

    def is_usable(self) -> bool:
        """Whether it is whole; one whose Python is gone, or that was tampered with, is not."""
        try:
            if self.mark.exists():
                check_is_ours(self.python)
                return True
        except ConfigError:
            return False
        return False


async def _make(recipe: _Recipe, place: _Place, lock: int, isolation: Isolation) -> None:
    """Make it anew; whatever ends this early, half an environment is not left."""
    place.log.write_bytes(b"")
    shutil.rmtree(place.folder, ignore_errors=True)
    try:
        for step, command in recipe.commands(place):
            isolation.on_step(step)
            await _run(command, recipe, place, lock)
        await asyncio.to_thread(check_is_ours, place.python)
        place.mark.touch()
    finally:
        if not place.mark.exists():
            shutil.rmtree(place.folder, ignore_errors=True)


async def _run(command: Sequence[str], recipe: _Recipe, place: _Place, lock: int) -> None:
    log = LogSink(place.log)
    with log.writable() as output:
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=recipe.rollout_dir,
            env=outside_variables(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            # It holds the lock too: one that outlives us must not write into what another makes.
            pass_fds=[lock],
            start_new_session=True,
        )
    try:
        code = await process.wait()
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    if code:
        raise ConfigError(
            f"the environment of {recipe.rollout_dir} cannot be made with {recipe.tool}. The log, "
            f"{log.path}, ends:\n{log.last_words()}"
        )


def outside_variables() -> dict[str, str]:
    """The variables for a program of another environment: without what points into this one."""
    ours = ("VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME")
    return {name: value for name, value in os.environ.items() if name not in ours}


_POLL_SEC = 0.2


@asynccontextmanager
async def _lock(place: _Place, isolation: Isolation) -> AsyncIterator[int]:
    lock = os.open(place.lock, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        if not _take(lock):
            isolation.on_step(f"waiting for another run, which makes {place.folder}")
            # Another process holds it: no event of ours tells when it lets go.
            while not _take(lock):  # noqa: ASYNC110
                await asyncio.sleep(_POLL_SEC)
        yield lock
    finally:
        os.close(lock)


def _take(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
