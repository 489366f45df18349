"""JSON that is always valid, whatever a user's code left in it.

`dump_json` writes ordinary data at the encoder's full speed. Only when something in it has no JSON
form (a lone surrogate, NaN, a foreign scalar, an over-large value, a cycle) the data is rebuilt,
and what had to change is named in `Safe.changes`. Tuples, other sequences and mappings, enums,
dates and UUIDs have an ordinary form and are not named.
"""

from __future__ import annotations

import json
import math
import numbers
from collections import UserString
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import date, datetime, time
from enum import Enum
from os import PathLike, fspath
from typing import Any, NamedTuple, SupportsFloat
from uuid import UUID

import orjson

MAX_DEPTH = 100
"""Nesting levels kept; deeper values become a text that says so. Encoders stop near 250."""

MAX_OBJECTS = 10_000
"""Objects whose fields are read, per value: objects that know each other make endless paths."""

MAX_NAMED_CHANGES = 20
"""Changes named one by one; further ones are counted."""

# Dates are written by `isoformat`, which keeps the seconds of an offset.
_PASS_ON = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME
_INT64_MIN, _UINT64_MAX = -(2**63), 2**64 - 1


class Safe(NamedTuple):
    """A value that any JSON encoder takes, and the places where it differs from the original."""

    value: Any
    changes: tuple[str, ...]


class SafeJson(NamedTuple):
    """The bytes of a JSON document, and the places where it differs from the original."""

    data: bytes
    changes: tuple[str, ...]


def load_json(data: bytes) -> Any:
    """The value of a JSON text; raises ValueError where it is none.

    Lone surrogates and NaN, which Python's own encoder writes, are taken as they are.
    """
    try:
        return orjson.loads(data)
    except ValueError:
        pass
    try:
        return json.loads(data.decode())
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def dump_json(value: Any, *, indent: bool = False, at: str = "") -> SafeJson:
    """Encode a value as UTF-8 JSON; never fails for what a value holds.

    `at` is what the changes call the value: `messages` makes `messages[0].content: …`.
    """
    layout = orjson.OPT_INDENT_2 if indent else 0
    try:
        data = orjson.dumps(value, option=_PASS_ON | layout)
        # It writes NaN as null without a word, so a document with nulls is looked through.
        if b"null" not in data or not _has_non_finite(value):
            return SafeJson(data, ())
    except Exception:  # enums, dates and time zones of a foreign type may raise anything
        pass
    safe, changes = make_safe(value, at=at)
    return SafeJson(orjson.dumps(safe, option=layout), changes)


def make_safe(value: Any, *, drop: bool = False, at: str = "") -> Safe:
    """Rebuild a value from plain JSON types; never fails.

    With `drop`, what has no JSON form is left out of its container, as metrics want it; otherwise
    a text stands in its place, as messages want it.
    """
    walk = _Rebuild(drop)
    rebuilt = walk.value(value, at, 0)
    more = [f"and {walk.unnamed} more"] if walk.unnamed else []
    return Safe(None if rebuilt is _NO_FORM else rebuilt, (*walk.changes, *more))


def safe_text(text: str) -> str:
    """The text with each lone surrogate replaced by U+FFFD, and each pair by what it stands for."""
    if _is_valid(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _has_non_finite(value: Any) -> bool:
    """Whether a number in a value that the encoder took is NaN or infinite."""
    pending = [value]
    for item in pending:  # grows while it is read
        if isinstance(item, float):
            if not math.isfinite(item):
                return True
        elif isinstance(item, dict):
            pending.extend(item.values())
        elif isinstance(item, list | tuple):
            pending.extend(item)
        elif isinstance(item, Enum):
            pending.append(item.value)
    return False


_NO_FORM: Any = object()
"""Stands for a value that has no JSON form."""

_PLAIN_DATES = frozenset({datetime, date, time, UUID})
_TEXTS = (bytes, bytearray, memoryview, UserString)


@dataclass(slots=True)
class _Rebuild:
    """One walk over a value: what changed so far, and the values it is inside of."""

    drop: bool
    changes: list[str] = field(default_factory=list[str])
    unnamed: int = 0
    parents: set[int] = field(default_factory=set[int])
    objects: int = 0

    def value(self, item: Any, where: str, depth: int) -> Any:
        try:
            if isinstance(item, Enum):
                return self.value(item.value, where, depth)
            if item is None or isinstance(item, str | int | float):
                return self._leaf(item, where)
            if type(item) in _PLAIN_DATES:
                return _date_text(item)
            return self._nested(item, where, depth)
        except Exception as exc:
            # isinstance, iteration and conversion all run code that foreign types define
            return self._replaced(
                where,
                f"reading a {type(item).__name__} raised {type(exc).__name__}",
                f"<{type(item).__name__}>",
            )

    # Subclasses may override every conversion, so the base types' own are called.
    def _leaf(self, item: Any, where: str) -> Any:
        if isinstance(item, str):
            return self._text(item, where)
        if item is None or isinstance(item, bool):
            return item
        if isinstance(item, int):
            return self._integer(int.__int__(item), where)
        number = float.__float__(item)
        if math.isfinite(number):
            return number
        return self._replaced(where, "a number that is not finite", repr(number))

    def _text(self, item: str, where: str) -> str:
        text = str.__str__(item)
        if _is_valid(text):
            return text
        self._note(where, "a lone surrogate replaced")
        return safe_text(text)

    def _integer(self, item: int, where: str) -> Any:
        if _INT64_MIN <= item <= _UINT64_MAX:
            return item
        return self._replaced(where, "an integer beyond 64 bits", _integer_text(item))

    def _nested(self, item: Any, where: str, depth: int) -> Any:
        if id(item) in self.parents:
            return self._replaced(where, "a value that holds itself", "<cycle>")
        if depth >= MAX_DEPTH:
            return self._replaced(where, f"nested deeper than {MAX_DEPTH} levels", "<too deep>")
        self.parents.add(id(item))
        try:
            if isinstance(item, Mapping):
                return self._mapping(item, where, depth)
            if isinstance(item, AbstractSet):
                self._note(where, "a set became a list")
                return self._list(sorted(item, key=_short), where, depth)
            if isinstance(item, Sequence) and not isinstance(item, _TEXTS):
                return self._list(item, where, depth)
            return self._foreign(item, where, depth)
        finally:
            self.parents.discard(id(item))

    def _mapping(self, item: Mapping[Any, Any], where: str, depth: int) -> dict[str, Any]:
        rebuilt: dict[str, Any] = {}
        for key, inner in item.items():
            name = self._key(key, where)
            if name is None:
                continue
            if name in rebuilt:
                self._note(where, "of two keys with the same text the later was kept")
            value = self.value(inner, f"{where}.{name}" if where else name, depth + 1)
            if value is not _NO_FORM:
                rebuilt[name] = value
        return rebuilt

    def _key(self, key: Any, where: str) -> str | None:
        if isinstance(key, Enum):
            key = key.value
        if isinstance(key, str):
            return self._text(key, where)
        is_number = isinstance(key, numbers.Number) and not isinstance(key, bool)
        if self.drop and not is_number:
            self._note(where, f"a key of type {type(key).__name__} dropped")
            return None
        self._note(where, f"a key of type {type(key).__name__} became a text")
        return safe_text(_key_text(key))

    def _list(self, items: Iterable[Any], where: str, depth: int) -> list[Any]:
        rebuilt: list[Any] = []
        for index, inner in enumerate(items):
            value = self.value(inner, f"{where}[{index}]", depth + 1)
            if value is not _NO_FORM:
                rebuilt.append(value)
        return rebuilt

    def _foreign(self, item: Any, where: str, depth: int) -> Any:
        name = type(item).__name__
        plain = _plain_form(item)
        if plain is _NO_FORM:
            return self._replaced(where, f"a {name} has no JSON form", f"<{name}>")
        if isinstance(plain, dict):
            self.objects += 1
            if self.objects > MAX_OBJECTS:
                return self._replaced(where, f"beyond the first {MAX_OBJECTS} objects", f"<{name}>")
        self._note(where, f"a {name} became a {type(plain).__name__}")
        return self.value(plain, where, depth + 1)

    def _replaced(self, where: str, why: str, text: str) -> Any:
        self._note(where, why)
        return _NO_FORM if self.drop else text

    def _note(self, where: str, what: str) -> None:
        if len(self.changes) < MAX_NAMED_CHANGES:
            self.changes.append(safe_text(f"{where or 'value'}: {what}"))
        else:
            self.unnamed += 1


def _plain_form(item: Any) -> Any:
    """The plain value a foreign one stands for, or the mark that there is none."""
    if isinstance(item, bytes | bytearray | memoryview):
        return bytes(item).decode("utf-8", "replace")
    if isinstance(item, UserString):
        return item.data
    if isinstance(item, datetime | date | time | UUID):
        return _date_text(item)
    if isinstance(item, PathLike):
        return fspath(item)
    if hasattr(item, "tolist"):
        listed = item.tolist()
        if type(listed) is not type(item):  # a long double stays one
            return listed
    if isinstance(item, numbers.Integral):
        return int(item)
    if hasattr(item, "model_dump"):
        return item.model_dump()
    if is_dataclass(item) and not isinstance(item, type):
        return {one.name: getattr(item, one.name) for one in fields(item)}
    if isinstance(item, SupportsFloat):
        return float(item)
    return _NO_FORM


def _date_text(item: Any) -> str:
    return str(item) if isinstance(item, UUID) else item.isoformat()


def _key_text(key: Any) -> str:
    try:
        plain = key if isinstance(key, bool) else _plain_form(key)
    except Exception:  # a key of a foreign type must not cost the mapping
        plain = _NO_FORM
    if isinstance(plain, str):
        return plain
    return _short(key if plain is _NO_FORM else plain)


def _integer_text(item: int) -> str:
    # Python refuses to print integers of more than some thousands of digits.
    return str(item) if item.bit_length() <= 4096 else f"<integer of {item.bit_length()} bits>"


def _is_valid(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _short(item: Any) -> str:
    try:
        return repr(item)[:80]
    except Exception:  # a foreign type's own repr may raise anything
        return f"<{type(item).__name__}>"
