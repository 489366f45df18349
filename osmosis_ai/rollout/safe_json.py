"""JSON that is always valid, whatever a user's code left in it.

`dump_json` writes ordinary data at the encoder's full speed. Only when something in it has no JSON
form (a lone surrogate, NaN, a foreign scalar, an over-large value, a cycle) the data is rebuilt,
and what had to change is named in `Safe.changes`.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, fields, is_dataclass
from datetime import date, datetime, time
from enum import Enum
from os import PathLike, fspath
from typing import Any, NamedTuple
from uuid import UUID

import orjson

MAX_DEPTH = 100
"""Nesting levels kept; deeper values become a text that says so. Encoders stop near 250."""

MAX_NAMED_CHANGES = 20
"""Changes named one by one; further ones are counted."""

_INT64_MIN, _UINT64_MAX = -(2**63), 2**64 - 1
_LEAVES = (str, int, float, bool, type(None))


class Safe(NamedTuple):
    """A value that any JSON encoder takes, and the places where it differs from the original."""

    value: Any
    changes: tuple[str, ...]


class SafeJson(NamedTuple):
    """The bytes of a JSON document, and the places where it differs from the original."""

    data: bytes
    changes: tuple[str, ...]


def dump_json(value: Any, *, indent: bool = False) -> SafeJson:
    """Encode a value as UTF-8 JSON; never fails for what a value holds."""
    layout = orjson.OPT_INDENT_2 if indent else 0
    try:
        data = orjson.dumps(value, option=orjson.OPT_PASSTHROUGH_DATACLASS | layout)
    except (TypeError, ValueError, RecursionError):
        safe, changes = make_safe(value)
        return SafeJson(orjson.dumps(safe, option=layout), changes)
    # The encoder writes NaN as null without a word, so a document with nulls is looked through.
    if b"null" in data and _has_non_finite(value):
        safe, changes = make_safe(value)
        return SafeJson(orjson.dumps(safe, option=layout), changes)
    return SafeJson(data, ())


def make_safe(value: Any, *, drop: bool = False) -> Safe:
    """Rebuild a value from plain JSON types.

    With `drop`, what has no JSON form is left out of its container, as metrics want it; otherwise
    a text stands in its place, as messages want it.
    """
    changes: list[str] = []
    rebuilt = _Rebuild(changes=changes, drop=drop, parents=set()).value(value, "", 0)
    if rebuilt is _DROPPED:
        rebuilt = None
    hidden = len(changes) - MAX_NAMED_CHANGES
    if hidden > 0:
        changes[MAX_NAMED_CHANGES:] = [f"and {hidden} more"]
    return Safe(rebuilt, tuple(changes))


def safe_text(text: str) -> str:
    """The text with each lone surrogate replaced by U+FFFD."""
    return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def _has_non_finite(value: Any) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, Mapping):
        return any(_has_non_finite(item) for item in value.values())
    if isinstance(value, list | tuple):
        return any(_has_non_finite(item) for item in value)
    return False


_DROPPED = object()


@dataclass(slots=True)
class _Rebuild:
    """One walk over a value: what changed so far, and the containers it is inside of."""

    changes: list[str]
    drop: bool
    parents: set[int]

    def value(self, item: Any, where: str, depth: int) -> Any:
        if isinstance(item, _LEAVES) and not isinstance(item, Enum):
            return self._leaf(item, where)
        if isinstance(item, Mapping | list | tuple | AbstractSet):
            return self._container(item, where, depth)
        return self._foreign(item, where, depth)

    def _leaf(self, item: Any, where: str) -> Any:
        if isinstance(item, str):
            return self._text(item, where)
        if isinstance(item, bool) or item is None:
            return item
        if isinstance(item, int):
            return self._integer(int(item), where)
        if math.isfinite(item):
            return float(item)
        return self._replaced(where, "a number that is not finite", repr(float(item)))

    def _text(self, item: str, where: str) -> str:
        try:
            item.encode()
        except UnicodeEncodeError:
            self._note(where, "a lone surrogate replaced")
            return safe_text(item)
        return str(item)

    def _integer(self, item: int, where: str) -> Any:
        if _INT64_MIN <= item <= _UINT64_MAX:
            return item
        return self._replaced(where, "an integer beyond 64 bits", _integer_text(item))

    def _container(self, item: Any, where: str, depth: int) -> Any:
        if id(item) in self.parents:
            return self._replaced(where, "a value that holds itself", "<cycle>")
        if depth >= MAX_DEPTH:
            return self._replaced(where, f"nested deeper than {MAX_DEPTH} levels", "<too deep>")
        self.parents.add(id(item))
        try:
            if isinstance(item, Mapping):
                return dict(self._pairs(item, where, depth))
            return list(self._items(item, where, depth))
        finally:
            self.parents.discard(id(item))

    def _pairs(self, item: Mapping[Any, Any], where: str, depth: int) -> Iterator[tuple[str, Any]]:
        for key, inner in item.items():
            name = self._key(key, where)
            if name is None:
                continue
            value = self.value(inner, f"{where}.{name}" if where else name, depth + 1)
            if value is not _DROPPED:
                yield name, value

    def _key(self, key: Any, where: str) -> str | None:
        if isinstance(key, str):
            return self._text(key, where)
        is_number = isinstance(key, numbers.Number) and not isinstance(key, bool)
        if self.drop and not is_number:
            self._note(where, f"a key of type {type(key).__name__} dropped")
            return None
        self._note(where, f"a key of type {type(key).__name__} became a text")
        return safe_text(_short(key))

    def _items(self, item: Any, where: str, depth: int) -> Iterator[Any]:
        if isinstance(item, AbstractSet):
            self._note(where, "a set became a list")
            item = sorted(item, key=_short)
        for index, inner in enumerate(item):
            value = self.value(inner, f"{where}[{index}]", depth + 1)
            if value is not _DROPPED:
                yield value

    def _foreign(self, item: Any, where: str, depth: int) -> Any:
        if isinstance(item, Enum):
            return self.value(item.value, where, depth + 1)
        plain = _plain_form(item)
        if plain is not _DROPPED:
            self._note(where, f"a {type(item).__name__} became a {type(plain).__name__}")
            return self.value(plain, where, depth + 1)
        return self._replaced(
            where,
            f"a {type(item).__name__} has no JSON form",
            f"<{type(item).__name__}>",
        )

    def _replaced(self, where: str, why: str, text: str) -> Any:
        self._note(where, why)
        return _DROPPED if self.drop else text

    def _note(self, where: str, what: str) -> None:
        self.changes.append(safe_text(f"{where or 'value'}: {what}"))


def _plain_form(item: Any) -> Any:
    """The plain value a foreign one stands for, or the mark that there is none."""
    # Broad: these are conversions that foreign types define, and any of them may raise anything.
    try:
        if isinstance(item, bytes | bytearray | memoryview):
            return bytes(item).decode("utf-8", "replace")
        if isinstance(item, datetime | date | time):
            return item.isoformat()
        if isinstance(item, UUID):
            return str(item)
        if isinstance(item, PathLike):
            return fspath(item)
        if hasattr(item, "tolist"):
            return item.tolist()
        if isinstance(item, numbers.Integral):
            return int(item)
        if hasattr(item, "model_dump"):
            return item.model_dump()
        if is_dataclass(item) and not isinstance(item, type):
            return {one.name: getattr(item, one.name) for one in fields(item)}
        if hasattr(item, "__float__"):
            return float(item)
    except Exception:
        return _DROPPED
    return _DROPPED


def _integer_text(item: int) -> str:
    # Python refuses to print integers of more than some thousands of digits.
    return str(item) if item.bit_length() <= 4096 else f"<integer of {item.bit_length()} bits>"


def _short(item: Any) -> str:
    # Broad: a foreign type's own repr may raise anything.
    try:
        return repr(item)[:80]
    except Exception:
        return f"<{type(item).__name__}>"
