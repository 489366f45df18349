"""The bridge without its listener: what only a server's odd moments bring about."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

from osmosis_ai.rollout.controller.asgi import HttpError
from osmosis_ai.rollout.controller.bridge import Bridge
from osmosis_ai.rollout.controller.clock import DeadlineClock
from osmosis_ai.rollout.controller.endpoint import RolloutEndpoint
from osmosis_ai.rollout.controller.model.base import (
    ModelCall,
    ModelClient,
    ModelReply,
    ModelRequest,
)
from osmosis_ai.rollout.controller.retry import RetryPolicy

ANSWER = b'{"choices": [{"message": {"content": "42"}}]}'


class Replying(ModelClient):
    """Answers with what a function returns; an error or a wait are fine."""

    def __init__(self, reply: Callable[[], Any]) -> None:
        self._reply = reply

    async def complete(self, request: ModelRequest, call: ModelCall) -> ModelReply:
        reply: ModelReply = await self._reply()
        return reply


class Client:
    """The other side of one call, as a server shows it: what it sends, and what it was sent."""

    def __init__(self, *messages: dict[str, Any], reads: bool = True) -> None:
        self.sent: list[dict[str, Any]] = []
        self.waits = asyncio.Event()
        self.hangs_up = asyncio.Event()
        self._messages = [*messages] or [{"type": "http.request", "body": b"{}"}]
        self._reads = reads

    async def receive(self) -> dict[str, Any]:
        if self._messages:
            return self._messages.pop(0)
        await self.hangs_up.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.sent.append(message)
        if message["type"] == "http.response.body" and not self._reads:
            self.waits.set()
            await asyncio.Event().wait()

    def call(self, endpoint: RolloutEndpoint, reply: Callable[[], Any]) -> asyncio.Task[None]:
        bridge = Bridge(Replying(reply), retry=RetryPolicy(), max_body_bytes=100)
        scope = {"headers": [(b"authorization", b"Bearer key")]}
        return asyncio.ensure_future(bridge.serve_chat(endpoint, scope, self.receive, self.send))


@pytest.fixture
async def endpoint() -> RolloutEndpoint:
    return RolloutEndpoint(
        base_url="http://127.0.0.1:1",
        api_key="key",
        first_call=ModelCall("r1"),
        clock=DeadlineClock(asyncio.get_running_loop(), print),
        close=lambda endpoint: None,
    )


async def whole() -> ModelReply:
    return ModelReply(200, ANSWER)


async def never() -> ModelReply:
    await asyncio.Event().wait()
    raise AssertionError


async def endless() -> ModelReply:
    async def chunks() -> AsyncGenerator[bytes, None]:
        while True:
            yield b'data: {"choices": [{}]}\n\n'

    return ModelReply(200, chunks=chunks(), content_type="text/event-stream")


async def test_a_request_may_come_in_pieces_and_with_empty_ones(endpoint: RolloutEndpoint) -> None:
    client = Client(
        {"type": "http.request", "body": b"{", "more_body": True},
        {"type": "http.request", "more_body": True},
        {"type": "http.request", "body": b"}"},
    )
    await client.call(endpoint, whole)
    assert client.sent[1]["body"] == ANSWER


async def test_other_headers_before_the_key_do_no_harm(endpoint: RolloutEndpoint) -> None:
    bridge = Bridge(Replying(whole), retry=RetryPolicy(), max_body_bytes=100)
    client = Client()
    headers = [(b"host", b"x"), (b"authorization", b"Bearer key")]
    await bridge.serve_chat(endpoint, {"headers": headers}, client.receive, client.send)
    with pytest.raises(HttpError):
        await bridge.serve_models(endpoint, {"headers": headers[:1]}, client.send)


@pytest.mark.parametrize("reply", [never, endless])
async def test_a_task_that_somebody_cancels_stays_cancelled(
    endpoint: RolloutEndpoint, reply: Callable[[], Any]
) -> None:
    """The server's own end, which is none of ours to swallow."""
    client = Client(reads=False)
    task = client.call(endpoint, reply)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_answer_that_nobody_reads_ends_with_its_rollout(
    endpoint: RolloutEndpoint,
) -> None:
    """Half an answer was sent: there is nothing more to say to this client."""
    client = Client(reads=False)
    task = client.call(endpoint, whole)
    await client.waits.wait()
    endpoint.end_calls("over")
    endpoint.end_calls("over again")
    await task
    assert [message["type"] for message in client.sent] == [
        "http.response.start",
        "http.response.body",
    ]


async def test_a_hung_up_client_ends_the_call(endpoint: RolloutEndpoint) -> None:
    """Servers may show an empty piece of the request before the end of the client."""
    client = Client({"type": "http.request", "body": b"{}"}, {"type": "http.request", "body": b""})
    task = client.call(endpoint, never)
    client.hangs_up.set()
    await task
    assert endpoint.usage().calls == 1
    assert endpoint.usage().failed_calls == 0
