"""Slots: taken in turn, kept by what does not stop, and never waited for without hope."""

from __future__ import annotations

import asyncio

import pytest

from osmosis_ai.errors import BackendError
from osmosis_ai.rollout.flight.slots import Slots


async def waiting(slots: Slots, count: int) -> list[asyncio.Task[None]]:
    tasks = [asyncio.create_task(slots.take()) for _ in range(count)]
    await asyncio.sleep(0)
    return tasks


async def test_those_who_wait_are_served_in_turn() -> None:
    slots = Slots(1)
    await slots.take()
    first, second = await waiting(slots, 2)
    slots.release()
    await first
    assert not second.done()
    slots.release()
    await second


async def test_one_who_came_later_does_not_overtake() -> None:
    """A slot that is handed over is never free in between."""
    slots = Slots(1)
    await slots.take()
    [first] = await waiting(slots, 1)
    slots.release()
    late = asyncio.create_task(slots.take())
    await first
    await asyncio.sleep(0)
    assert not late.done()
    slots.release()
    await late


async def test_who_gives_up_waiting_takes_no_slot_with_him() -> None:
    slots = Slots(1)
    await slots.take()
    first, second = await waiting(slots, 2)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    slots.release()
    await second
    slots.release()
    await slots.take()


async def test_a_slot_handed_to_one_who_gives_up_goes_on_to_the_next() -> None:
    slots = Slots(1)
    await slots.take()
    first, second = await waiting(slots, 2)
    slots.release()
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await second


async def test_stuck_holders_leave_hope_as_long_as_one_is_not() -> None:
    slots = Slots(2)
    await slots.take()
    await slots.take()
    [one] = await waiting(slots, 1)
    slots.mark_stuck("first")
    await asyncio.sleep(0)
    assert not one.done()
    slots.release()
    await one


async def test_those_who_wait_without_hope_are_told() -> None:
    slots = Slots(1)
    await slots.take()
    given_up, waits = await waiting(slots, 2)
    given_up.cancel()
    slots.mark_stuck("holder")
    for task in (waits, asyncio.create_task(slots.take())):
        with pytest.raises(BackendError, match="all 1 slots are held"):
            await task


async def test_a_holder_that_stops_at_last_brings_hope_back() -> None:
    slots = Slots(1)
    await slots.take()
    slots.mark_stuck("holder")
    slots.release("holder")
    await slots.take()


async def test_without_a_limit_there_is_always_room_and_hope() -> None:
    slots = Slots(None)
    for number in range(100):
        await slots.take()
        slots.mark_stuck(number)
    slots.release(3)
    await slots.take()


async def test_more_slots_serve_those_who_wait() -> None:
    slots = Slots(1)
    await slots.take()
    first, gone, second, third = await waiting(slots, 4)
    gone.cancel()
    slots.resize(3)
    await asyncio.gather(first, second)
    assert not third.done()
    slots.resize(None)
    await third


async def test_fewer_slots_are_free_when_enough_are_released() -> None:
    slots = Slots(2)
    await slots.take()
    await slots.take()
    [one] = await waiting(slots, 1)
    slots.resize(1)
    slots.release()
    await asyncio.sleep(0)
    assert not one.done()
    slots.release()
    await one
