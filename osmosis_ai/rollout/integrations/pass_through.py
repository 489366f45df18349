"""A server on loopback, in the rollout's own process, that hands model calls on and keeps them."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import threading
from collections.abc import Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

from osmosis_ai._extras import requires_extra
from osmosis_ai.rollout.dialect import ROUTES, Dialect
from osmosis_ai.rollout.integrations.model_call import (
    Message,
    ModelCall,
    parse_object,
    read_call,
)
from osmosis_ai.rollout.translator import Translator

with requires_extra("server", "EndpointSampleSource"):
    import aiohttp
    from aiohttp import web


def pass_through(recording: Recording) -> str:
    """The base URL whose calls are handed on to `recording.upstream` and kept in `recording`.

    It answers as long as somebody holds the recording. The server starts with the first one.
    """
    return _server().url_of(recording)


_lock = threading.Lock()
_running: list[_PassThrough] = []


def _server() -> _PassThrough:
    """This process's own; a forked child has its parent's memory, but not its thread."""
    with _lock:
        if not _running or _running[-1].pid != os.getpid():
            _running[:] = [_PassThrough()]
        return _running[-1]


@dataclass(eq=False, slots=True)
class Passing:
    """One call on its way. What came back is here before the agent has it."""

    messages: list[Message]
    status: int | None = None
    answer: bytearray = field(default_factory=bytearray)


@dataclass(eq=False)
class Recording:
    """The calls of one rollout; it lives as long as its sample source."""

    upstream: str
    api_key: str | None = field(repr=False)
    translator: Translator | None = None
    """Who answers calls in other dialects; the server's own where it is None."""
    passing: list[Passing] = field(default_factory=list)

    def begin(self, body: bytes) -> Passing | None:
        """Take down a request; None where it is no chat completion."""
        messages = parse_object(body).get("messages")
        if not isinstance(messages, list) or not all(isinstance(m, dict) for m in messages):
            return None
        # Each request repeats the conversation; together they are quadratic in its length.
        before = self.passing[-1].messages if self.passing else []
        known = _common(before, messages)
        call = Passing(before[:known] + messages[known:])
        self.passing.append(call)
        return call

    def calls(self) -> list[ModelCall]:
        return [
            read_call(call.messages, call.status, bytes(call.answer)) for call in list(self.passing)
        ]


class _PassThrough:
    """One server on loopback, in a thread of its own: a rollout that blocks its loop is served."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._translator = Translator()
        self._recordings: WeakValueDictionary[str, Recording] = WeakValueDictionary()
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=2048)
        # A daemon: it serves until the process ends. What is asked before it does, waits.
        threading.Thread(target=self._run, name="osmosis-recorder", daemon=True).start()

    def url_of(self, recording: Recording) -> str:
        token = secrets.token_hex(16)
        self._recordings[token] = recording
        return self._url(token)

    def _url(self, token: str) -> str:
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}/{token}/v1"

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        app = web.Application(client_max_size=2**40)
        app.router.add_route("*", "/{token}/v1/{tail:.*}", self._pass_on)
        runner = web.AppRunner(app, access_log=None, keepalive_timeout=86_400)
        await runner.setup()
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=60)
        connector = aiohttp.TCPConnector(limit=0)
        # As it is: what a model says must reach the agent in the bytes it was said in.
        async with aiohttp.ClientSession(
            connector=connector, timeout=timeout, auto_decompress=False
        ) as self._session:
            await web.SockSite(runner, self._socket, backlog=2048).start()
            await asyncio.Event().wait()

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        recording = self._recordings.get(request.match_info["token"])
        tail = request.match_info["tail"]
        dialect = ROUTES.get(tail)
        if recording is None:
            return _error(404, "this rollout has ended: its model answers no more", dialect)
        body = await request.read()
        if dialect is not None and request.method == "POST":
            translator = recording.translator or self._translator
            return await self._translate(translator, dialect, request, body)
        call = recording.begin(body) if tail == "chat/completions" else None
        url = f"{recording.upstream}/{tail}"
        if request.query_string:
            url += f"?{request.query_string}"
        try:
            async with self._session.request(
                request.method, url, data=body, headers=_onward(request.headers, recording)
            ) as answer:
                return await _pass_back(request, answer, call)
        except aiohttp.ClientConnectionError as exc:
            return _error(502, f"the rollout's model endpoint cannot be reached: {exc}")

    async def _translate(
        self, translator: Translator, dialect: Dialect, request: web.Request, body: bytes
    ) -> web.StreamResponse:
        """The answer of a call that is made to this recorder once more, as a chat completion."""
        answer = await translator.answer(
            dialect,
            body,
            base_url=self._url(request.match_info["token"]),
            api_key=_key_of(request.headers),
        )
        if answer.events is None:
            return _in_json(answer.status, answer.body)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        # An agent that has hung up is sent no more.
        with suppress(ConnectionError):
            async with aclosing(answer.events):
                await response.prepare(request)
                async for event in answer.events:
                    await response.write(event)
                await response.write_eof()
        return response


async def _pass_back(
    request: web.Request, answer: aiohttp.ClientResponse, call: Passing | None
) -> web.StreamResponse:
    headers = {k: v for k, v in answer.headers.items() if k.lower() not in _OF_ONE_HOP}
    response = web.StreamResponse(status=answer.status, reason=answer.reason, headers=headers)
    if call is not None:
        call.status = answer.status
    await response.prepare(request)
    try:
        async for chunk in answer.content.iter_any():
            if call is not None:
                call.answer += chunk
            await response.write(chunk)
    except (aiohttp.ClientError, ConnectionError):
        # Half an answer must look like one: the connection breaks here as it broke there.
        request.protocol.force_close()
        return response
    await response.write_eof()
    return response


def _onward(headers: Mapping[str, str], recording: Recording) -> dict[str, str]:
    kept = {k: v for k, v in headers.items() if k.lower() not in _OF_ONE_HOP}
    kept["Accept-Encoding"] = "identity"
    if recording.api_key is not None:
        kept = {k: v for k, v in kept.items() if k.lower() != "authorization"}
        kept["Authorization"] = f"Bearer {recording.api_key}"
    return kept


_OF_ONE_HOP = frozenset(
    {
        "accept-encoding",
        "connection",
        "content-length",
        "host",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)


def _key_of(headers: Mapping[str, str]) -> str:
    """The agent's own key, for a rollout that has none."""
    bearer = headers.get("Authorization", "").removeprefix("Bearer ")
    return headers.get("X-Api-Key") or bearer or "none"


def _error(status: int, message: str, dialect: Dialect | None = None) -> web.Response:
    if dialect is not None:
        return _in_json(status, dialect.error_body(message, status=status))
    body = {"error": {"message": message, "type": "recorder_error", "code": status}}
    return web.json_response(body, status=status)


def _in_json(status: int, body: bytes) -> web.Response:
    return web.Response(status=status, body=body, content_type="application/json")


def _common(one: list[Any], other: list[Any]) -> int:
    """How many items both lists begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))
