"""A server with an `api_key` answers only those who send it."""

from __future__ import annotations

import hmac

from starlette.types import ASGIApp, Receive, Scope, Send

from osmosis_ai.rollout.server.body_route import json_response

OPEN_PATH = "/health"


class BearerGate:
    """Middleware that lets requests with the key pass, and whoever asks for the server's health."""

    def __init__(self, app: ASGIApp, *, api_key: str) -> None:
        self._app = app
        self._api_key = api_key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 401 in place of the app where the key is missing or wrong."""
        if scope["type"] != "http" or self._may_pass(scope):
            await self._app(scope, receive, send)
            return
        response = json_response(
            {"detail": "this server needs its api_key: send Authorization: Bearer <key>"},
            401,
            headers={"WWW-Authenticate": "Bearer"},
        )
        await response(scope, receive, send)

    def _may_pass(self, scope: Scope) -> bool:
        if scope["path"].removeprefix(scope.get("root_path", "")) == OPEN_PATH:
            return True
        given = dict(scope["headers"]).get(b"authorization", b"")
        scheme, _, key = given.partition(b" ")
        return scheme.lower() == b"bearer" and hmac.compare_digest(key.strip(), self._api_key)
