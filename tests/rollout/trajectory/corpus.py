"""Conversations that an archive has to take, ordinary and broken ones, and a strategy of more."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from osmosis_ai.rollout.trajectory.report import (
    LlmCallMetrics,
    SampleReport,
    TrajectoryReport,
)

Messages = list[dict[str, Any]]

PNG = "data:image/png;base64,iVBORw0KGgo="


def call(call_id: str | None, name: str | None, arguments: Any) -> dict[str, Any]:
    """A tool call as chat completions carry it; None leaves a part out."""
    function = {"name": name, "arguments": arguments}
    tool_call = {"id": call_id, "type": "function"}
    return {
        **{key: value for key, value in tool_call.items() if value is not None},
        "function": {key: value for key, value in function.items() if value is not None},
    }


ASK: Messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "6 * 7?"}]
ANSWER: Messages = [{"role": "assistant", "content": "42"}]

CORPUS: dict[str, Messages] = {
    "plain": ASK + ANSWER,
    "parallel tool calls": [
        *ASK,
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [call("a", "mul", '{"x": 6, "y": 7}'), call("b", "add", '{"x": 1}')],
        },
        {"role": "tool", "tool_call_id": "b", "content": "1"},
        {"role": "tool", "tool_call_id": "a", "content": "42"},
        *ANSWER,
    ],
    "malformed arguments": [
        *ASK,
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                call("a", "mul", '{"x": 6,'),
                call("b", "mul", "[1, 2]"),
                call("c", "mul", '{"x": NaN}'),
                call("d", "mul", 7),
                call("e", "mul", {"x": 6}),
                call("f", "mul", None),
            ],
        },
    ],
    "malformed tool calls": [
        *ASK,
        {"role": "assistant", "content": "x", "tool_calls": "mul(6, 7)"},
        {"role": "assistant", "content": "x", "tool_calls": ["mul", None, {"function": "mul"}]},
        {"role": "assistant", "content": "x", "tool_calls": None},
    ],
    "missing ids and names": [
        *ASK,
        {"role": "assistant", "tool_calls": [call(None, None, "{}"), call("", "", "{}")]},
        {"role": "tool", "content": "42"},
        {"role": "tool", "tool_call_id": "call_0", "content": "42"},
        {"role": "tool", "tool_call_id": 7, "content": "42"},
    ],
    "two calls of one id": [
        {"role": "assistant", "tool_calls": [call("a", "f", "{}"), call("a", "g", "{}")]},
        {"role": "tool", "tool_call_id": "a", "content": "1"},
    ],
    "reasoning": [
        *ASK,
        {"role": "assistant", "content": "42", "reasoning_content": "six sevens"},
        {"role": "assistant", "content": "42", "reasoning_content": ["six", {"and": "seven"}]},
        {"role": "user", "content": "why?", "reasoning_content": "not an agent's"},
    ],
    "images": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "what is this?"},
                {"type": "image_url", "image_url": {"url": PNG}},
            ],
        },
        *ANSWER,
    ],
    "text parts": [
        {
            "role": "user",
            "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}],
        },
        *ANSWER,
    ],
    "empty content": [
        {"role": "user", "content": ""},
        {"role": "assistant", "content": None},
        {"role": "assistant"},
        {"role": "assistant", "content": []},
    ],
    "tool result without a call": [
        {"role": "tool", "tool_call_id": "gone", "content": "42"},
        {"role": "user", "content": "and now?"},
        {"role": "function", "name": "mul", "content": "42"},
    ],
    "200 steps": [
        {"role": "assistant" if index % 2 else "user", "content": f"turn {index}"}
        for index in range(200)
    ],
    "surrogates": [
        {"role": "user", "content": "half of a pair: \ud83d"},
        {
            "role": "assistant",
            "content": "x",
            "tool_calls": [call("\udc00", "f\ud800", '"\ud800"')],
        },
        {"role": "assistant", "content": "ok", "reasoning_content": "\udfff"},
    ],
    "developer and unknown roles": [
        {"role": "developer", "content": "be brief"},
        {"role": "narrator", "content": "meanwhile"},
        {"role": None, "content": "nobody"},
        {"content": "no role"},
        {"role": {"a": "dict"}, "content": "odd"},
        {},
    ],
    "usage and times in the messages": [
        *ASK,
        {
            "role": "assistant",
            "content": "42",
            "model": "m-1",
            "created_at": 1_764_500_000,
            "usage": {
                "prompt_tokens": 9,
                "completion_tokens": 1,
                "prompt_tokens_details": {"cached_tokens": 4},
                "cost_usd": 0.25,
            },
        },
        {
            "role": "assistant",
            "content": "43",
            "timestamp": "2026-01-02T03:04:05Z",
            "extra": {"response": {"model": "m-2", "usage": {"input_tokens": 7}}},
        },
        {"role": "assistant", "content": "44", "timestamp": "yesterday", "usage": "a lot"},
        {"role": "assistant", "content": "45", "created_at": 1e300, "usage": {"prompt_tokens": -1}},
    ],
    "numbers no JSON holds": [
        {"role": "user", "content": float("nan")},
        {"role": "assistant", "content": {"deep": [float("inf"), 2**80]}},
        {"role": "assistant", "content": "x", "tool_calls": [call("a", "f", {"x": 2**70})]},
    ],
    "other frameworks' blocks": [
        {"role": "user", "content": [{"text": "6 * 7?"}]},
        {"role": "assistant", "content": [{"toolUse": {"toolUseId": "t", "name": "mul"}}]},
        {"role": "user", "content": [{"toolResult": {"toolUseId": "t", "status": "success"}}]},
    ],
}

AGENT_CALL = LlmCallMetrics(
    prompt_tokens=10,
    completion_tokens=2,
    cost_usd=0.5,
    completion_token_ids=[4, 2],
    logprobs=[-0.5, -0.25],
    model_name="served",
)


def report_of(*calls: LlmCallMetrics, **fields: Any) -> TrajectoryReport:
    """A controller's report of one sample."""
    return TrajectoryReport(samples={"any": SampleReport(llm_call_metrics=list(calls), **fields)})


REPORTS: dict[str, TrajectoryReport | None] = {
    "none": None,
    "empty": TrajectoryReport(),
    "one call": report_of(AGENT_CALL),
    "four calls": report_of(*[AGENT_CALL] * 4),
    "totals": report_of(final_metrics={"total_prompt_tokens": 99, "total_steps": 1}),
    "broken totals": report_of(AGENT_CALL, final_metrics={"total_prompt_tokens": "many"}),
    "two samples": TrajectoryReport(
        samples={
            "a": SampleReport(model_name="m"),
            "b": SampleReport(llm_call_metrics=[AGENT_CALL]),
        }
    ),
}

_texts = st.text(st.characters(codec=None, exclude_categories=()), max_size=12)
_scalars = st.none() | st.booleans() | st.integers() | st.floats() | _texts
_values = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_texts, inner, max_size=3),
    max_leaves=6,
)
_calls = st.fixed_dictionaries(
    {},
    optional={
        "id": _scalars,
        "function": _values
        | st.fixed_dictionaries({}, optional={"name": _values, "arguments": _values | _texts}),
    },
)
_usage = _values | st.fixed_dictionaries(
    {},
    optional={
        name: st.integers() | st.floats() | _scalars
        for name in ("prompt_tokens", "output_tokens", "cached_tokens", "cost_usd")
    },
)

chat_messages: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {},
    optional={
        "role": st.sampled_from(["system", "developer", "user", "assistant", "tool", "function"])
        | _values,
        "content": _texts
        | st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": _texts}), max_size=2)
        | _values,
        "tool_calls": st.lists(_calls, max_size=3) | _values,
        "tool_call_id": _scalars,
        "reasoning_content": _values,
        "timestamp": _scalars | st.datetimes().map(lambda moment: moment.isoformat()),
        "created_at": _scalars,
        "model": _scalars,
        "usage": _usage,
        "extra": _values,
    },
)
"""Chat messages as providers, frameworks and faults make them."""
