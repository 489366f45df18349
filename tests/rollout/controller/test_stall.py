"""A rollout that does not get on is named, once: being alive is not making progress."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from typing import Any

import aiohttp
import pytest

from osmosis_ai.rollout.controller.bridge import Bridge
from osmosis_ai.rollout.controller.clock import DeadlineClock, Seconds
from osmosis_ai.rollout.controller.endpoint import RolloutEndpoint
from osmosis_ai.rollout.controller.listener import Controller
from osmosis_ai.rollout.controller.model.base import (
    ModelCall,
    ModelClient,
    ModelReply,
    ModelRequest,
)
from osmosis_ai.rollout.controller.retry import RetryPolicy
from osmosis_ai.rollout.controller.stall import StallWatch
from osmosis_ai.testing import Gate, Held, ScriptedModel
from tests.rollout.controller.calling import post, to


class Time(Seconds):
    """Passes when it is told to."""

    at = 0.0

    def now(self) -> float:
        return self.at


@pytest.fixture
async def time() -> Time:
    return Time()


def opened(time: Time, rollout_id: str = "r1", row: int = 3) -> RolloutEndpoint:
    loop = asyncio.get_running_loop()
    return RolloutEndpoint(
        base_url="http://here",
        api_key="key",
        first_call=ModelCall(rollout_id, row=row, attempt=1),
        clock=DeadlineClock(loop, lambda key: None, seconds=time),
        close=lambda endpoint: None,
    )


async def test_a_rollout_is_named_once_when_it_went_so_long_without_progress(time: Time) -> None:
    watch, endpoint = StallWatch(60), opened(time)
    time.at = 59
    assert list(watch.look([endpoint])) == []
    time.at = 61
    assert list(watch.look([endpoint])) == [
        "rollout r1 (row 3, attempt 1) has made no progress for 61 s, after 0 model calls"
    ]
    time.at = 300
    assert list(watch.look([endpoint])) == []


async def test_each_step_is_progress(time: Time) -> None:
    """A call that begins or ends, an answer, the start: not that its process is there."""
    watch, endpoint = StallWatch(60), opened(time)
    time.at = 50
    endpoint.set_deadline(1000)
    time.at = 100
    assert list(watch.look([endpoint])) == []
    with endpoint.begin_call():
        time.at = 150
        assert list(watch.look([endpoint])) == []
    time.at = 200
    assert list(watch.look([endpoint])) == []
    endpoint.note_progress()
    time.at = 250
    assert list(watch.look([endpoint])) == []
    endpoint.close()


async def test_a_call_that_takes_too_long_is_told_as_one(time: Time) -> None:
    watch, endpoint = StallWatch(60), opened(time)
    with endpoint.begin_call():
        pass
    with endpoint.begin_call():
        time.at = 60
        (said,) = watch.look([endpoint])
    assert said.endswith("has made no progress for 60 s, in its model call 2")


async def test_what_has_ended_is_forgotten(time: Time) -> None:
    """An id may come again; and a long run must not keep them all."""
    watch, first, second = StallWatch(60), opened(time), opened(time, "r2")
    time.at = 100
    assert len(list(watch.look([first, second]))) == 2
    assert list(watch.look([second])) == []
    assert len(list(watch.look([first]))) == 1


class Waiting(logging.Handler):
    """Sets an event when something is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.get_running_loop()
        self.said: asyncio.Queue[str] = asyncio.Queue()

    def emit(self, record: logging.LogRecord) -> None:
        self.loop.call_soon_threadsafe(self.said.put_nowait, record.getMessage())


async def test_a_controller_watches_its_rollouts(http: aiohttp.ClientSession) -> None:
    gate, handler = Gate(), Waiting()
    stalls = logging.getLogger("osmosis_ai.rollout.controller.stall")
    stalls.addHandler(handler)
    try:
        with (
            ScriptedModel(Held(gate, "late")) as model,
            Controller(to(model), stall_sec=0.05) as controller,
            controller.open_rollout("r1", row=7) as endpoint,
        ):
            call = asyncio.create_task(post(http, endpoint))
            await gate.reached.wait()
            said = await asyncio.wait_for(handler.said.get(), 30)
            gate.opened.set()
            assert (await call).text == "late"
    finally:
        stalls.removeHandler(handler)
    assert said.startswith("rollout r1 (row 7, attempt 0) has made no progress for 0 s")


async def test_a_chunk_is_progress(time: Time) -> None:
    """A long answer that comes word by word is not a stall."""
    seen: list[float] = []

    async def chunks() -> AsyncGenerator[bytes, None]:
        for _ in range(3):
            time.at += 50
            yield b'data: {"choices": [{"index": 0, "delta": {"content": "a"}}]}\n\n'

    class Streaming(ModelClient):
        async def complete(self, request: ModelRequest, call: ModelCall) -> ModelReply:
            return ModelReply(200, chunks=chunks(), content_type="text/event-stream")

    async def send(message: Any) -> None:
        seen.append(endpoint.idle_sec)

    bridge = Bridge(Streaming(), retry=RetryPolicy(), max_body_bytes=100)
    scope = {"headers": [(b"authorization", b"Bearer key")]}
    messages = [{"type": "http.request", "body": b"{}"}]

    async def receive() -> Any:
        return messages.pop() if messages else await asyncio.Event().wait()

    endpoint = opened(time)
    await bridge.serve_chat(endpoint, scope, receive, send)
    # The start of the answer, its chunks, and its end.
    assert (time.at, seen) == (150, [50, 0, 0, 0, 0])
