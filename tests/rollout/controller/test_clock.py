"""The deadline clock: it rings in its own loop, once, for what is due."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Hashable

from osmosis_ai.rollout.controller.clock import DeadlineClock, Seconds, hold_deadlines


class Bell:
    """Hears the clock."""

    def __init__(self) -> None:
        self.rung: list[Hashable] = []
        self.rings: asyncio.Queue[Hashable] = asyncio.Queue()

    def __call__(self, key: Hashable) -> None:
        self.rung.append(key)
        self.rings.put_nowait(key)


class Clock(DeadlineClock):
    """Takes deadlines as seconds from now."""

    def ring_after(self, key: Hashable, seconds: float) -> None:
        self.set(key, self.now() + seconds)


def make_clock() -> tuple[Clock, Bell]:
    bell = Bell()
    return Clock(asyncio.get_running_loop(), bell, seconds=Seconds()), bell


async def test_it_rings_in_the_order_of_the_deadlines() -> None:
    clock, bell = make_clock()
    for key, after_sec in [("third", 0.03), ("first", 0.01), ("second", 0.02)]:
        clock.ring_after(key, after_sec)
    assert [await bell.rings.get() for _ in range(3)] == ["first", "second", "third"]


async def test_what_is_dropped_does_not_ring() -> None:
    clock, bell = make_clock()
    clock.ring_after("dropped", 0.01)
    clock.ring_after("kept", 0.02)
    clock.drop("dropped")
    clock.drop("never set")
    assert await bell.rings.get() == "kept"
    assert bell.rung == ["kept"]


async def test_a_deadline_that_has_passed_rings_at_once() -> None:
    clock, bell = make_clock()
    clock.ring_after("late", -5)
    assert await bell.rings.get() == "late"


async def test_it_may_be_set_from_another_thread() -> None:
    clock, bell = make_clock()
    clock.ring_after("far", 3600)
    await asyncio.to_thread(clock.ring_after, "near", 0)
    assert await bell.rings.get() == "near"


async def test_it_goes_on_after_a_while_without_deadlines() -> None:
    clock, bell = make_clock()
    clock.ring_after("one", 0)
    await bell.rings.get()
    clock.ring_after("two", 0)
    assert await bell.rings.get() == "two"


async def test_a_thousand_deadlines_that_never_come_keep_nothing() -> None:
    """A run opens and closes as many rollouts as it has rows."""
    clock, bell = make_clock()
    for key in range(1000):
        clock.ring_after(key, 3600)
        clock.drop(key)
    clock.ring_after("last", 0)
    await bell.rings.get()
    assert bell.rung == ["last"]
    assert not clock._due


async def test_no_deadline_comes_nearer_while_time_is_held() -> None:
    """A person at a debugger's prompt does not cost a rollout its time."""
    seconds, bell = Seconds(), Bell()
    clock = Clock(asyncio.get_running_loop(), bell, seconds=seconds)
    witness, heard = make_clock()
    started = time.monotonic()
    with seconds.hold(), seconds.hold():
        held_at = seconds.now()
        clock.ring_after("held", 0.01)
        witness.ring_after("passed", 0.05)
        await heard.rings.get()
        assert seconds.now() == held_at
    assert bell.rung == []
    assert seconds.now() - held_at <= time.monotonic() - started - 0.05
    assert await bell.rings.get() == "held"


def test_a_debugger_holds_every_clock_of_the_process() -> None:
    loop = asyncio.new_event_loop()
    one, other = (DeadlineClock(loop, print) for _ in range(2))
    with hold_deadlines():
        held_at = one.now()
        assert other.now() == held_at
    assert one.now() >= held_at
    loop.close()
