"""One chat completion as it passed by: what was asked, and what was answered."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Reply:
    """One choice of an answer."""

    message: Message
    finish_reason: str | None = None
    token_ids: list[int] | None = None
    """The sampled tokens, where the endpoint returns them."""
    logprobs: Any = None
    """As the endpoint returns them."""


@dataclass(frozen=True, slots=True)
class ModelCall:
    """One call; without replies it failed, or was never answered to its end."""

    messages: list[Message]
    replies: list[Reply] = field(default_factory=list)
    error: str | None = None
    """Why there is no reply."""
    prompt_token_ids: list[int] | None = None
    model: str | None = None
    usage: dict[str, Any] | None = None


def read_call(messages: list[Message], status: int | None, answer: bytes) -> ModelCall:
    """The call with these messages and the bytes that came back so far; `status` of its answer."""
    if status is None:
        return ModelCall(messages, error="it was not answered")
    if status >= 400:
        said = _error_text(parse_object(answer)) or answer[:200].decode(errors="replace")
        return ModelCall(messages, error=f"HTTP {status}: {said}")
    events = list(_events(answer))
    body = _join(events) if events else parse_object(answer)
    error = _error_text(body)
    if error is not None:
        return ModelCall(messages, error=error)
    replies = [_reply(choice) for choice in _maps(body.get("choices"))]
    if not replies or any(reply.finish_reason is None for reply in replies):
        return ModelCall(messages, error="its answer ended before it was finished")
    return ModelCall(
        messages,
        replies,
        prompt_token_ids=_ids(body.get("prompt_token_ids")),
        model=body.get("model"),
        usage=body.get("usage"),
    )


def parse_object(data: bytes) -> dict[str, Any]:
    """A JSON object, one with NaN or lone surrogates too; an empty one where it is none."""
    for loads in (orjson.loads, json.loads):
        try:
            value = loads(data)
        except ValueError:
            continue
        return value if isinstance(value, dict) else {}
    return {}


def _error_text(body: Mapping[str, Any]) -> str | None:
    error = body.get("error")
    if not error:
        return None
    text = error.get("message") if isinstance(error, dict) else error
    return str(text)


def _events(answer: bytes) -> Iterable[dict[str, Any]]:
    """The events of a stream; none where the answer is one document."""
    for line in answer.splitlines():
        if line.startswith(b"data:"):
            event = parse_object(line[5:])
            if event:
                yield event


def _join(events: list[dict[str, Any]]) -> dict[str, Any]:
    """A stream's chunks as the completion they are of."""
    choices: dict[int, dict[str, Any]] = {}
    body: dict[str, Any] = {}
    for event in events:
        for name in ("error", "model", "prompt_token_ids", "usage"):
            if event.get(name):
                body[name] = event[name]
        for chunk in _maps(event.get("choices")):
            index = chunk.get("index") or 0
            _add_chunk(choices.setdefault(index, {"message": {"role": "assistant"}}), chunk)
    return {**body, "choices": [choices[index] for index in sorted(choices)]}


def _add_chunk(choice: dict[str, Any], chunk: dict[str, Any]) -> None:
    if chunk.get("finish_reason"):
        choice["finish_reason"] = chunk["finish_reason"]
    if chunk.get("token_ids"):
        choice.setdefault("token_ids", []).extend(chunk["token_ids"])
    if chunk.get("logprobs"):
        known = choice.setdefault("logprobs", {})
        for name, values in chunk["logprobs"].items():
            known[name] = [*(known.get(name) or ()), *values] if values else known.get(name)
    _add_delta(choice["message"], chunk.get("delta") or {})


def _add_delta(message: Message, delta: dict[str, Any]) -> None:
    for name, value in delta.items():
        if name == "tool_calls":
            for part in value or ():
                _add_tool_call(message.setdefault("tool_calls", []), part)
        elif isinstance(value, str) and name != "role":
            message[name] = (message.get(name) or "") + value
        elif value is not None and name != "role":
            message[name] = value


def _add_tool_call(calls: list[dict[str, Any]], part: dict[str, Any]) -> None:
    index = part.get("index", len(calls))
    while len(calls) <= index:
        calls.append({"type": "function", "function": {"name": "", "arguments": ""}})
    if part.get("id"):
        calls[index]["id"] = part["id"]
    for name, text in (part.get("function") or {}).items():
        calls[index]["function"][name] = calls[index]["function"].get(name, "") + (text or "")


def _reply(choice: dict[str, Any]) -> Reply:
    message = choice.get("message")
    return Reply(
        message={**message, "role": "assistant"} if isinstance(message, dict) else {},
        finish_reason=choice.get("finish_reason"),
        token_ids=_ids(choice.get("token_ids")),
        logprobs=choice.get("logprobs"),
    )


def _maps(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _ids(value: Any) -> list[int] | None:
    return value if isinstance(value, list) and value else None
