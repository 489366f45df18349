"""What a scripted model can say, and the gates at which it waits for the test."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import orjson

PATIENCE_SEC = 10.0
"""How long a test waits for what must happen, before it fails instead of hanging."""


class Signal:
    """Something that happens once, in one thread, and that any thread or loop can wait for."""

    def __init__(self) -> None:
        self._future: Future[None] = Future()

    def set(self) -> None:
        """Let it happen; a second time changes nothing."""
        if not self._future.done():
            self._future.set_result(None)

    @property
    def is_set(self) -> bool:
        """Whether it has happened."""
        return self._future.done()

    async def wait(self, timeout_sec: float | None = PATIENCE_SEC) -> None:
        """Wait for it, in any event loop; raises TimeoutError."""
        async with asyncio.timeout(timeout_sec):
            await asyncio.shield(asyncio.wrap_future(self._future))

    def block(self, timeout_sec: float | None = PATIENCE_SEC) -> None:
        """Wait for it in a thread without an event loop; raises TimeoutError."""
        self._future.result(timeout_sec)


@dataclass(frozen=True, slots=True)
class Gate:
    """A place where the model waits until the test lets it go on.

    gate = Gate()
    with ScriptedModel(Held(gate, "Hello.")) as model:
        ...                     # start a call
        await gate.reached.wait()
        ...                     # the call is under way, and unanswered
        gate.opened.set()
    """

    reached: Signal = field(default_factory=Signal)
    opened: Signal = field(default_factory=Signal)

    async def pass_through(self) -> None:
        """Say that the gate is reached, and wait until it is open."""
        self.reached.set()
        await self.opened.wait(timeout_sec=None)


@dataclass(frozen=True, slots=True)
class HttpReply:
    """A bare HTTP answer: an error, a page of HTML, anything."""

    status: int
    body: str | bytes | Mapping[str, Any] = b""
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def data(self) -> bytes:
        """The body as it is sent."""
        if isinstance(self.body, bytes):
            return self.body
        return self.body.encode() if isinstance(self.body, str) else orjson.dumps(self.body)

    @property
    def content_type(self) -> str:
        """JSON for a mapping, else plain text."""
        return "application/json" if isinstance(self.body, Mapping) else "text/plain"


@dataclass(frozen=True, slots=True)
class StreamReply:
    """An event stream part by part, each sent on its own.

    A text becomes a content delta, a mapping an event as it is, bytes go out raw; at a gate the
    stream waits. It ends with a finish, usage of one token a part, and `[DONE]`; or, where `end`
    says so, the body just ends, or the connection is cut.
    """

    parts: Sequence[str | Mapping[str, Any] | bytes | Gate]
    end: Literal["done", "short", "cut"] = "done"


@dataclass(frozen=True, slots=True)
class HangUp:
    """Close the connection instead of answering, after these raw bytes."""

    after: bytes = b""


@dataclass(frozen=True, slots=True)
class Held:
    """Wait at a gate, then give the reply."""

    gate: Gate
    reply: Reply


Reply: TypeAlias = str | Mapping[str, Any] | HttpReply | StreamReply | HangUp | Held
"""A text, an assistant message, a whole `chat.completion`, or one of the special replies."""


def call_tool(name: str, /, **arguments: Any) -> dict[str, Any]:
    """The assistant message that calls one tool."""
    return {"tool_calls": [{"function": {"name": name, "arguments": arguments}}]}


def encode_part(part: str | Mapping[str, Any] | bytes) -> bytes:
    """One part of a stream as it is sent."""
    if isinstance(part, bytes):
        return part
    if isinstance(part, str):
        part = {"choices": [{"index": 0, "delta": {"content": part}, "finish_reason": None}]}
    return b"data: " + orjson.dumps({**CHUNK, **part}) + b"\n\n"


CHUNK = {"id": "chatcmpl-scripted", "object": "chat.completion.chunk", "created": 0}
