"""Cells of an Arrow table as they would stand in a line of JSON: the same rows, the same items."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from osmosis_ai.eval.raw_row import RawRow


def plain_row(columns: Mapping[str, Any]) -> RawRow:
    """A row of a table.

    All objects in a column have the same members there: what a row did not have is null, so null
    members are left out. Bytes are read as text.
    """
    try:
        return RawRow("", {name: _plain(value) for name, value in columns.items()})
    except UnicodeDecodeError as error:
        return RawRow("", {}, fault=f"has bytes that are no UTF-8 text: {error.reason}")


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value.decode() if isinstance(value, bytes) else value
