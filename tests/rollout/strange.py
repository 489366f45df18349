"""Values that users leave in messages and metrics, and what JSON is to make of them."""

from __future__ import annotations

import enum
from collections import UserDict, UserList, UserString, deque
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any
from uuid import UUID

import numpy as np
from hypothesis import strategies as st
from pydantic import BaseModel


class Plain(enum.Enum):
    TEXT = "text"
    NUMBER = 1
    PAIR = (1, "a")
    BROKEN = float("nan")


class Text(enum.StrEnum):
    A = "a"


class MixedText(str, enum.Enum):  # noqa: UP042 - the older way, whose str() is "MixedText.A"
    A = "a"


class Number(enum.IntEnum):
    ONE = 1


class LoudStr(str):
    __slots__ = ()

    def __str__(self) -> str:
        raise RuntimeError

    def encode(self, *args: Any) -> bytes:
        raise RuntimeError


class LoudInt(int):
    def __int__(self) -> int:
        raise RuntimeError


class LoudFloat(float):
    __slots__ = ()

    def __float__(self) -> float:
        raise RuntimeError


class Loud:
    """Every conversion raises."""

    def _raise(self, *args: Any) -> Any:
        raise RuntimeError

    __str__ = __repr__ = __float__ = __int__ = __iter__ = __len__ = _raise
    tolist = model_dump = isoformat = _raise


class LoudMapping(UserDict[str, Any]):
    def items(self) -> Any:
        raise RuntimeError


class Proxy:
    """A lazy proxy of nothing: even asking what it is raises."""

    @property
    def __class__(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        raise RuntimeError


class Floatlike:
    def __float__(self) -> float:
        return 0.5


class OwnDatetime(datetime):
    pass


@dataclass
class Point:
    x: Any = 1
    y: Any = None


class Model(BaseModel):
    content: str = "hi"


ODD_OFFSET = timezone(timedelta(seconds=30))

ORDINARY: list[tuple[Any, Any]] = [
    (None, None),
    (True, True),
    (-(2**63), -(2**63)),
    (2**64 - 1, 2**64 - 1),
    (-0.0, -0.0),
    (1e308, 1e308),
    (5e-324, 5e-324),
    ("ä\0\u2028😀", "ä\0\u2028😀"),
    ((1, "a"), [1, "a"]),
    ({}, {}),
    (deque([1]), [1]),
    (UserList([1]), [1]),
    (range(3), [0, 1, 2]),
    (UserDict(a=1), {"a": 1}),
    (MappingProxyType({"a": (1,)}), {"a": [1]}),
    (Plain.TEXT, "text"),
    (Plain.PAIR, [1, "a"]),
    (Text.A, "a"),
    (MixedText.A, "a"),
    (Number.ONE, 1),
    ({Text.A: 1}, {"a": 1}),
    ({MixedText.A: 1}, {"a": 1}),
    ({Plain.TEXT: 1}, {"text": 1}),
    (LoudStr("a"), "a"),
    ({LoudStr("a"): 1}, {"a": 1}),
    (LoudInt(1), 1),
    (LoudFloat(0.5), 0.5),
    (np.float64(0.5), 0.5),
    (np.str_("a"), "a"),
    (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    (date(2020, 1, 2), "2020-01-02"),
    (time(1, 2, 3, 4), "01:02:03.000004"),
    (time(1, tzinfo=UTC), "01:00:00+00:00"),
    (datetime(2020, 1, 2, 3, 4, 5, 6, tzinfo=UTC), "2020-01-02T03:04:05.000006+00:00"),
    (datetime(1, 1, 1, tzinfo=ODD_OFFSET), "0001-01-01T00:00:00+00:00:30"),
]
"""Values with an ordinary JSON form, and that form."""

STRANGE: list[tuple[Any, Any, Any]] = [
    (float("nan"), "nan", None),
    (float("inf"), "inf", None),
    (-float("inf"), "-inf", None),
    (np.float64("nan"), "nan", None),
    (LoudFloat("nan"), "nan", None),
    (Plain.BROKEN, "nan", None),
    (2**64, "18446744073709551616", None),
    (-(2**63) - 1, "-9223372036854775809", None),
    (10**6000, "<integer of 19932 bits>", None),
    (LoudInt(2**64), "18446744073709551616", None),
    ("a\ud800b", "a\ufffdb", "a\ufffdb"),
    ("\ud83d\ude00", "😀", "😀"),
    (UserString("a"), "a", "a"),
    (b"a\xff", "a\ufffd", "a\ufffd"),
    (bytearray(b"a"), "a", "a"),
    (memoryview(b"a"), "a", "a"),
    (OwnDatetime(2020, 1, 2, tzinfo=UTC), "2020-01-02T00:00:00+00:00", "2020-01-02T00:00:00+00:00"),
    (timedelta(seconds=1), "<timedelta>", None),
    (PurePosixPath("/a"), "/a", "/a"),
    (Path("/a\udc80"), "/a\ufffd", "/a\ufffd"),
    ({2, 1}, [1, 2], [1, 2]),
    (frozenset({"a"}), ["a"], ["a"]),
    ({"a": 1}.keys(), ["a"], ["a"]),
    (Decimal("0.25"), 0.25, 0.25),
    (Decimal("NaN"), "nan", None),
    (Decimal("sNaN"), "<Decimal>", None),
    (Decimal("1e400"), "inf", None),
    (Fraction(1, 4), 0.25, 0.25),
    (Fraction(10**400), "<Fraction>", None),
    (1j, "<complex>", None),
    (np.float32(0.5), 0.5, 0.5),
    (np.longdouble(0.5), 0.5, 0.5),
    (np.int64(3), 3, 3),
    (np.bool_(True), True, True),
    (np.datetime64("2020-01-02"), "2020-01-02", "2020-01-02"),
    (np.array(0.5), 0.5, 0.5),
    (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]], [[1, 2], [3, 4]]),
    (np.array([1.0, np.nan]), [1.0, "nan"], [1.0]),
    (np.array([Decimal(1), None]), [1.0, None], [1.0, None]),
    (np.complex128(1j), "<complex>", None),
    (Point(1, Point()), {"x": 1, "y": {"x": 1, "y": None}}, {"x": 1, "y": {"x": 1, "y": None}}),
    (Model(), {"content": "hi"}, {"content": "hi"}),
    (Floatlike(), 0.5, 0.5),
    (Loud(), "<Loud>", None),
    (LoudMapping(a=1), "<LoudMapping>", None),
    (Proxy(), "<Proxy>", None),
    (object(), "<object>", None),
    (Point, "<type>", None),
    (Model, "<ModelMetaclass>", None),
    (np.ndarray, "<type>", None),
    (ValueError("boom"), "<ValueError>", None),
    (iter([1]), "<list_iterator>", None),
    ({1: 1, 0.5: 2}, {"1": 1, "0.5": 2}, {"1": 1, "0.5": 2}),
    ({np.int64(1): 1}, {"1": 1}, {"1": 1}),
    ({Number.ONE: 1}, {"1": 1}, {"1": 1}),
    ({10**6000: 1}, {"<int>": 1}, {"<int>": 1}),
    ({None: 1, True: 2}, {"None": 1, "True": 2}, {}),
    ({b"a": 1, (1, 2): 2}, {"a": 1, "(1, 2)": 2}, {}),
    ({UUID(int=1): 1}, {"00000000-0000-0000-0000-000000000001": 1}, {}),
    ({Loud(): 1}, {"<Loud>": 1}, {}),
    ({"\ud800": 1}, {"\ufffd": 1}, {"\ufffd": 1}),
    ({1: "number", "1": "text"}, {"1": "text"}, {"1": "text"}),
]
"""Values without one; what stands in their place, and what where they are left out (None)."""

texts = st.text(st.characters() | st.characters(categories=["Cs"]))
numbers = (
    st.integers()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.decimals()
    | st.fractions()
    | st.floats(width=32).map(np.float32)
    | st.integers(0, 255).map(np.uint8)
)
scalars = (
    st.none()
    | st.booleans()
    | texts
    | numbers
    | st.binary()
    | st.datetimes()
    | st.datetimes(timezones=st.just(ODD_OFFSET))
    | st.dates()
    | st.times()
    | st.timedeltas()
    | st.uuids()
    | st.complex_numbers()
    | st.integers(0, len(ORDINARY) - 1).map(lambda index: ORDINARY[index][0])
    | st.integers(0, len(STRANGE) - 1).map(lambda index: STRANGE[index][0])
)
keys = texts | st.integers() | st.floats() | st.sampled_from([None, True, Text.A, b"a", (1,)])


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.lists(inner, max_size=4).map(deque)
        | st.dictionaries(texts, inner, max_size=4)
        | st.dictionaries(keys, inner, max_size=4)
        | st.dictionaries(texts, inner, max_size=4).map(MappingProxyType)
        | st.builds(Point, inner, inner)
        | st.frozensets(texts | st.integers(), max_size=3)
    )


values = st.recursive(scalars, containers, max_leaves=12)
"""Anything at all."""
maps = st.dictionaries(texts, values, max_size=4)
conversations = st.lists(maps, max_size=4)


class Strange(Exception):
    """A value has no ordinary JSON form."""


def ordinary_form(value: Any) -> Any:
    """The JSON of a value that has an ordinary one; raises Strange else. Not our encoder's way."""
    if type(value) is Proxy:  # to ask whether it is anything raises
        raise Strange
    match value:
        case enum.Enum():
            return ordinary_form(value.value)
        case None | bool():
            return value
        case str():
            return ordinary_text(value)
        case int() if -(2**63) <= value < 2**64:
            return int.__index__(value)
        case float() if value - value == 0:
            return value + 0.0
        case bytes() | bytearray() | memoryview() | UserString() | LoudMapping():
            raise Strange
        case datetime() | date() | time() if type(value) is not OwnDatetime:
            return value.isoformat()
        case UUID():
            return str(value)
        case dict() | UserDict() | MappingProxyType():
            return {ordinary_key(key): ordinary_form(inner) for key, inner in value.items()}
        case list() | tuple() | deque() | range() | UserList():
            return [ordinary_form(inner) for inner in value]
        case _:
            raise Strange


def ordinary_key(key: Any) -> str:
    key = key.value if isinstance(key, enum.Enum) else key
    if not isinstance(key, str):
        raise Strange
    return ordinary_text(key)


def ordinary_text(text: str) -> str:
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise Strange
    return "".join(text)
