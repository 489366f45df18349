"""A route whose JSON body becomes its model in one step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args, get_type_hints

from fastapi import Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.types import Receive, Scope, Send

from osmosis_ai.rollout.safe_json import dump_json


class InvalidField(BaseModel):
    """One thing that is wrong with a body, and where."""

    type: str
    loc: list[str | int]
    msg: str


class Problem(BaseModel):
    """Why a request was refused."""

    detail: str | list[InvalidField]


class BodyRoute(APIRoute):
    """A route whose endpoint takes one model, `body`, and returns an ASGI response.

    The usual way parses the body into objects and those into the model, gathers dependencies and
    sends the result through a model again: more work than all else that a rollout costs. The
    schema is made from the endpoint's signature as ever. What is wrong with a body is said without
    the body, which holds keys.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        hint = get_type_hints(endpoint)["body"]
        models: tuple[type[BaseModel], ...] = get_args(hint) or (hint,)
        for model in models:
            _build(model)
        self._parse = self.parser(models)
        super().__init__(path, endpoint, **options)

    def parser(self, models: tuple[type[BaseModel], ...]) -> Callable[[bytes], BaseModel]:
        """What makes the model of a body; for more models than one, a route of its own says it."""
        (model,) = models
        return model.model_validate_json

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Starlette's hook for a request that matches."""
        if scope["method"] in (self.methods or ()):
            await self._answer(scope, receive, send)
        else:
            await super().handle(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        limit: int = scope["app"].state.max_body_bytes
        data = await _read(receive, max_bytes=limit)
        if data is None:
            return
        if len(data) > limit:
            response = json_response({"detail": f"a body has at most {limit:,} bytes"}, 413)
            await response(scope, receive, send)
            return
        try:
            body = self._parse(data)
        except ValidationError as exc:
            response = _invalid(exc)
        else:
            response = await self.endpoint(body)
        await response(scope, receive, send)


def _build(model: type[BaseModel]) -> None:
    """Build a model that was to be built on first use, which is now.

    FastAPI puts off what it makes of such a model, and pydantic then warns of it.
    """
    if model.model_config.get("defer_build"):
        model.model_config["defer_build"] = False
        model.model_rebuild(force=True)


async def _read(receive: Receive, *, max_bytes: int) -> bytes | None:
    """The whole body, as much of it as shows that it is too large, or None without a client."""
    message = await receive()
    data: bytes = message.get("body", b"")
    if not message.get("more_body", False):
        return data if message["type"] == "http.request" else None
    chunks, size = [data], len(data)
    while message.get("more_body", False) and size <= max_bytes:
        message = await receive()
        chunks.append(message.get("body", b""))
        size += len(chunks[-1])
    return b"".join(chunks) if message["type"] == "http.request" else None


def json_response(
    content: Any, status_code: int = 200, *, headers: dict[str, str] | None = None
) -> Response:
    """A response with whatever JSON there is in `content`."""
    return Response(
        dump_json(content).data,
        status_code=status_code,
        headers=headers,
        media_type="application/json",
    )


def _invalid(error: ValidationError) -> Response:
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    detail = [
        {"type": one["type"], "loc": ["body", *one["loc"]], "msg": one["msg"]} for one in errors
    ]
    return json_response({"detail": detail}, 422)
