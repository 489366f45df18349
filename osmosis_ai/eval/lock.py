"""One process at a time works on a run; the lock ends with the process, however it ends."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from osmosis_ai.errors import RunError


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
            holder = os.read(lock, 32).decode("ascii", "replace").strip()
            raise RunError(
                f"run {path.stem!r} is in use by process {holder or 'unknown'}: wait for it, or "
                "stop it with Ctrl-C where it runs"
            )
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(lock)


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


def _take(lock: int, kind: int) -> bool:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
