"""How long a failed call waits before it is tried again, and how often."""

from __future__ import annotations

import pytest

from osmosis_ai.rollout.controller.retry import RetryPolicy, is_outside_the_agent, is_passing

NOON = 1_700_000_000.0


def pause(failures: int, *, retry_after: str | None = None, dice: float = 0.0) -> float | None:
    policy = RetryPolicy(max_retries=9, dice=lambda: dice, now=lambda: NOON)
    return policy.pause_sec(failures, retry_after=retry_after)


def test_pauses_double_up_to_eight_seconds() -> None:
    pauses = [pause(failures, dice=1.0) for failures in range(1, 8)]
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0]


def test_dice_spread_calls_that_failed_together() -> None:
    assert [pause(3, dice=dice) for dice in (0.0, 0.5, 1.0)] == [1.0, 1.5, 2.0]


def test_nothing_is_tried_again_unless_asked_for() -> None:
    assert RetryPolicy().pause_sec(1, retry_after="1") is None


def test_retries_end() -> None:
    assert pause(9) is not None
    assert pause(10) is None


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("0", 0.0),
        ("17", 17.0),
        (" 2.5 ", 2.5),
        ("Tue, 14 Nov 2023 22:13:50 GMT", 30.0),
        ("Tue, 14 Nov 2023 22:13:20 GMT", 0.0),
        ("Mon, 13 Nov 2023 22:13:20 GMT", 0.0),
    ],
)
def test_the_server_says_how_long(header: str, seconds: float) -> None:
    """In seconds or as a date, and no dice change it."""
    assert pause(1, retry_after=header, dice=0.7) == seconds


@pytest.mark.parametrize("header", ["", "soon", "-1", "nan", "1e3", "²", "1.2.3"])
def test_a_header_that_makes_no_sense_counts_as_none(header: str) -> None:
    assert pause(1, retry_after=header, dice=1.0) == 0.5


def test_who_is_to_blame_for_a_status() -> None:
    passing = {408, 429, 500, 502, 503, 504, 529}
    owners = {301, 302, 307, 401, 402, 403, 404, 405, 407}
    agents = {400, 409, 411, 413, 415, 422}
    for status in passing | owners | agents:
        assert is_passing(status) is (status in passing)
        assert is_outside_the_agent(status) is (status in passing | owners)
