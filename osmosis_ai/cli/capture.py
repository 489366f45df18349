"""What users' code prints: on stderr and in the run's log, never among our own output."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, TextIO, cast

from osmosis_ai.redaction import redact

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


CHILD_PATIENCE_SEC = 1.0
"""How long the last words of child processes are waited for."""


@contextmanager
def captured_prints() -> Iterator[Capture]:
    """Send what is printed to stderr, that of child processes and of C code included."""
    ours, theirs = os.pipe()
    with ExitStack() as log:
        capture = Capture(descriptor=theirs, log=log)
        reader = threading.Thread(target=_pass_on, args=(ours, capture), daemon=True)
        reader.start()
        capture.resume()
        try:
            yield capture
        finally:
            capture.close()
            # A child that lives on keeps its end open, and is not waited for.
            reader.join(CHILD_PATIENCE_SEC)


def _pass_on(descriptor: int, capture: Capture) -> None:
    with open(descriptor, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            capture.write(line)


class Capture:
    """The way prints go while users' code runs."""

    def __init__(self, *, descriptor: int, log: ExitStack) -> None:
        self._descriptor = descriptor
        self._terminal = os.dup(1)
        self._stdout = sys.stdout
        self._open_log = log
        self._log: IO[str] | None = None

    def resume(self) -> None:
        """Send prints to stderr."""
        self._stdout.flush()
        os.dup2(self._descriptor, 1)
        sys.stdout = cast(TextIO, _Stdout(self))

    def pause(self) -> None:
        """Let prints go to stdout as if nobody captured them: a debugger wants the terminal."""
        sys.stdout = self._stdout
        os.dup2(self._terminal, 1)

    def close(self) -> None:
        """Give stdout back."""
        self.pause()
        os.close(self._terminal)
        os.close(self._descriptor)

    def write(self, text: str) -> None:
        """Pass on what was printed, without secrets."""
        text = redact(text)
        # Looked up each time: a progress bar puts a stream of its own in the place of stderr.
        sys.stderr.write(text)
        if self._log is not None:
            try:
                self._log.write(text)
            except OSError:
                # A full disk must not fail the rollout that prints.
                self._log = None

    def log_to(self, path: Path) -> None:
        """Keep prints and log messages in a file too, from now on."""
        self._log = self._open_log.enter_context(_log_file(path))


@contextmanager
def _log_file(path: Path) -> Iterator[IO[str]]:
    log = path.open("a", encoding="utf-8", errors="backslashreplace", buffering=1)
    handler = logging.StreamHandler(log)
    handler.setFormatter(_Formatter(LOG_FORMAT))
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(min(level, logging.INFO))
    try:
        yield log
    finally:
        root.setLevel(level)
        root.removeHandler(handler)
        # What a full disk did not take is lost, and nothing but this log with it.
        with suppress(OSError):
            log.close()


class _Formatter(logging.Formatter):
    """Leaves secrets out, those in a traceback too."""

    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record))


class _Stdout:
    """Stands in for `sys.stdout`: what it does not know, such as `encoding`, is stderr's."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture

    def write(self, text: str) -> int:
        self._capture.write(text)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self._capture.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stderr, name)
