"""The pace of the garbage collector is a server's or a run's while it lasts, and nobody else's."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from osmosis_ai.rollout.garbage import YOUNG_OBJECTS
from tests.rollout.server.serving import serving


@pytest.fixture(params=[(700, 10, 10), (2000, 10, 10)])
def pace(request: pytest.FixtureRequest) -> Iterator[tuple[int, int, int]]:
    """A pace that is some Python's own."""
    before = gc.get_threshold()
    gc.set_threshold(*request.param)
    yield request.param
    gc.set_threshold(*before)


async def test_a_server_has_a_pace_of_its_own_while_it_lives(pace: tuple[int, int, int]) -> None:
    async with serving():
        assert gc.get_threshold() == (YOUNG_OBJECTS, *pace[1:])
        async with serving():
            assert gc.get_threshold() == (YOUNG_OBJECTS, *pace[1:])
    assert gc.get_threshold() == pace


async def test_a_pace_that_somebody_has_set_is_left_alone(pace: tuple[int, int, int]) -> None:
    gc.set_threshold(0, 5, 5)
    async with serving():
        assert gc.get_threshold() == (0, 5, 5)
    assert gc.get_threshold() == (0, 5, 5)
