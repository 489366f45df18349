"""A row as its file has it, before anybody asked whether it can be used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class RawRow:
    """One row of a file: its columns, or why they cannot be read."""

    where: str
    """Where people find it: `line 7`, or empty where the index says it all."""
    columns: dict[str, Any]
    fault: str | None = None
