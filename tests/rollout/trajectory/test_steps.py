"""Chat messages become the steps of an ATIF document."""

from __future__ import annotations

from typing import Any

import pytest

from osmosis_ai.rollout.trajectory.steps import steps_from_messages


def step_of(message: dict[str, Any]) -> Any:
    """The one step that a message makes."""
    (step,) = steps_from_messages([message])
    return step


def assistant(**fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": "a", **fields}


CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}


def test_steps_are_counted_from_one() -> None:
    steps = steps_from_messages([{"role": "user", "content": str(i)} for i in range(3)])
    assert steps == [
        {"step_id": 1, "source": "user", "message": "0"},
        {"step_id": 2, "source": "user", "message": "1"},
        {"step_id": 3, "source": "user", "message": "2"},
    ]


@pytest.mark.parametrize(
    ("role", "source"),
    [("system", "system"), ("developer", "system"), ("user", "user"), ("assistant", "agent")],
)
def test_a_role_says_where_a_step_comes_from(role: str, source: str) -> None:
    assert step_of({"role": role, "content": "x"}) == {
        "step_id": 1,
        "source": source,
        "message": "x",
    }


@pytest.mark.parametrize("role", ["critic", "", 7, ["user"], {"a": 1}])
def test_an_unknown_role_is_a_user_and_is_remembered(role: Any) -> None:
    assert step_of({"role": role, "content": "x"}) == {
        "step_id": 1,
        "source": "user",
        "message": "x",
        "extra": {"original_role": role},
    }


def test_a_message_without_a_role_is_a_users() -> None:
    assert step_of({"content": "x"}) == {"step_id": 1, "source": "user", "message": "x"}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, ""),
        ("x", "x"),
        ([], ""),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "a\nb"),
        ([{"type": "text", "text": 1}], '[{"type":"text","text":1}]'),
        ([{"type": "text"}], '[{"type":"text"}]'),
        (["a"], '["a"]'),
        ({"a": 1}, '{"a":1}'),
        (7, "7"),
        (
            [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "u"}}],
            '[{"type":"text","text":"see"},{"type":"image_url","image_url":{"url":"u"}}]',
        ),
    ],
)
def test_a_content_becomes_text(content: Any, text: str) -> None:
    for role in ("user", "assistant"):
        assert step_of({"role": role, "content": content})["message"] == text


def test_a_message_without_content_is_empty() -> None:
    assert step_of({"role": "assistant", "tool_calls": [CALL]})["message"] == ""
    assert step_of({"role": "user", "name": "x"})["message"] == ""


def test_tool_calls_keep_their_ids_names_and_arguments() -> None:
    other = {"id": "c2", "function": {"name": "sub", "arguments": {"b": 2}}}
    step = step_of({"role": "assistant", "tool_calls": [CALL, other]})
    assert step["tool_calls"] == [
        {"tool_call_id": "c1", "function_name": "add", "arguments": {"a": 1}},
        {"tool_call_id": "c2", "function_name": "sub", "arguments": {"b": 2}},
    ]


@pytest.mark.parametrize(
    ("arguments", "kept"),
    [
        ('{"a": 1}', {"a": 1}),
        ({"a": 1}, {"a": 1}),
        (None, {}),
        ("{}", {}),
        ("[1]", {"_raw": "[1]"}),
        ("null", {"_raw": "null"}),
        ("{'a': 1}", {"_raw": "{'a': 1}"}),
        ('{"a": NaN}', {"_raw": '{"a": NaN}'}),
        ("", {"_raw": ""}),
        ([1], {"_raw": [1]}),
        (7, {"_raw": 7}),
        ("[" * 5000, {"_raw": "[" * 5000}),
    ],
)
def test_arguments_are_an_object_or_kept_as_they_came(arguments: Any, kept: Any) -> None:
    call = {"id": "c", "function": {"name": "f", "arguments": arguments}}
    assert step_of(assistant(tool_calls=[call]))["tool_calls"][0]["arguments"] == kept


def test_arguments_that_are_missing_are_empty() -> None:
    call = {"id": "c", "function": {"name": "f"}}
    assert step_of(assistant(tool_calls=[call]))["tool_calls"][0]["arguments"] == {}


@pytest.mark.parametrize("function", [None, {}, "f", {"name": None}, {"name": 7}, {"name": ""}])
def test_a_call_without_a_name_is_unknown(function: Any) -> None:
    (call,) = step_of(assistant(tool_calls=[{"id": "c", "function": function}]))["tool_calls"]
    assert call == {"tool_call_id": "c", "function_name": "unknown", "arguments": {}}


@pytest.mark.parametrize("call_id", [None, "", 7])
def test_a_call_without_an_id_is_named_by_its_place(call_id: Any) -> None:
    calls = [CALL, {"id": call_id, "function": {"name": "f"}}]
    ids = [call["tool_call_id"] for call in step_of(assistant(tool_calls=calls))["tool_calls"]]
    assert ids == ["c1", "call_1"]


@pytest.mark.parametrize("tool_calls", [None, [], "x", {"a": 1}, 7, ["x"]])
def test_malformed_tool_calls_are_ignored(tool_calls: Any) -> None:
    assert "tool_calls" not in step_of(assistant(tool_calls=tool_calls))


def test_a_tools_result_joins_the_step_that_asked_for_it() -> None:
    steps = steps_from_messages(
        [
            assistant(tool_calls=[CALL, {**CALL, "id": "c2"}]),
            {"role": "tool", "tool_call_id": "c2", "content": "2"},
            {"role": "function", "tool_call_id": "c1", "content": [{"type": "text", "text": "1"}]},
            {"role": "assistant", "content": "done"},
        ]
    )
    assert [step["step_id"] for step in steps] == [1, 2]
    assert steps[0].get("observation") == {
        "results": [
            {"content": "2", "source_call_id": "c2"},
            {"content": "1", "source_call_id": "c1"},
        ]
    }


@pytest.mark.parametrize("call_id", ["other", 7, ["c1"]])
def test_a_result_of_another_call_keeps_its_id_aside(call_id: Any) -> None:
    """The format refuses a `source_call_id` that no call of the step has."""
    (step,) = steps_from_messages(
        [
            assistant(tool_calls=[CALL]),
            {"role": "tool", "tool_call_id": call_id, "content": None},
        ]
    )
    assert step.get("observation") == {
        "results": [{"content": "", "extra": {"tool_call_id": call_id}}]
    }


def test_a_result_without_an_id_has_none() -> None:
    (step,) = steps_from_messages([assistant(), {"role": "tool", "content": "1"}])
    assert step.get("observation") == {"results": [{"content": "1"}]}


def test_a_result_that_no_agent_asked_for_is_a_step_of_the_systems() -> None:
    steps = steps_from_messages(
        [
            {"role": "tool", "tool_call_id": "c", "content": "1"},
            {"role": "function", "content": "2"},
            {"role": "user", "content": "x"},
            {"role": "tool", "content": "3", "reasoning_content": "why"},
        ]
    )
    assert [step["source"] for step in steps] == ["system", "system", "user", "system"]
    assert steps[0] == {
        "step_id": 1,
        "source": "system",
        "message": "",
        "observation": {"results": [{"content": "1", "extra": {"tool_call_id": "c"}}]},
        "extra": {"original_role": "tool"},
    }
    assert steps[1].get("extra") == {"original_role": "function"}
    assert steps[3].get("extra") == {"reasoning_content": "why", "original_role": "tool"}


@pytest.mark.parametrize(
    ("given", "kept"), [("because", "because"), ({"a": 1}, '{"a":1}'), ("", "")]
)
def test_reasoning_is_kept_on_agent_steps(given: Any, kept: str) -> None:
    assert step_of(assistant(reasoning_content=given))["reasoning_content"] == kept


def test_no_reasoning_is_none() -> None:
    assert "reasoning_content" not in step_of(assistant(reasoning_content=None))


def test_what_only_agents_have_is_kept_aside_on_others() -> None:
    message = {"role": "user", "content": "x", "reasoning_content": "r", "tool_calls": [CALL]}
    step = step_of(message)
    assert step["extra"] == {"reasoning_content": "r", "tool_calls": [CALL]}
    assert "reasoning_content" not in step
    assert "tool_calls" not in step
    assert "extra" not in step_of({"role": "user", "content": "x", "name": "me"})


@pytest.mark.parametrize(
    ("fields", "timestamp"),
    [
        ({"created_at": "2025-12-01T10:00:00Z"}, "2025-12-01T10:00:00Z"),
        ({"timestamp": 0}, "1970-01-01T00:00:00+00:00"),
        ({"completed_at": 1764583200.5}, "2025-12-01T10:00:00.500000+00:00"),
        ({"extra": {"timestamp": "2025-12-01"}}, "2025-12-01"),
        ({"created_at": "soon", "timestamp": 1, "completed_at": 2}, "1970-01-01T00:00:01+00:00"),
        ({"created_at": True, "timestamp": None, "completed_at": 2}, "1970-01-01T00:00:02+00:00"),
        ({"created_at": 1e300}, None),
        ({"created_at": 10**17}, None),
        ({"created_at": {"a": 1}, "extra": "x"}, None),
        ({"created_at": "2025-12-01Z10:00:00"}, None),
    ],
)
@pytest.mark.parametrize("role", ["user", "assistant", "other"])
def test_the_first_usable_time_is_the_steps(
    role: str, fields: dict[str, Any], timestamp: str | None
) -> None:
    assert step_of({"role": role, "content": "x", **fields}).get("timestamp") == timestamp


def test_a_message_of_two_fields_loses_neither() -> None:
    """The short way for a role and a content must not be taken for another pair."""
    assert step_of({"role": "user", "timestamp": 0})["timestamp"] == "1970-01-01T00:00:00+00:00"
    assert step_of({"content": "x", "timestamp": 0})["timestamp"] == "1970-01-01T00:00:00+00:00"


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"model": "m"}, "m"),
        ({"model_name": "m"}, "m"),
        ({"model": 7, "model_name": "", "extra": {"response": {"model": "m"}}}, "m"),
        ({"model": None}, None),
        ({"extra": {"response": "x"}}, None),
        ({"extra": 7}, None),
    ],
)
def test_a_model_is_named_on_agent_steps_only(fields: dict[str, Any], name: str | None) -> None:
    assert step_of(assistant(**fields)).get("model_name") == name
    assert "model_name" not in step_of({"role": "user", "content": "x", **fields})


@pytest.mark.parametrize(
    ("usage", "metrics"),
    [
        (
            {"prompt_tokens": 1, "completion_tokens": 2, "cached_tokens": 3, "cost_usd": 0.5},
            {"prompt_tokens": 1, "completion_tokens": 2, "cached_tokens": 3, "cost_usd": 0.5},
        ),
        ({"input_tokens": 1.0, "output_tokens": 2}, {"prompt_tokens": 1, "completion_tokens": 2}),
        (
            {"prompt_tokens_details": {"cached_tokens": 5}, "completion_tokens": 0},
            {
                "completion_tokens": 0,
                "cached_tokens": 5,
                "extra": {"prompt_tokens_details": {"cached_tokens": 5}},
            },
        ),
        (
            {"output_tokens_details": {"reasoning_tokens": 7}},
            {"extra": {"output_tokens_details": {"reasoning_tokens": 7}}},
        ),
        ({"cost_usd": 1}, {"cost_usd": 1.0}),
    ],
)
def test_usage_becomes_the_metrics_of_one_call(usage: Any, metrics: Any) -> None:
    for message in (assistant(usage=usage), assistant(extra={"response": {"usage": usage}})):
        step = step_of(message)
        assert step["metrics"] == metrics
        assert step["llm_call_count"] == 1
    assert "metrics" not in step_of({"role": "user", "content": "x", "usage": usage})


@pytest.mark.parametrize(
    "usage",
    [
        None,
        {},
        "x",
        {"total_tokens": 3},
        {"prompt_tokens": -1, "completion_tokens": True, "cost_usd": "1"},
        {"prompt_tokens": 2**60, "completion_tokens": 1e300, "prompt_tokens_details": 7},
    ],
)
def test_usage_that_says_nothing_is_no_metrics(usage: Any) -> None:
    step = step_of(assistant(usage=usage))
    assert "metrics" not in step
    assert "llm_call_count" not in step
