"""The few pieces of ASGI the listener needs: read a body, send JSON, check a bearer."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

import orjson

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

JSON = b"application/json"


class HttpError(Exception):
    """An answer that is not the one the caller hoped for; `str()` is written for them."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Disconnected(Exception):
    """The caller hung up before it had sent its request."""


async def read_body(receive: Receive, *, max_bytes: int) -> bytes:
    """The whole body of a request; a longer one is an HttpError 413."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise Disconnected
        part: bytes = message.get("body", b"")
        parts.append(part)
        size += len(part)
        if size > max_bytes:
            raise HttpError(413, f"the body is longer than {max_bytes:,} bytes")
        if not message.get("more_body"):
            return b"".join(parts)


async def send_whole(send: Send, status: int, body: bytes, *, content_type: bytes = JSON) -> None:
    """Send an answer in one piece; errors tell OpenAI clients not to try again."""
    headers = [(b"content-type", content_type), (b"content-length", b"%d" % len(body))]
    if status >= 300:
        # Retries happened here already: a client's own would multiply them.
        headers.append((b"x-should-retry", b"false"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def send_error(send: Send, status: int, message: str) -> None:
    """Send an error in the shape of OpenAI's."""
    await send_whole(send, status, error_body(message, status=status))


def error_body(message: str, *, status: int) -> bytes:
    """An error as OpenAI clients expect it."""
    return orjson.dumps({"error": {"message": message, "type": "osmosis", "code": status}})


def check_bearer(scope: Scope, token: bytes) -> None:
    """Raise HttpError 401 unless the request carries this token."""
    expected = b"Bearer " + token
    for name, value in scope["headers"]:
        if name == b"authorization":
            if hmac.compare_digest(value, expected):
                return
            break
    raise HttpError(401, "this URL belongs to one rollout and needs that rollout's API key")
