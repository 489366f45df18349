"""A conversation becomes the steps of an ATIF document."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, NoReturn, TypeAlias, TypeGuard

import orjson

from osmosis_ai.rollout.trajectory.atif import MAX_COUNT, Metrics, ObservationResult, Step, ToolCall

Message: TypeAlias = Mapping[str, Any]
"""One chat message of plain JSON values."""

_SOURCES: dict[str, Literal["system", "user", "agent"]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "agent",
}
_TOOL_ROLES = ("tool", "function")  # no set: a role may be anything, also what has no hash
_UTC_OFFSET = "+00:00"
_DETAIL_KEYS = (
    "prompt_tokens_details",
    "input_tokens_details",
    "completion_tokens_details",
    "output_tokens_details",
)


def steps_from_messages(messages: Sequence[Message]) -> list[Step]:
    """One step for each message, but a tool's result joins the agent step before it."""
    steps: list[Step] = []
    for message in messages:
        role = message.get("role")
        if role in _TOOL_ROLES and steps and steps[-1]["source"] == "agent":
            _add_result(steps[-1], message)
        else:
            steps.append(_step(len(steps) + 1, role, message))
    return steps


def _step(step_id: int, role: Any, message: Message) -> Step:
    source = _SOURCES.get(role) if isinstance(role, str) else None
    step = Step(
        step_id=step_id, source=source or "user", message=_as_message(message.get("content"))
    )
    if source is not None and len(message) == 2 and "content" in message:
        return step  # nothing but a role and a content, as most messages are
    timestamp = _timestamp(message)
    if timestamp is not None:
        step["timestamp"] = timestamp
    if source == "agent":
        _add_agent_fields(step, message)
    else:
        _keep_agent_fields(step, message)
    if role in _TOOL_ROLES:
        step["source"] = "system"
        step["message"] = ""
        step["observation"] = {"results": [_result(message, ())]}
    if source is None and role is not None:
        step.setdefault("extra", {})["original_role"] = role
    return step


def _add_agent_fields(step: Step, message: Message) -> None:
    details = _details(message)
    model_name = _first_text(message.get("model"), message.get("model_name"), details.get("model"))
    if model_name is not None:
        step["model_name"] = model_name
    reasoning = message.get("reasoning_content")
    if reasoning is not None:
        step["reasoning_content"] = _as_text(reasoning)
    tool_calls = _tool_calls(message.get("tool_calls"))
    if tool_calls:
        step["tool_calls"] = tool_calls
    metrics = _metrics(message.get("usage") or details.get("usage"))
    if metrics:
        step["metrics"] = metrics
        step["llm_call_count"] = 1


def _keep_agent_fields(step: Step, message: Message) -> None:
    """Keep what only an agent step may have in the place for anything."""
    for key in ("reasoning_content", "tool_calls"):
        value = message.get(key)
        if value is not None:
            step.setdefault("extra", {})[key] = value


def _add_result(step: Step, message: Message) -> None:
    calls = step.get("tool_calls", ())
    result = _result(message, {call["tool_call_id"] for call in calls})
    step.setdefault("observation", {"results": []})["results"].append(result)


def _result(message: Message, call_ids: Iterable[str]) -> ObservationResult:
    result = ObservationResult(content=_as_message(message.get("content")))
    call_id = message.get("tool_call_id")
    if isinstance(call_id, str) and call_id in call_ids:
        result["source_call_id"] = call_id
    elif call_id is not None:
        result["extra"] = {"tool_call_id": call_id}
    return result


def _tool_calls(value: Any) -> list[ToolCall]:
    if not isinstance(value, list):
        return []
    return [_tool_call(call, index) for index, call in enumerate(value) if isinstance(call, dict)]


def _tool_call(call: dict[str, Any], index: int) -> ToolCall:
    function = call.get("function")
    if not isinstance(function, dict):
        function = {}
    return ToolCall(
        tool_call_id=_first_text(call.get("id")) or f"call_{index}",
        function_name=_first_text(function.get("name")) or "unknown",
        arguments=_arguments(function.get("arguments")),
    )


def _arguments(value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    parsed = _parsed(value) if isinstance(value, str) else value
    return parsed if isinstance(parsed, dict) else {"_raw": value}


def _parsed(text: str) -> Any:
    # Not orjson: it would round integers beyond 64 bits without a word.
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _as_message(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, list) and all(_is_text_part(part) for part in content):
        return "\n".join(part["text"] for part in content)
    return _as_text(content)


def _is_text_part(part: Any) -> bool:
    return (
        isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)
    )


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _details(message: Message) -> dict[str, Any]:
    """What a client library kept of the model's response, `extra.response`."""
    extra = message.get("extra")
    response = extra.get("response") if isinstance(extra, dict) else None
    return response if isinstance(response, dict) else {}


def _first_text(*values: Any) -> str | None:
    return next((value for value in values if isinstance(value, str) and value), None)


def _timestamp(message: Message) -> str | None:
    extra = message.get("extra")
    candidates = [message.get("created_at"), message.get("timestamp"), message.get("completed_at")]
    if isinstance(extra, dict):
        candidates.append(extra.get("timestamp"))
    return next(filter(None, map(_iso_time, candidates)), None)


def _iso_time(value: Any) -> str | None:
    try:
        if isinstance(value, str):
            # Readers of the format replace the letter everywhere, so a "Z" elsewhere is no use.
            datetime.fromisoformat(value.replace("Z", _UTC_OFFSET))
            return value
        if _is_number(value):
            return datetime.fromtimestamp(value, UTC).isoformat()
    except (ValueError, OverflowError, OSError):
        return None
    return None


def _metrics(usage: Any) -> Metrics:
    """The numbers of one model call, whichever API's names they have."""
    metrics = Metrics()
    if not isinstance(usage, dict):
        return metrics
    details = {key: usage[key] for key in _DETAIL_KEYS if isinstance(usage.get(key), dict)}
    prompt = _first_count(usage.get("prompt_tokens"), usage.get("input_tokens"))
    if prompt is not None:
        metrics["prompt_tokens"] = prompt
    completion = _first_count(usage.get("completion_tokens"), usage.get("output_tokens"))
    if completion is not None:
        metrics["completion_tokens"] = completion
    cached = _first_count(
        usage.get("cached_tokens"), *(part.get("cached_tokens") for part in details.values())
    )
    if cached is not None:
        metrics["cached_tokens"] = cached
    if _is_number(usage.get("cost_usd")):
        metrics["cost_usd"] = float(usage["cost_usd"])
    if details:
        metrics["extra"] = details
    return metrics


def _first_count(*values: Any) -> int | None:
    return next(
        (int(value) for value in values if _is_number(value) and 0 <= value <= MAX_COUNT), None
    )


def _is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
