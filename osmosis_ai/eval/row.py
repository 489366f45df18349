"""One row of a data set as rollouts get it, or why it cannot be used."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from osmosis_ai.errors import DatasetError
from osmosis_ai.eval.raw_row import RawRow
from osmosis_ai.rollout.types import Messages

SHOWN_FAULTS = 5
"""Faults named one by one; the rest is counted."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row as rollouts get it."""

    index: int
    """Its place in the file, counted from 0."""
    prompt: Messages
    label: str | None = None
    metadata: dict[str, Any] | None = None
    key: str = ""
    """Names its content, and which of the equal rows it is: the same in any file or order."""


class RowFault(Exception):
    """Why a row cannot be used: the column, if it is one, and what is wrong."""

    def __init__(self, message: str, *, column: str | None = None) -> None:
        super().__init__(message)
        self.column = column


def parse_row(index: int, raw: RawRow) -> Row:
    """The row that these columns make; raises RowFault where they make none."""
    if raw.fault is not None:
        raise RowFault(raw.fault)
    columns = raw.columns
    system, user = _text(columns, "system_prompt"), _text(columns, "user_prompt")
    label = _text(columns, "ground_truth") or _text(columns, "label")
    metadata = _metadata(columns)
    prompt = [
        {"role": role, "content": text}
        for role, text in (("system", system), ("user", user))
        if text is not None
    ]
    _check(columns, user=user, label=label, has_content=bool(prompt or metadata))
    return Row(index, prompt, label, metadata)


def digest_content(row: Row) -> str:
    """The same for the same prompt, label and metadata, whatever file they came from.

    Null members of objects do not count: tables cannot tell them from members that are not there.
    """
    # Escaped to ASCII: lone surrogates and NaN have a digest too.
    try:
        content = _CANONICAL.encode([row.prompt, row.label, _without_nulls(row.metadata)])
    except RecursionError:
        raise RowFault("is nested too deeply", column="metadata") from None
    return hashlib.sha256(content.encode()).hexdigest()[:32]


_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), default=str)


@dataclass(slots=True)
class RowFaults:
    """The first faults of a file, and how many there are."""

    path: Path
    first: list[str] = field(default_factory=list)
    count: int = 0

    def add(self, index: int, raw: RawRow, fault: RowFault) -> None:
        """Take note of one more."""
        self.count += 1
        if len(self.first) < SHOWN_FAULTS:
            where = f"row {index}" + (f" ({raw.where})" if raw.where else "")
            column = "" if fault.column is None else f", {fault.column}"
            self.first.append(f"  - {where}{column}: {fault}")

    def raise_any(self) -> None:
        """Raise DatasetError, with the file, where there are any."""
        if not self.count:
            return
        rows = "1 row cannot be used" if self.count == 1 else f"{self.count} rows cannot be used"
        lines = [f"{self.path}: {rows}:", *self.first]
        if self.count > SHOWN_FAULTS:
            lines.append(f"  ... (showing first {SHOWN_FAULTS} errors)")
        raise DatasetError("\n".join(lines))


def _check(
    columns: Mapping[str, Any], *, user: str | None, label: str | None, has_content: bool
) -> None:
    if "metadata" in columns:
        if not has_content:
            raise RowFault("is empty, and there is no prompt", column="metadata")
        return
    if user is None:
        raise _absent("user_prompt", columns)
    if label is None:
        raise _absent("ground_truth", columns)


def _absent(name: str, columns: Mapping[str, Any]) -> RowFault:
    if name in columns:
        return RowFault("is empty", column=name)
    return RowFault(f"is missing; the row has {', '.join(columns) or 'no columns'}", column=name)


def _text(columns: Mapping[str, Any], name: str) -> str | None:
    """A cell as text; None where it is absent or empty."""
    value = columns.get(name)
    if value is None or isinstance(value, str):
        return value or None
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)


def _metadata(columns: Mapping[str, Any]) -> dict[str, Any] | None:
    value = columns.get("metadata")
    if isinstance(value, str):
        value = _parse_metadata(value)
    if value is not None and not isinstance(value, dict):
        raise RowFault(f"must be an object, got {type(value).__name__}", column="metadata")
    return value or None


def _parse_metadata(text: str) -> Any:
    try:
        return json.loads(text) if text.strip() else None
    except (ValueError, RecursionError) as error:
        raise RowFault(f"is not a JSON object: {error}", column="metadata") from error


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(one) for name, one in value.items() if one is not None}
    return [_without_nulls(one) for one in value] if isinstance(value, list) else value
