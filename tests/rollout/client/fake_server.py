"""A rollout server that says what a test tells it to say, on every route."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from osmosis_ai.rollout.controller.asgi import read_body
from osmosis_ai.testing import HangUp, HttpReply

Say = Callable[[str, dict[str, Any]], Any]
"""Gets a route's last word (`rollout`, `cancel`, `status`, `result`, `health`) and the body."""


def fake_server(say: Say) -> Any:
    """The app that answers with what `say` returns; None is a hang-up."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body = await read_body(receive, max_bytes=2**20)
        reply = say(scope["path"].rpartition("/")[2], json.loads(body or b"{}"))
        if isinstance(reply, HangUp):
            raise ConnectionError("hang up")
        headers = [(key.lower().encode(), value.encode()) for key, value in reply.headers.items()]
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        await send({"type": "http.response.body", "body": reply.data})

    return app


def said(**body: Any) -> HttpReply:
    """A 200 with this body."""
    return HttpReply(200, body)
