"""A log that other programs write: without secrets, and its end is what an error shows."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from osmosis_ai.redaction import hides_something, redact

_TAIL_LINES = 20
_TAIL_BYTES = 8192
_PATIENCE_SEC = 2.0


def last_words(log: Path, *, since: int = 0) -> str:
    """The last lines of a file, however long it is, of those behind the first `since` bytes."""
    with log.open("rb") as file:
        file.seek(max(since, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
        lines = file.read().decode("utf-8", "replace").splitlines()
    return "\n".join(lines[-_TAIL_LINES:])


class LogSink:
    """What a program is given as its stdout: the file, or a pipe where secrets are to be hidden."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # What an earlier program said there is no news of this one.
        self._since = path.stat().st_size if path.exists() else 0
        self._reader: threading.Thread | None = None

    @contextmanager
    def writable(self) -> Iterator[int]:
        """A descriptor for programs that are started meanwhile."""
        if not hides_something():
            with self.path.open("ab") as file:
                yield file.fileno()
            return
        ours, theirs = os.pipe()
        copying = (os.fdopen(ours, "rb"), self.path.open("ab", buffering=0))
        self._reader = threading.Thread(target=_copy, args=copying, daemon=True)
        self._reader.start()
        try:
            yield theirs
        finally:
            os.close(theirs)

    def last_words(self) -> str:
        """The last lines of programs that have ended."""
        if self._reader is not None:
            # What they left running may hold the pipe open, and is not waited for.
            self._reader.join(_PATIENCE_SEC)
        return last_words(self.path, since=self._since)


def _copy(source: IO[bytes], log: IO[bytes]) -> None:
    with source, log:
        for line in source:
            shown = redact(line.decode("utf-8", "surrogateescape"))
            # A full disk costs a line, and must not make the program wait for a reader.
            with suppress(OSError):
                log.write(shown.encode("utf-8", "surrogateescape"))
