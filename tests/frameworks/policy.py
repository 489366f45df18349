"""A policy endpoint on loopback: each test says how it answers."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from osmosis_ai.rollout.context import RolloutContext

Request = dict[str, Any]


@dataclass(frozen=True)
class Broken:
    """An answer that fails: a status, or in the middle of a stream after `text`."""

    status: int = 200
    text: str = ""
    how: str = "status"
    """`status`, or in a stream `error` (an error event), `cut` (the connection), `end` (no
    finish reason)."""


Reply = str | dict[str, Any] | Broken


@dataclass
class Policy:
    """`answer(request, rollout_id)` is called in the server's thread for each request."""

    answer: Callable[[Request, str], Reply]
    port: int = 0
    requests: list[Request] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    served: list[str] = field(default_factory=list)

    def url(self, rollout_id: str) -> str:
        return f"http://127.0.0.1:{self.port}/{rollout_id}/v1"

    def context(self, rollout_id: str = "r1", *, key: str | None = "key") -> RolloutContext:
        return RolloutContext(self.url(rollout_id), api_key=key, rollout_id=rollout_id)

    async def serve(self, http: web.Request) -> web.StreamResponse:
        request = await http.json()
        rollout_id = http.match_info["rollout"]
        self.requests.append(request)
        self.keys.append(http.headers.get("Authorization"))
        self.served.append(rollout_id)
        reply = self.answer(request, rollout_id)
        if isinstance(reply, Broken) and reply.how == "status":
            error = {"message": reply.text or "the policy said no", "code": reply.status}
            return web.json_response({"error": error}, status=reply.status)
        if request.get("stream"):
            return await _stream(http, reply, usage=bool(request.get("stream_options")))
        assert not isinstance(reply, Broken)
        return web.json_response(completion(reply))


@contextmanager
def serving(answer: Callable[[Request, str], Reply]) -> Iterator[Policy]:
    """A policy in a thread of its own: a rollout that blocks its loop is answered too."""
    policy = Policy(answer)
    loop = asyncio.new_event_loop()
    ready = threading.Event()
    runners: list[web.AppRunner] = []

    async def start() -> None:
        app = web.Application(client_max_size=2**28)
        app.router.add_post("/{rollout}/v1/chat/completions", policy.serve)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, backlog=1024)
        await site.start()
        policy.port = runner.addresses[0][1]
        runners.append(runner)

    def run() -> None:
        loop.run_until_complete(start())
        loop.call_soon(ready.set)
        loop.run_forever()
        loop.run_until_complete(runners[0].cleanup())
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()

    thread = threading.Thread(target=run, name="policy")
    thread.start()
    ready.wait()
    try:
        yield policy
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


def call(name: str, arguments: Any, *, call_id: str = "call_1") -> dict[str, Any]:
    """A message that calls one tool; `arguments` as text are sent as they are."""
    return {"role": "assistant", "content": None, "tool_calls": [_call(name, arguments, call_id)]}


def calls(*wanted: tuple[str, Any]) -> dict[str, Any]:
    """A message that calls several tools at once."""
    each = [_call(name, args, f"call_{n}") for n, (name, args) in enumerate(wanted)]
    return {"role": "assistant", "content": None, "tool_calls": each}


def last_tool_result(request: Request) -> str:
    """The newest tool result as the policy sees it."""
    result = [m for m in request["messages"] if m["role"] == "tool"][-1]["content"]
    if isinstance(result, list):
        return "".join(part.get("text", "") for part in result)
    return str(result)


def turn(request: Request) -> int:
    """How many times the policy has spoken in this conversation."""
    return sum(message["role"] == "assistant" for message in request["messages"])


def completion(reply: str | dict[str, Any]) -> dict[str, Any]:
    message = _message(reply)
    reason = "tool_calls" if message.get("tool_calls") else "stop"
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "policy",
        "choices": [{"index": 0, "message": message, "finish_reason": reason}],
        "usage": USAGE,
    }


USAGE = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}


def _call(name: str, arguments: Any, call_id: str) -> dict[str, Any]:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}


def _message(reply: str | dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": reply} if isinstance(reply, str) else reply


async def _stream(http: web.Request, reply: Reply, *, usage: bool) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(http)

    async def send(event: Any) -> None:
        await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")

    if isinstance(reply, Broken):
        await send(_chunk({"role": "assistant", "content": reply.text}))
        if reply.how == "cut":
            assert http.transport is not None
            http.transport.abort()
            return response
        if reply.how == "error":
            await send({"error": {"message": "the engine crashed", "code": 500}})
    else:
        message = _message(reply)
        for delta in _deltas(message):
            await send(_chunk(delta))
        await send(_chunk({}, "tool_calls" if message.get("tool_calls") else "stop"))
        if usage:
            await send({**_chunk({}), "choices": [], "usage": USAGE})
    await response.write(b"data: [DONE]\n\n")
    return response


def _deltas(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield {"role": "assistant", "content": ""}
    if message.get("reasoning_content"):
        yield {"reasoning_content": message["reasoning_content"]}
    text = message.get("content") or ""
    half = len(text) // 2
    for part in (text[:half], text[half:]):
        if part:
            yield {"content": part}
    for index, tool in enumerate(message.get("tool_calls") or ()):
        function = tool["function"]
        yield {"tool_calls": [{**tool, "index": index, "function": {**function, "arguments": ""}}]}
        yield {"tool_calls": [{"index": index, "function": {"arguments": function["arguments"]}}]}


def _chunk(delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "policy",
        "choices": [{"index": 0, "delta": delta, "finish_reason": reason}],
    }
