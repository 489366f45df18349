"""One process at a time works on a run; the lock ends with the process, however it ends."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from osmosis_ai.errors import RunError


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that holds a lock, as it wrote itself down."""

    pid: int
    started: str | None
    """When it started, in the system's own words: ids are given out again."""


@contextmanager
def run_lock(path: Path) -> Iterator[None]:
    """Hold the lock file at `path`; raises RunError that names the process which holds it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror}") from error
    try:
        if not _take(lock, fcntl.LOCK_EX):
            holder = _parse(os.read(lock, _MAX_BYTES))
            raise RunError(
                f"run {path.stem!r} is in use by process {holder.pid if holder else 'unknown'}: "
                "wait for it, or end it with `osmosis eval stop` or Ctrl-C where it runs"
            )
        os.ftruncate(lock, 0)
        pid = os.getpid()
        os.pwrite(lock, f"{pid} {process_start(pid) or ''}\n".encode(), 0)
        yield
    finally:
        os.close(lock)


def lock_holder(path: Path, *, user_id: int | None = None) -> Holder | None:
    """The process that holds the lock now; None where nobody does, or nobody that says who.

    Raises RunError for a lock file that is not the user's: ours, unless `user_id` says whose.
    """
    if not is_locked(path):
        return None
    if path.stat().st_uid != (os.getuid() if user_id is None else user_id):
        raise RunError(f"{path} belongs to another user: the run is theirs to end")
    return _parse(path.read_bytes()[:_MAX_BYTES])


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock now."""
    try:
        lock = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        return not _take(lock, fcntl.LOCK_SH)
    finally:
        os.close(lock)


def process_start(pid: int) -> str | None:
    """When a process started, in the system's own words; None where that cannot be told."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return None
    # The name before it may hold blanks and brackets.
    return stat.rpartition(")")[2].split()[19]


_MAX_BYTES = 64


def _parse(content: bytes) -> Holder | None:
    pid, _, started = content.decode("ascii", "replace").strip().partition(" ")
    return Holder(int(pid), started or None) if pid.isdecimal() else None


def _take(lock: int, kind: int) -> bool:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
