"""Calls in another dialect, answered by an endpoint that speaks chat completions alone."""

from __future__ import annotations

import asyncio
import importlib
import json
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any, Protocol, cast

import orjson

from osmosis_ai.errors import MissingExtraError
from osmosis_ai.rollout.dialect import Dialect, DialectError
from osmosis_ai.rollout.safe_json import dump_json


class Interpreter(Protocol):
    """Who knows the shapes."""

    async def translate(
        self, dialect: Dialect, body: dict[str, Any], *, base_url: str, api_key: str
    ) -> dict[str, Any] | AsyncGenerator[bytes, None]:
        """The answer, or the events of its stream; DialectError where there is none."""

    async def close(self) -> None:
        """Release what the calls took."""


@dataclass(frozen=True, slots=True)
class Translated:
    """What to answer a call with: a body, or the events of a stream."""

    status: int = 200
    body: bytes = b""
    events: AsyncGenerator[bytes, None] | None = None
    fault: str | None = None
    """Why the call failed before it reached the model, where that is not the agent's doing."""


def load_interpreter() -> Interpreter:
    """LiteLLM's; MissingExtraError where it is not installed."""
    name = "osmosis_ai.rollout.litellm_interpreter"
    return cast(Interpreter, importlib.import_module(name).LiteLLMInterpreter())


class Translator:
    """Answers calls by calling the chat completions of the same endpoint; lives in one event loop.

    So a translated call is counted, tried again and recorded as every other is. What knows the
    shapes is loaded with the first call: it takes seconds and 200 MB.
    """

    def __init__(self, load: Callable[[], Interpreter] = load_interpreter) -> None:
        self._load = load
        self._interpreter: Interpreter | None = None

    async def answer(
        self, dialect: Dialect, body: bytes, *, base_url: str, api_key: str
    ) -> Translated:
        """The answer to a call, errors in the dialect's own shape."""
        try:
            request = _parse(dialect, body)
            interpreter = await self._ready()
            said = await interpreter.translate(dialect, request, base_url=base_url, api_key=api_key)
        except DialectError as error:
            return _refusal(dialect, error)
        if isinstance(said, dict):
            return Translated(body=dump_json(said).data)
        return Translated(events=_to_the_end(dialect, said))

    async def close(self) -> None:
        """Release what the calls took."""
        if self._interpreter is not None:
            await self._interpreter.close()

    async def _ready(self) -> Interpreter:
        if self._interpreter is None:
            try:
                # Not in this thread: other calls go on while the import takes its seconds.
                loaded = await asyncio.to_thread(self._load)
            except MissingExtraError as error:
                raise DialectError(501, str(error), fault=True) from error
            # Of calls that came together the first one's counts.
            self._interpreter = self._interpreter or loaded
        return self._interpreter


def _parse(dialect: Dialect, body: bytes) -> dict[str, Any]:
    request = _load(body)
    if not isinstance(request, dict):
        raise DialectError(400, f"the body must be a JSON object, not {type(request).__name__}")
    for name in dialect.required:
        if request.get(name) is None:
            raise DialectError(400, f"{name} is missing")
    for name, advice in dialect.unavailable.items():
        if request.get(name):
            raise DialectError(400, f"{name} is not available in a rollout: {advice}")
    return request


def _load(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except ValueError:
        pass
    try:
        # A lone surrogate could not be sent on.
        return orjson.loads(dump_json(json.loads(body)).data)
    except (ValueError, RecursionError) as error:
        raise DialectError(400, f"the body is not JSON: {error}") from error


def _refusal(dialect: Dialect, error: DialectError) -> Translated:
    body = dialect.error_body(str(error), status=error.status)
    return Translated(error.status, body, fault=error.fault)


async def _to_the_end(
    dialect: Dialect, events: AsyncGenerator[bytes, None]
) -> AsyncGenerator[bytes, None]:
    """The events, and an error as the last one where they break off."""
    try:
        async for event in events:
            yield event
    except DialectError as error:
        yield dialect.error_event(str(error), status=error.status)
    finally:
        await events.aclose()
