"""The end of a log, which an error shows because it holds the reason."""

from __future__ import annotations

import os
from pathlib import Path

_TAIL_LINES = 20
_TAIL_BYTES = 8192


def last_words(log: Path) -> str:
    """The last lines of a file, however long it is."""
    with log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
        lines = file.read().decode("utf-8", "replace").splitlines()
    return "\n".join(lines[-_TAIL_LINES:])
