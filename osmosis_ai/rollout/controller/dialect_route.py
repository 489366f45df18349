"""Model calls in other dialects: translated, and made to this listener once more."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from typing import Any

from osmosis_ai.rollout.controller.asgi import (
    Receive,
    Scope,
    Send,
    check_bearer,
    read_body,
    send_whole,
)
from osmosis_ai.rollout.controller.endpoint import RolloutEndpoint
from osmosis_ai.rollout.dialect import Dialect
from osmosis_ai.rollout.translator import Translated, Translator


async def serve_dialect(
    translator: Translator,
    dialect: Dialect,
    endpoint: RolloutEndpoint,
    *,
    base_url: str,
    scope: Scope,
    receive: Receive,
    send: Send,
    max_body_bytes: int,
) -> None:
    """Answer one call, made to `base_url`; raises HttpError for what is not translated."""
    _check_key(scope, endpoint.token)
    body = await read_body(receive, max_bytes=max_body_bytes)

    async def work() -> None:
        answer = await translator.answer(dialect, body, base_url=base_url, api_key=endpoint.api_key)
        await _send(answer, endpoint, send)

    await _unless_hung_up(work(), receive)


def _check_key(scope: Scope, token: bytes) -> None:
    """Anthropic's clients send the key in a header of their own."""
    keys = [value for name, value in scope["headers"] if name == b"x-api-key"]
    if not any(hmac.compare_digest(key, token) for key in keys):
        check_bearer(scope, token)


async def _send(answer: Translated, endpoint: RolloutEndpoint, send: Send) -> None:
    if answer.fault is not None:
        # Nothing else counts it: it never became a model call.
        with endpoint.begin_call() as call:
            call.failed(answer.fault, None)
    if answer.events is None:
        await send_whole(send, answer.status, answer.body)
    else:
        await _send_events(answer.events, send)


async def _send_events(events: AsyncGenerator[bytes, None], send: Send) -> None:
    headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]
    async with aclosing(events):
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async for event in events:
            await send({"type": "http.response.body", "body": event, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _unless_hung_up(work: Coroutine[Any, Any, None], receive: Receive) -> None:
    """Do the work, or as much of it as the client waits for: nobody would read the rest."""
    answering = asyncio.ensure_future(work)
    # After the body of a request nothing comes but its end.
    watching = asyncio.ensure_future(receive())
    try:
        await asyncio.wait({answering, watching}, return_when=asyncio.FIRST_COMPLETED)
        if answering.done():
            await answering
    finally:
        answering.cancel()
        watching.cancel()
        await asyncio.gather(answering, watching, return_exceptions=True)
