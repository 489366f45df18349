"""What was raised, as people read it: the class, what it says, and the user's line."""

from __future__ import annotations

import asyncio
import json
import os
from bdb import BdbQuit
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from osmosis_ai.errors import ConfigError
from osmosis_ai.rollout.raised import (
    MAX_LINE_CHARS,
    has_left_debugger,
    is_users,
    one_line,
    summarize_error,
    title_error,
    users_traceback,
)
from osmosis_ai.rollout.types import RolloutSample

HERE = Path(__file__).parent


def caught(function: Callable[[], Any]) -> BaseException:
    try:
        function()
    except BaseException as error:  # whatever it raises is what is looked at
        return error
    raise AssertionError("nothing was raised")


def said(function: Callable[[], Any]) -> str:
    """The line without its place."""
    error = caught(function)
    error.__traceback__ = None
    return summarize_error(error)


def fail(error: BaseException) -> Callable[[], None]:
    def reraise() -> None:
        raise error

    return reraise


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even this")


class Shy:
    def __repr__(self) -> str:
        raise RuntimeError("not even this")


class Order(BaseModel):
    size: int
    items: list[int] = []


@pytest.mark.parametrize(
    ("function", "line"),
    [
        (lambda: {}["answer"], "KeyError: 'answer'"),
        (fail(SystemExit(1)), "SystemExit: 1"),
        (fail(RuntimeError()), "RuntimeError"),
        (fail(Mute()), "Mute"),
        (fail(ValueError("two\n  lines\n\n")), "ValueError: two lines"),
        (fail(ConfigError("give n")), "give n"),
        (fail(ValueError("lone \ud800")), "ValueError: lone \ufffd"),
        (
            fail(OSError("Cannot connect to h:1 ssl:default")),
            "OSError: Cannot connect to h:1",
        ),
    ],
)
def test_an_error_is_its_class_and_what_it_says(function: Callable[[], Any], line: str) -> None:
    """`'answer'` alone, or `1`, tells nobody what happened."""
    assert said(function) == line


@pytest.mark.parametrize(
    ("function", "line"),
    [
        (lambda: RolloutSample(reward=float("nan")), "reward must be a finite number, got nan"),
        (lambda: RolloutSample(reward="good"), "reward must be a valid number, got 'good'"),  # type: ignore[arg-type]  # what users do
        (lambda: RolloutSample(messages=["a"]), "messages[0] must be a dict, got str"),  # type: ignore[list-item]  # as above
        (lambda: Order.model_validate({}), "size: Field required"),
        (lambda: Order.model_validate({"size": Shy()}), "size must be a valid integer, got a Shy"),
        (
            lambda: Order.model_validate({"size": "x" * 99}),
            f"size must be a valid integer, got '{'x' * 56}...",
        ),
        (
            lambda: Order.model_validate({"size": 1.5, "items": ["x"]}),
            "size must be a valid integer, got 1.5; items.0 must be a valid integer, got 'x'",
        ),
        (lambda: Order.model_validate(3), "must be a valid dictionary or instance of Order"),
    ],
)
def test_a_models_faults_are_one_line_without_addresses(
    function: Callable[[], Any], line: str
) -> None:
    assert said(function) == f"ValidationError: {line}"


def test_what_was_flattened_elsewhere_has_no_address_either() -> None:
    """A server of another make sends pydantic's text as it is."""
    text = str(caught(lambda: Order.model_validate({})))
    assert "https:" in text
    assert one_line(text).startswith("1 validation error for Order size Field required [type=")
    assert "https:" not in one_line(text)
    assert len(one_line("x" * 9_999)) == MAX_LINE_CHARS + 3


def test_the_place_is_the_last_line_of_the_users() -> None:
    """Below it lies a library: what it does there is no news to them."""
    error = caught(lambda: json.loads("{"))
    number = error.__traceback__.tb_next.tb_lineno  # type: ignore[union-attr]  # it was raised
    place = f"test_raised.py:{number}, in <lambda>"
    assert summarize_error(error).endswith(f"({place})")
    assert summarize_error(error, root=HERE.parent).endswith(f"(rollout/{place})")
    assert summarize_error(error, root=HERE / "other").endswith(f"({place})")


def test_a_file_is_named_where_the_directory_we_are_in_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert "(test_raised.py:" in summarize_error(caught(lambda: 1 / 0), root=".")


def test_an_error_of_nobodys_code_has_no_place() -> None:
    assert summarize_error(ValueError("made elsewhere")) == "ValueError: made elsewhere"


@pytest.mark.parametrize(
    ("file", "users"),
    [
        (__file__, True),
        (json.__file__, False),
        (pytest.__file__, False),
        ("<frozen importlib._bootstrap>", False),
        (asyncio.__file__, False),
        (str(Path(RolloutSample.__module__)), True),
        (os.path.join(os.path.dirname(__file__), "..", "rollout.py"), True),
    ],
)
def test_a_users_file_is_what_nobody_installed(file: str, users: bool) -> None:
    assert is_users(file) is users


def test_a_cause_is_told_where_the_message_does_not_tell_it() -> None:
    def wrap(message: str, cause: BaseException) -> Callable[[], None]:
        def reraise() -> None:
            raise RuntimeError(message) from cause

        return reraise

    assert said(wrap("failed", KeyError("x"))) == "RuntimeError: failed; from KeyError: 'x'"
    assert said(wrap("failed: no disk", ValueError("no disk"))) == "RuntimeError: failed: no disk"
    refused = ConnectionRefusedError(111, "refused")
    assert said(wrap("no server [refused]", refused)) == "RuntimeError: no server [refused]"
    group = ExceptionGroup("many", [KeyError("x")])
    assert said(wrap("failed", group)) == "RuntimeError: failed; from KeyError: 'x'"


def test_notes_are_told() -> None:
    error = ValueError("no reward")
    error.add_note("call set_reward")
    error.__notes__.append(3)  # type: ignore[arg-type]  # anybody can put anything there
    assert summarize_error(error) == "ValueError: no reward; call set_reward"


def test_a_group_is_told_by_its_first_error() -> None:
    """ "unhandled errors in a TaskGroup (1 sub-exception)" hides what happened."""

    async def lose() -> None:
        raise ConnectionError("lost")

    async def run(n: int) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(n):
                group.create_task(lose())

    one = summarize_error(caught(lambda: asyncio.run(run(1))))
    assert one.startswith("ConnectionError: lost (test_raised.py:")
    assert one.endswith("in lose)")
    two = summarize_error(caught(lambda: asyncio.run(run(2))))
    assert two.endswith("in lose); the first of 2 errors in one ExceptionGroup")
    outer = caught(fail(ExceptionGroup("many", [ValueError("made elsewhere")])))
    assert summarize_error(outer).startswith("ValueError: made elsewhere (test_raised.py:")


def test_an_error_of_ours_is_a_sentence_already() -> None:
    assert title_error(ConfigError("give n")) == "give n"
    assert title_error(KeyError("x")) == "KeyError: 'x'"


def test_a_traceback_is_of_the_users_frames() -> None:
    def wrap() -> None:
        try:
            json.loads("{")
        except ValueError as error:
            raise LookupError("no city") from error

    told = "".join(users_traceback(caught(wrap)))
    assert told.count("Traceback (most recent call last)") == 2
    assert "json" in told
    assert os.path.dirname(json.__file__) not in told
    assert users_traceback(ConfigError("give n")) == ["Error: give n\n"]


def test_a_traceback_without_a_frame_of_the_users_is_whole() -> None:
    error = caught(lambda: json.loads("{"))
    error.__traceback__ = error.__traceback__.tb_next.tb_next  # type: ignore[union-attr]  # it was raised
    assert os.path.dirname(json.__file__) in "".join(users_traceback(error))


def test_whoever_leaves_a_debugger_is_known_in_a_group_too() -> None:
    assert has_left_debugger(BdbQuit())
    assert has_left_debugger(ExceptionGroup("many", [ValueError(), BdbQuit()]))
    assert not has_left_debugger(ExceptionGroup("many", [ValueError()]))
    assert not has_left_debugger(None)
