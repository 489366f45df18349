"""The deadline clock: it rings in its own loop, once, for what is due."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable

from osmosis_ai.rollout.controller.clock import DeadlineClock


class Bell:
    """Hears the clock."""

    def __init__(self) -> None:
        self.rung: list[Hashable] = []
        self.rings: asyncio.Queue[Hashable] = asyncio.Queue()

    def __call__(self, key: Hashable) -> None:
        self.rung.append(key)
        self.rings.put_nowait(key)


def make_clock() -> tuple[DeadlineClock, Bell]:
    bell = Bell()
    return DeadlineClock(asyncio.get_running_loop(), bell), bell


async def test_it_rings_in_the_order_of_the_deadlines() -> None:
    clock, bell = make_clock()
    for key, after_sec in [("third", 0.03), ("first", 0.01), ("second", 0.02)]:
        clock.set(key, after_sec)
    assert [await bell.rings.get() for _ in range(3)] == ["first", "second", "third"]


async def test_what_is_dropped_does_not_ring() -> None:
    clock, bell = make_clock()
    clock.set("dropped", 0.01)
    clock.set("kept", 0.02)
    clock.drop("dropped")
    clock.drop("never set")
    assert await bell.rings.get() == "kept"
    assert bell.rung == ["kept"]


async def test_a_deadline_that_has_passed_rings_at_once() -> None:
    clock, bell = make_clock()
    clock.set("late", -5)
    assert await bell.rings.get() == "late"


async def test_it_may_be_set_from_another_thread() -> None:
    clock, bell = make_clock()
    clock.set("far", 3600)
    await asyncio.to_thread(clock.set, "near", 0)
    assert await bell.rings.get() == "near"


async def test_it_goes_on_after_a_while_without_deadlines() -> None:
    clock, bell = make_clock()
    clock.set("one", 0)
    await bell.rings.get()
    clock.set("two", 0)
    assert await bell.rings.get() == "two"


async def test_a_thousand_deadlines_that_never_come_keep_nothing() -> None:
    """A run opens and closes as many rollouts as it has rows."""
    clock, bell = make_clock()
    for key in range(1000):
        clock.set(key, 3600)
        clock.drop(key)
    clock.set("last", 0)
    await bell.rings.get()
    assert bell.rung == ["last"]
    assert not clock._due
