"""JSON comes out of anything, what was changed is named, and what was not is equal."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any
from unittest.mock import MagicMock, Mock

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from osmosis_ai.rollout.safe_json import (
    MAX_DEPTH,
    MAX_NAMED_CHANGES,
    MAX_OBJECTS,
    dump_json,
    make_safe,
    safe_text,
)
from tests.rollout.strange import (
    ORDINARY,
    STRANGE,
    Loud,
    Plain,
    Point,
    Proxy,
    Strange,
    ordinary_form,
    texts,
    values,
)


def parse(data: bytes) -> Any:
    """The document as both parsers read it; NaN is no JSON."""

    def refuse(constant: str) -> Any:
        raise AssertionError(f"{constant} is no JSON")

    parsed = json.loads(data.decode(), parse_constant=refuse)
    assert orjson.loads(data) == parsed
    return parsed


def by_repr(case: Any) -> str:
    """The form of a case, for its value may raise when it is shown."""
    return ascii(case[1] if isinstance(case, tuple) else case)[:40]


@pytest.mark.parametrize("case", ORDINARY, ids=by_repr)
@pytest.mark.parametrize("beside", [1, float("nan")], ids=["fast", "rebuilt"])
def test_an_ordinary_value_is_written_as_it_is(case: Any, beside: Any) -> None:
    """Both ways agree: the encoder's own, and the rebuilding one that something beside it needs."""
    value, form = case
    data, changes = dump_json({"value": value, "beside": beside})
    assert parse(data)["value"] == form
    assert type(parse(data)["value"]) is type(form)
    assert not [change for change in changes if "beside" not in change]
    assert make_safe(value) == make_safe(value, drop=True) == (form, ())


@pytest.mark.parametrize("case", STRANGE, ids=by_repr)
def test_a_strange_value_is_replaced_and_named(case: Any) -> None:
    value, form, _ = case
    data, changes = dump_json([0, value], at="messages")
    assert parse(data) == [0, form]
    assert changes
    assert all(change.startswith("messages[1]") for change in changes)


@pytest.mark.parametrize("case", STRANGE, ids=by_repr)
def test_a_strange_value_may_be_left_out_instead(case: Any) -> None:
    value, _, left = case
    safe, changes = make_safe({"kept": 0, "value": value, "list": [0, value]}, drop=True)
    expected = {"kept": 0, "list": [0]}
    if left is not None:
        expected = {"kept": 0, "value": left, "list": [0, left]}
    assert safe == expected
    assert parse(orjson.dumps(safe)) == expected
    assert changes


def test_a_value_alone_that_is_left_out_leaves_null() -> None:
    assert make_safe(float("nan"), drop=True) == (None, ("value: a number that is not finite",))


def test_the_judge_of_these_tests_knows_the_tables() -> None:
    """What has an ordinary form is told here without our encoder's help."""
    for value, form in ORDINARY:
        assert ordinary_form(value) == form
    for value, *_ in STRANGE:
        with pytest.raises(Strange):
            ordinary_form(value)


@given(values)
def test_anything_becomes_json(value: Any) -> None:
    """What has an ordinary form is equal and unmarked; everything else is marked."""
    data, changes = dump_json(value)
    parsed = parse(data)
    try:
        form = ordinary_form(value)
    except Strange:
        assert changes
    else:
        assert (parsed, changes) == (form, ())
    assert parse(dump_json(value, indent=True).data) == parsed


@given(values, st.booleans())
def test_a_rebuilt_value_is_plain(value: Any, drop: bool) -> None:
    safe, changes = make_safe(value, drop=drop)
    assert ordinary_form(safe) == safe == parse(orjson.dumps(safe))
    assert all(change.encode() for change in changes)
    assert make_safe(safe, drop=drop) == (safe, ())


@given(values)
def test_what_is_beside_a_strange_value_is_kept(value: Any) -> None:
    parsed = parse(dump_json({"before": [1, "a"], "value": value, "after": {"b": 0.5}}).data)
    assert (parsed["before"], parsed["after"]) == ([1, "a"], {"b": 0.5})


@given(values)
def test_a_value_that_holds_itself_ends(value: Any) -> None:
    holder: dict[str, Any] = {"value": value, "list": []}
    holder["list"].append(holder)
    point = Point(x=value)
    point.y = [point]
    for strange in (holder, point, [holder, point]):
        data, changes = dump_json(strange)
        assert "<cycle>" in data.decode()
        parse(data)
        assert changes
        parse(orjson.dumps(make_safe(strange, drop=True).value))


def test_a_value_met_twice_is_no_cycle() -> None:
    shared = {"a": float("nan")}
    assert parse(dump_json([shared, shared]).data) == [{"a": "nan"}, {"a": "nan"}]


def test_a_change_is_named_by_its_place() -> None:
    value = {"messages": [{"content": [{"text": "a\ud800"}]}], 1: {2, "x"}, "n": float("nan")}
    assert dump_json(value).changes == (
        "messages[0].content[0].text: a lone surrogate replaced",
        "value: a key of type int became a text",
        "1: a set became a list",
        "n: a number that is not finite",
    )
    assert dump_json(float("nan")).changes == ("value: a number that is not finite",)
    assert dump_json([[b"a"]], at="metrics").changes == ("metrics[0][0]: a bytes became a str",)


def test_a_place_with_a_surrogate_in_its_name_can_be_named() -> None:
    assert dump_json({"\ud800": 1}).changes == ("value: a lone surrogate replaced",)
    assert dump_json({"\ud800": b""}).changes[1] == "\ufffd: a bytes became a str"


def test_two_keys_with_one_text_are_named() -> None:
    assert make_safe({1: "a", "1": "b"}) == (
        {"1": "b"},
        (
            "value: a key of type int became a text",
            "value: of two keys with the same text the later was kept",
        ),
    )


def test_many_changes_are_counted() -> None:
    nan = float("nan")
    assert len(dump_json([nan] * MAX_NAMED_CHANGES).changes) == MAX_NAMED_CHANGES
    changes = dump_json([nan] * (MAX_NAMED_CHANGES + 3)).changes
    assert changes[-2:] == (
        f"[{MAX_NAMED_CHANGES - 1}]: a number that is not finite",
        "and 3 more",
    )


def nested(levels: int, innermost: Any) -> Any:
    for _ in range(levels):
        innermost = [innermost]
    return innermost


@pytest.mark.parametrize("levels", [MAX_DEPTH, 250])
def test_deep_nesting_the_encoder_takes_is_kept(levels: int) -> None:
    assert dump_json(nested(levels, 1)).changes == ()


@pytest.mark.parametrize("levels", [MAX_DEPTH, MAX_DEPTH + 1, 300, 5000])
@pytest.mark.parametrize("innermost", ["\ud800", float("nan")])
def test_deeper_nesting_is_cut(levels: int, innermost: Any) -> None:
    data, changes = dump_json(nested(levels, innermost))
    parse(data)
    if levels > MAX_DEPTH:
        assert "<too deep>" in data.decode()
        assert changes[0].endswith(f"nested deeper than {MAX_DEPTH} levels")
    else:
        assert "<too deep>" not in data.decode()


def test_little_room_on_the_stack_costs_depth_and_no_document() -> None:
    """Code that calls itself deeply and then fails must still be answered for."""

    def descend(levels: int) -> Any:
        return descend(levels - 1) if levels else dump_json(nested(90, b"a"))

    data, changes = descend(sys.getrecursionlimit() - 200)
    parse(data)
    assert changes


def test_objects_that_know_each_other_end() -> None:
    """Every order in which they can be met would be a path of its own."""
    peers = [Point(x=number) for number in range(30)]
    for peer in peers:
        peer.y = [other for other in peers if other is not peer]
    data, changes = dump_json(peers[0])
    parse(data)
    assert len(data) < 10_000_000
    assert changes[-1].endswith("more")


def test_many_objects_are_kept() -> None:
    many = dump_json([Point(x=number) for number in range(MAX_OBJECTS)])
    assert parse(many.data)[-1] == {"x": MAX_OBJECTS - 1, "y": None}
    more = parse(dump_json([Point()] * (MAX_OBJECTS + 1)).data)
    assert more[-2:] == [{"x": 1, "y": None}, "<Point>"]


def test_mocks_end() -> None:
    """They answer every question, with a mock."""
    for mock in (Mock(), MagicMock(), MagicMock(spec=dict), MagicMock(spec=str)):
        parse(dump_json([mock]).data)
        parse(orjson.dumps(make_safe({"a": mock}, drop=True).value))


def test_an_attribute_that_raises_costs_its_object_alone() -> None:
    class Broken(Point):
        def __getattribute__(self, name: str) -> Any:
            if name == "y":
                raise RuntimeError
            return super().__getattribute__(name)

    data, changes = dump_json([Broken(), 1])
    assert parse(data) == ["<Broken>", 1]
    assert changes == ("[0]: reading a Broken raised RuntimeError",)


def test_a_dict_with_methods_of_its_own_is_read_by_its_content() -> None:
    """The encoder reads it so, and a look for NaN must not be led astray."""

    class Own(dict[str, Any]):
        def values(self) -> Any:
            raise RuntimeError

    assert dump_json(Own(a=None)) == (b'{"a":null}', ())
    assert dump_json(Own(a=float("nan"))).changes == ("a: a number that is not finite",)


def test_a_mapping_that_cannot_be_read_costs_itself_alone() -> None:
    class Shy(Mapping[str, Any]):
        def __getitem__(self, key: str) -> Any:
            raise RuntimeError

        def __iter__(self) -> Any:
            return iter("a")

        def __len__(self) -> int:
            return 1

    assert parse(dump_json([Shy(), Plain.TEXT, None]).data) == ["<Shy>", "text", None]


@pytest.mark.parametrize("kind", [Loud, Proxy])
def test_what_cannot_be_asked_is_named_by_its_class(kind: Any) -> None:
    strange, name = kind(), kind.__name__
    assert dump_json({"a": strange}) == (
        f'{{"a":"<{name}>"}}'.encode(),
        (f"a: reading a {name} raised RuntimeError",),
    )


def test_a_null_beside_no_number_is_left_alone() -> None:
    value = {"content": None, "calls": [{"arguments": "null"}, (None, 0.5)]}
    assert parse(dump_json(value).data) == {**value, "calls": [{"arguments": "null"}, [None, 0.5]]}
    assert dump_json(value).changes == ()


@pytest.mark.parametrize("hide", [lambda nan: (nan,), lambda nan: {"a": [nan]}, lambda nan: nan])
def test_a_number_that_is_not_finite_is_found_wherever_it_is(hide: Any) -> None:
    for number in (float("nan"), float("inf"), -float("inf")):
        assert dump_json({"content": None, "value": hide(number)}).changes


def test_indented_json_is_the_same_document() -> None:
    value = {"a": [1, float("nan")]}
    assert parse(dump_json(value, indent=True).data) == parse(dump_json(value).data)
    assert b"\n" in dump_json({"a": 1}, indent=True).data


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("", ""),
        ("ä😀", "ä😀"),
        ("\ud800", "\ufffd"),
        ("a\udc80b\ud800", "a\ufffdb\ufffd"),
        ("\ud83d\ude00", "😀"),
        ("\ude00\ud83d", "\ufffd\ufffd"),
    ],
    ids=ascii,
)
def test_each_lone_surrogate_becomes_one_mark(text: str, safe: str) -> None:
    """A pair, as two halves of a streamed emoji make one, is what it stands for."""
    assert safe_text(text) == safe


@given(texts)
def test_safe_text_can_always_be_sent(text: str) -> None:
    assert safe_text(safe_text(text)) == safe_text(text)
    safe_text(text).encode()
    if text.isascii():
        assert safe_text(text) == text
