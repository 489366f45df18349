"""ScriptedModel: an OpenAI-compatible server on loopback that says what a test tells it to."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self, TypeAlias

from osmosis_ai.rollout.controller.loop_thread import run_in_thread
from osmosis_ai.rollout.controller.model.base import ModelCall, ModelRequest, parse_request
from osmosis_ai.rollout.controller.model.scripted import to_completion
from osmosis_ai.rollout.controller.sse import DONE, to_events
from osmosis_ai.testing.http_connection import Connection, HttpRequest, read_request
from osmosis_ai.testing.replies import (
    PATIENCE_SEC,
    Gate,
    HangUp,
    Held,
    HttpReply,
    Reply,
    Signal,
    StreamReply,
    encode_part,
)

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class LoggedCall:
    """One chat completion call as it arrived."""

    number: int
    """0 for the first call of the model's life."""
    path: str
    asked: ModelRequest
    headers: dict[str, str]
    """Names in lower case."""
    hung_up: Signal = field(default_factory=Signal)
    """Set when the client goes away before it has its answer."""

    @property
    def request(self) -> dict[str, Any]:
        """The body, parsed."""
        return self.asked.data

    @property
    def body(self) -> bytes:
        """The body as it came."""
        return self.asked.body


Script: TypeAlias = Callable[[dict[str, Any], LoggedCall], Reply | Awaitable[Reply]]
"""Takes a request and the call it came with, and says the reply; may be `async def`."""


class ScriptedModel:
    """Serves chat completions while its `with` block lasts, from a thread of its own.

    `replies` is a list, used up call by call; or a function of request and call; or one reply,
    given to every call. A reply is a text, an assistant message, a whole `chat.completion`, or one
    of `HttpReply`, `StreamReply`, `HangUp`, `Held`. Clients that ask for a stream get one.

        with ScriptedModel(["Let me see.", HttpReply(503), "42"]) as model:
            ...  # call model.base_url + "/chat/completions"
        assert len(model.calls) == 3
    """

    def __init__(
        self, replies: Reply | Sequence[Reply] | Script, *, api_key: str | None = None
    ) -> None:
        self.calls: list[LoggedCall] = []
        """Every call so far, in the order of arrival."""
        self.base_url: str
        """What an OpenAI client is given as its `base_url`, once the model serves."""
        self._say = _script(replies)
        self._api_key = api_key
        self._arrivals = threading.Condition()
        self._connections: set[asyncio.Task[None]] = set()

    def __enter__(self) -> Self:
        self._stack = ExitStack()
        service = run_in_thread(self._serve, name="scripted-model")
        _, self.base_url = self._stack.enter_context(service)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

    async def received(self, count: int, *, timeout_sec: float = PATIENCE_SEC) -> None:
        """Wait until so many calls have arrived; raises TimeoutError."""
        if not await asyncio.to_thread(self._wait_for, count, timeout_sec):
            raise TimeoutError(f"{len(self.calls)} of {count} calls came in {timeout_sec:g} s")

    def _wait_for(self, count: int, timeout_sec: float) -> bool:
        with self._arrivals:
            return self._arrivals.wait_for(lambda: len(self.calls) >= count, timeout_sec)

    @asynccontextmanager
    async def _serve(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._connect, LOOPBACK, 0)
        try:
            yield f"http://{LOOPBACK}:{server.sockets[0].getsockname()[1]}/v1"
        finally:
            server.close()
            for task in self._connections:
                task.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        try:
            while (request := await read_request(reader)) is not None:
                await self._answer(request, reader, Connection(writer))
                if request.headers.get("connection", "").lower() == "close":
                    break
        except (ConnectionError, asyncio.CancelledError):
            pass  # the client hung up while it was answered, or the model stops serving
        finally:
            writer.close()

    async def _answer(
        self, request: HttpRequest, reader: asyncio.StreamReader, connection: Connection
    ) -> None:
        if self._api_key and request.headers.get("authorization") != f"Bearer {self._api_key}":
            await _send_http(_error(401, "this key is not known here"), connection)
        elif request.method == "GET":
            await _send_http(HttpReply(200, _MODELS), connection)
        else:
            try:
                asked = parse_request(request.body)
            except ValueError as error:
                await _send_http(_error(400, str(error)), connection)
            else:
                await self._answer_call(self._log(request, asked), reader, connection)

    def _log(self, request: HttpRequest, asked: ModelRequest) -> LoggedCall:
        with self._arrivals:
            call = LoggedCall(
                number=len(self.calls), path=request.path, asked=asked, headers=request.headers
            )
            self.calls.append(call)
            self._arrivals.notify_all()
        return call

    async def _answer_call(
        self, call: LoggedCall, reader: asyncio.StreamReader, connection: Connection
    ) -> None:
        """Answer, unless the client goes away first: while it waits, it has nothing to send."""
        answer = asyncio.ensure_future(self._reply(call, connection))
        gone = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                call.hung_up.set()
                raise ConnectionResetError
            await answer
        finally:
            answer.cancel()
            gone.cancel()
            await asyncio.gather(answer, gone, return_exceptions=True)

    async def _reply(self, call: LoggedCall, connection: Connection) -> None:
        try:
            reply = self._say(call.request, call)
            if inspect.isawaitable(reply):
                reply = await reply
        except Exception as error:  # the script is the test's: the caller sees what it raised
            reply = _error(500, f"{type(error).__name__}: {error}")
        await _send(reply, call, connection)


def _script(replies: Reply | Sequence[Reply] | Script) -> Script:
    if callable(replies):
        return replies
    if isinstance(replies, str) or not isinstance(replies, Sequence):
        return lambda _request, _call: replies
    return lambda _request, call: _nth(replies, call.number)


def _nth(replies: Sequence[Reply], number: int) -> Reply:
    if number >= len(replies):
        raise LookupError(f"the script has {len(replies)} replies, and call {number + 1} came")
    return replies[number]


async def _send(reply: Reply, call: LoggedCall, connection: Connection) -> None:
    match reply:
        case Held():
            await reply.gate.pass_through()
            await _send(reply.reply, call, connection)
        case HttpReply():
            await _send_http(reply, connection)
        case StreamReply():
            await _send_stream(reply, call, connection)
        case HangUp():
            await connection.send_raw(reply.after)
            connection.close()
        case _:
            await _send_completion(reply, call, connection)


async def _send_http(reply: HttpReply, connection: Connection) -> None:
    await connection.send_whole(
        reply.status, reply.data, content_type=reply.content_type, headers=reply.headers
    )


async def _send_completion(reply: Any, call: LoggedCall, connection: Connection) -> None:
    completion = to_completion(
        reply, request=call.request, call=ModelCall("scripted", turn=call.number)
    )
    if not call.asked.wants_stream:
        await _send_http(HttpReply(200, completion), connection)
        return
    await connection.start_stream()
    for event in to_events(completion, with_usage=call.asked.wants_usage_chunk):
        await connection.send_chunk(event)
    await connection.send_chunk(b"")


async def _send_stream(reply: StreamReply, call: LoggedCall, connection: Connection) -> None:
    await connection.start_stream()
    for part in reply.parts:
        if isinstance(part, Gate):
            await part.pass_through()
        else:
            await connection.send_chunk(encode_part(part))
    if reply.end == "cut":
        connection.close()
        return
    if reply.end == "done":
        for event in _endings(reply, call):
            await connection.send_chunk(event)
    await connection.send_chunk(b"")


def _endings(reply: StreamReply, call: LoggedCall) -> Iterator[bytes]:
    yield encode_part({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    if call.asked.wants_usage_chunk:
        texts = sum(isinstance(part, str) for part in reply.parts)
        usage = {"prompt_tokens": 1, "completion_tokens": texts, "total_tokens": texts + 1}
        yield encode_part({"choices": [], "usage": usage})
    yield DONE


def _error(status: int, message: str) -> HttpReply:
    return HttpReply(status, {"error": {"message": message, "type": "scripted", "code": status}})


_MODELS = {"object": "list", "data": [{"id": "scripted", "object": "model", "created": 0}]}
