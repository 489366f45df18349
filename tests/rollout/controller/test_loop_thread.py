"""A loop in a thread of its own: entered, left, and what goes wrong."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from osmosis_ai.rollout.controller.loop_thread import run_in_thread


def test_a_service_lives_in_a_loop_of_its_own() -> None:
    events: list[object] = []

    @asynccontextmanager
    async def service() -> AsyncIterator[str]:
        events.append(threading.current_thread().name)
        yield "value"
        events.append("left")

    with run_in_thread(service, name="mine") as (loop, value):
        assert value == "value"
        assert asyncio.run_coroutine_threadsafe(asyncio.sleep(0, "done"), loop).result() == "done"
    assert events == ["mine", "left"]
    assert loop.is_closed()


def test_what_entering_raises_is_raised_here() -> None:
    @asynccontextmanager
    async def service() -> AsyncIterator[None]:
        raise OSError("no room")
        yield

    with pytest.raises(OSError, match="no room"), run_in_thread(service, name="mine"):
        pass


def test_what_leaving_raises_is_raised_here() -> None:
    @asynccontextmanager
    async def service() -> AsyncIterator[None]:
        yield
        raise OSError("stuck door")

    with pytest.raises(OSError, match="stuck door"), run_in_thread(service, name="mine"):
        pass


def test_a_blocked_loop_is_left_behind_with_a_word(caplog: pytest.LogCaptureFixture) -> None:
    """A daemon thread: the process can still end."""
    blocked, go_on = threading.Event(), threading.Event()

    @asynccontextmanager
    async def service() -> AsyncIterator[None]:
        yield

    def block() -> None:
        blocked.set()
        go_on.wait(10)

    with run_in_thread(service, name="mine", stop_patience_sec=0) as (loop, _):
        loop.call_soon_threadsafe(block)
        assert blocked.wait(10)
    assert caplog.messages == ["thread mine does not end: something blocks its loop"]
    [thread] = [thread for thread in threading.enumerate() if thread.name == "mine"]
    assert thread.daemon
    go_on.set()
    thread.join(10)
