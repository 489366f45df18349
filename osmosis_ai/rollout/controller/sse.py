"""Event streams of chat completions: what one says of itself, and a whole answer dressed as one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from osmosis_ai.rollout.controller.usage import Receipt
from osmosis_ai.rollout.safe_json import load_json
from osmosis_ai.rollout.trajectory.tokens import CallTokens, find_tokens, join_tokens

DONE = b"data: [DONE]\n\n"


class StreamWatch:
    """Reads along while chunks pass: usage, errors, and whether the end was one."""

    def __init__(self) -> None:
        self.usage: dict[str, Any] | None = None
        self.error: str | None = None
        self.has_ended = False
        """Whether `[DONE]` was said."""
        self._is_finished = False
        self._has_choices = False
        self._model_name: Any = None
        self._tokens: list[CallTokens] = []
        self._rest = b""

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of the stream, cut wherever the network cut them."""
        lines = (self._rest + chunk).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            if line.startswith(b"data:"):
                self._event(line[5:].strip())

    @property
    def fault(self) -> str | None:
        """What is wrong with a stream that ended here, or None."""
        if self.error is not None:
            return self.error
        if not self.has_ended and not self._is_finished:
            return "the model's stream ended before its answer was finished"
        if not self._has_choices:
            return "the model answered without choices"
        return None

    def receipt(self, *, turn: int) -> Receipt:
        """What the stream said of its answer, the first choice's tokens included."""
        tokens = join_tokens(self._tokens, turn=turn)
        return Receipt(usage=self.usage, model_name=self._model_name, tokens=tokens)

    def _event(self, data: bytes) -> None:
        if data == b"[DONE]":
            self.has_ended = True
            return
        try:
            event = load_json(data)
        except ValueError:
            self.error = "the model's stream holds an event that is not JSON"
            return
        if not isinstance(event, dict):
            return
        if event.get("error"):
            self.error = error_message(event) or "the model's stream reported an error"
        if isinstance(event.get("usage"), dict):
            self.usage = event["usage"]
        self._model_name = event.get("model") or self._model_name
        for choice in event.get("choices") or ():
            self._has_choices = True
            if isinstance(choice, dict):
                self._choice(event, choice)

    def _choice(self, event: dict[str, Any], choice: dict[str, Any]) -> None:
        # Not every server says [DONE] after its last chunk.
        if choice.get("finish_reason"):
            self._is_finished = True
        tokens = find_tokens(event, choice) if choice.get("index", 0) == 0 else None
        if tokens is not None:
            self._tokens.append(tokens)


def to_events(completion: Mapping[str, Any], *, with_usage: bool) -> Iterator[bytes]:
    """A whole `chat.completion` as the events of a stream, for clients that asked for one."""
    frame = {
        **{key: value for key, value in completion.items() if key not in ("choices", "usage")},
        "object": "chat.completion.chunk",
    }
    for choice in completion["choices"]:
        yield _event({**frame, "choices": [_delta(choice)]})
        yield _event({**frame, "choices": [_finish(choice)]})
    if with_usage:
        yield _event({**frame, "choices": [], "usage": completion.get("usage")})
    yield DONE


def error_message(body: Any) -> str | None:
    """The message of an error object in any of the shapes servers use, or None."""
    if not isinstance(body, dict):
        return None
    error = body.get("error") or body.get("detail") or body.get("message")
    if isinstance(error, dict):
        error = error.get("message")
    return error if isinstance(error, str) else None


def _delta(choice: Mapping[str, Any]) -> dict[str, Any]:
    delta = dict(choice.get("message") or {})
    calls = delta.get("tool_calls")
    if isinstance(calls, list) and calls:
        # What is no call is the client's to refuse, as it would be in a whole answer.
        delta["tool_calls"] = [
            {"index": place, **call} if isinstance(call, dict) else call
            for place, call in enumerate(calls)
        ]
    return {
        "index": choice.get("index", 0),
        "delta": delta,
        "logprobs": choice.get("logprobs"),
        "finish_reason": None,
    }


def _finish(choice: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "index": choice.get("index", 0),
        "delta": {},
        "logprobs": None,
        "finish_reason": choice.get("finish_reason") or "stop",
    }


def _event(data: Mapping[str, Any]) -> bytes:
    try:
        text = orjson.dumps(data)
    except TypeError:  # lone surrogates, which can be written escaped
        text = json.dumps(data).encode()
    return b"data: " + text + b"\n\n"
