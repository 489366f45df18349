"""Samples, requests and results take what users give, and refuse what could not be sent."""

from __future__ import annotations

import copy
import math
import os
import pickle
from collections import UserDict, UserList, deque
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from osmosis_ai.rollout.types import (
    AgentWorkflowConfig,
    BaseConfig,
    ConcurrencyConfig,
    ExecutionOutcome,
    ExecutionRequest,
    ExecutionResult,
    GraderConfig,
    GraderStatus,
    ModelUsage,
    RolloutErrorCategory,
    RolloutSample,
    RolloutStatus,
    check_path_segment,
)

REWARDS = [
    (0, 0.0),
    (-3, -3.0),
    (True, 1.0),
    (False, 0.0),
    (-0.5, -0.5),
    (1e308, 1e308),
    (2**63, 2.0**63),
    (Decimal("0.25"), 0.25),
    (Fraction(1, 4), 0.25),
    ("0.25", 0.25),
    (" 0.25 ", 0.25),
    ("-1e3", -1000.0),
    (np.float16(0.25), 0.25),
    (np.float32(0.25), 0.25),
    (np.float64(0.25), 0.25),
    (np.longdouble(0.25), 0.25),
    (np.int64(7), 7.0),
    (np.uint8(7), 7.0),
    (np.bool_(True), 1.0),
    (np.array(0.25), 0.25),
    (np.array(7), 7.0),
    (None, None),
]

REFUSED_REWARDS = [
    math.nan,
    math.inf,
    -math.inf,
    "nan",
    "inf",
    "-Infinity",
    "1e400",
    "abc",
    "",
    "0x10",
    "\ud800",
    10**400,
    Fraction(10**400),
    Decimal("1e400"),
    Decimal("NaN"),
    Decimal("sNaN"),
    np.float32("nan"),
    np.float64("inf"),
    np.array(math.nan),
    np.array([0.5]),
    np.array([]),
    [0.5],
    (0.5,),
    {"reward": 0.5},
    complex(1, 0),
    object(),
    AgentWorkflowConfig(name="x"),
]


def by_repr(value: object) -> str:
    return ascii(value)[:40]


@pytest.mark.parametrize(("given_reward", "kept"), REWARDS, ids=by_repr)
def test_a_reward_becomes_a_plain_float(given_reward: Any, kept: float | None) -> None:
    """At construction and on assignment alike; None stays "no reward"."""
    assigned = RolloutSample()
    assigned.reward = given_reward
    for sample in (RolloutSample(reward=given_reward), assigned):
        assert sample.reward == kept
        assert type(sample.reward) is type(kept)


@pytest.mark.parametrize("reward", REFUSED_REWARDS, ids=by_repr)
def test_what_is_no_finite_number_is_no_reward(reward: Any) -> None:
    sample = RolloutSample(reward=0.5)
    with pytest.raises(ValidationError):
        RolloutSample(reward=reward)
    with pytest.raises(ValidationError):
        sample.reward = reward
    assert sample.reward == 0.5


@given(st.one_of(st.floats(), st.integers(), st.fractions(), st.decimals(), st.booleans()))
def test_any_number_is_kept_as_it_converts_or_refused(number: Any) -> None:
    try:
        expected = float(number)
    except (OverflowError, ValueError):
        expected = math.nan
    if math.isfinite(expected):
        assert RolloutSample(reward=number).reward == expected
    else:
        with pytest.raises(ValidationError):
            RolloutSample(reward=number)


def test_an_empty_sample_has_the_documented_defaults() -> None:
    assert RolloutSample().model_dump() == {
        "messages": [],
        "trajectory_messages": None,
        "label": None,
        "reward": None,
        "remove_sample": False,
        "metrics": {},
        "extra_fields": {},
    }


def test_samples_do_not_share_their_containers() -> None:
    one, other = RolloutSample(), RolloutSample()
    one.metrics["a"] = 1
    one.extra_fields["a"] = 1
    assert (other.metrics, other.extra_fields, other.messages) == ({}, {}, [])


@pytest.mark.parametrize(
    "wrap", [list, tuple, deque, UserList, lambda messages: [UserDict(one) for one in messages]]
)
def test_a_conversation_is_kept_as_it_is(wrap: Callable[[Any], Any]) -> None:
    """A copy of a long conversation for each sample would cost more than the rest of a rollout."""
    messages = wrap([{"role": "user", "content": "hi"}])
    sample = RolloutSample(messages=messages, trajectory_messages=messages)
    assert sample.messages is messages
    assert sample.trajectory_messages is messages


def test_a_read_only_message_is_a_message() -> None:
    message = MappingProxyType({"role": "user"})
    assert RolloutSample(messages=[message]).messages[0] is message


@pytest.mark.parametrize("field", ["messages", "trajectory_messages"])
@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ("hello", "must be a list of dicts, got str"),
        (b"hello", "must be a list of dicts, got bytes"),
        (bytearray(b"hello"), "must be a list of dicts, got bytearray"),
        ({"role": "user"}, "must be a list of dicts, got dict"),
        (7, "must be a list of dicts, got int"),
        (iter([]), "must be a list of dicts, got list_iterator"),
        ([{"role": "user"}, "hello"], r"messages\[1\] must be a dict, got str"),
        ([None], r"messages\[0\] must be a dict, got NoneType"),
    ],
)
def test_what_is_no_conversation_is_refused(field: str, value: Any, complaint: str) -> None:
    sample = RolloutSample()
    with pytest.raises(ValidationError, match=complaint):
        RolloutSample(**{field: value})
    with pytest.raises(ValidationError, match=complaint):
        setattr(sample, field, value)


def test_messages_may_not_be_none() -> None:
    """None archives nothing where it is given as `trajectory_messages`; a sample has messages."""
    with pytest.raises(ValidationError, match="must be a list of dicts, got NoneType"):
        RolloutSample.model_validate({"messages": None})


@pytest.mark.parametrize("travel", [copy.copy, copy.deepcopy, RolloutSample.model_copy])
def test_the_archive_gets_the_messages_unless_told_otherwise(
    travel: Callable[[RolloutSample], RolloutSample],
) -> None:
    native, chat = [{"native": 1}], [{"role": "user"}]
    assert travel(RolloutSample(messages=native)).archived_messages == native
    told = RolloutSample(messages=native, trajectory_messages=chat)
    assert travel(told).archived_messages == chat
    none = RolloutSample(messages=native, trajectory_messages=None)
    assert travel(none).archived_messages is None


def test_the_archive_can_be_turned_off_later() -> None:
    sample = RolloutSample(messages=[{"native": 1}])
    sample.trajectory_messages = None
    assert sample.archived_messages is None


def test_a_sample_travels_between_processes() -> None:
    sample = RolloutSample(messages=[{"a": 1}], trajectory_messages=None, reward=0.5)
    arrived = pickle.loads(pickle.dumps(sample))
    assert arrived == sample
    assert arrived.archived_messages is None


@pytest.mark.parametrize(
    "segment", ["a", "0", " ", "a b", "...", "..a", "a.b", "-", "ä", "日本", "a:b", "x" * 300]
)
def test_a_rollout_id_is_any_name_of_one_directory(segment: str) -> None:
    assert check_path_segment(segment) == segment
    assert a_request_named(segment).id == segment


@pytest.mark.parametrize(
    "segment",
    ["", ".", "..", "/", "a/b", "../a", "/a", "a/", "a\\b", "\\", "a\0b", "\ud800", "a\udc80"],
    ids=ascii,
)
def test_what_leads_elsewhere_is_no_rollout_id(segment: str) -> None:
    with pytest.raises(ValidationError):
        a_request_named(segment)
    with pytest.raises(ValueError, match=r"segment|surrogate"):
        check_path_segment(segment)


@given(st.text(alphabet=["a", ".", "/", "\\", "\0", "~", ":", "\ud800"]))
def test_an_accepted_rollout_id_stays_inside_its_root(segment: str) -> None:
    try:
        check_path_segment(segment)
    except ValueError:
        return
    assert os.path.split(os.path.normpath(os.fsencode(f"/base/{segment}"))) == (
        b"/base",
        segment.encode(),
    )


def a_request_named(rollout_id: str) -> ExecutionRequest:
    return ExecutionRequest(id=rollout_id, prompt=[])


@pytest.mark.parametrize("field", ["agent_timeout_sec", "grader_timeout_sec"])
def test_timeouts_are_finite_seconds(field: str) -> None:
    """Zero and less are deadlines that have passed; text is what a form sends."""
    for value, kept in [(1, 1.0), (0, 0.0), (-1.5, -1.5), ("2.5", 2.5), (None, None)]:
        assert getattr(ExecutionRequest(id="a", prompt=[], **{field: value}), field) == kept
    for refused in (math.nan, math.inf, "inf", "soon"):
        with pytest.raises(ValidationError):
            ExecutionRequest(id="a", prompt=[], **{field: refused})


@pytest.mark.parametrize(
    ("label", "metadata", "gradable"),
    [
        (None, None, False),
        ("", None, True),
        (None, {}, True),
        ("4", None, True),
        (None, {"a": 1}, True),
    ],
)
def test_an_empty_label_or_metadata_is_still_one(
    label: str | None, metadata: dict[str, Any] | None, gradable: bool
) -> None:
    request = ExecutionRequest(id="a", prompt=[], label=label, metadata=metadata)
    assert request.is_gradable is gradable


def test_a_request_keeps_lone_surrogates() -> None:
    """They come from broken data sets; losing the row to them would be worse than keeping them."""
    request = ExecutionRequest(
        id="a", prompt=[{"\ud800": "\udc00"}], label="\ud800", metadata={"\ud800": "\udc00"}
    )
    assert (request.label, request.prompt) == ("\ud800", [{"\ud800": "\udc00"}])


def test_concurrency_is_unlimited_or_at_least_one() -> None:
    assert ConcurrencyConfig().max_concurrent is None
    assert ConcurrencyConfig(max_concurrent=1).max_concurrent == 1
    for refused in (0, -1, 1.5, "many"):
        with pytest.raises(ValidationError):
            ConcurrencyConfig.model_validate({"max_concurrent": refused})


@pytest.mark.parametrize("config", [BaseConfig, AgentWorkflowConfig, GraderConfig])
def test_a_config_needs_a_name_and_takes_any_other_field(config: type[BaseConfig]) -> None:
    with pytest.raises(ValidationError, match="name"):
        config.model_validate({})
    made = config.model_validate({"name": "x", "client": object(), "threshold": 0.5})
    assert (made.model_extra or {})["threshold"] == 0.5
    assert made.description is None


def test_a_config_subclass_has_defaults_and_checks_assignments() -> None:
    class Own(GraderConfig):
        name: str = "own"
        threshold: float = 0.8

    config = Own()
    assert (config.name, config.threshold, config.concurrency.max_concurrent) == ("own", 0.8, None)
    with pytest.raises(ValidationError):
        config.threshold = "high"
    assert config.threshold == 0.8


@pytest.mark.parametrize("status", RolloutStatus)
def test_a_status_is_terminal_where_nothing_more_happens(status: RolloutStatus) -> None:
    assert status.is_terminal is (status.value in {"success", "failure", "cancelled"})


def test_the_values_on_the_wire_are_the_documented_ones() -> None:
    assert [*RolloutStatus] == [
        *("queued", "running", "grading", "success", "failure", "cancelled", "unknown")
    ]
    assert [*GraderStatus] == ["pending", "success", "failure"]
    assert [*RolloutErrorCategory] == [
        *("timeout", "validation_error", "http_error", "agent_error"),
        *("lease_expired", "internal_error"),
    ]


SUCCESS = ExecutionResult(status=RolloutStatus.SUCCESS)
FAILURE = ExecutionResult(status=RolloutStatus.FAILURE, err_message="boom")
GRADED = ExecutionResult(status=RolloutStatus.SUCCESS, sample=RolloutSample(reward=1.0))
UNGRADED = ExecutionResult(status=RolloutStatus.FAILURE)


def test_a_result_succeeds_by_its_status_alone() -> None:
    assert SUCCESS.succeeded
    assert not FAILURE.succeeded


@pytest.mark.parametrize(
    ("workflow", "grader", "result", "to_save"),
    [
        (SUCCESS, None, SUCCESS, SUCCESS),
        (FAILURE, None, FAILURE, FAILURE),
        (SUCCESS, GRADED, GRADED, GRADED),
        (SUCCESS, UNGRADED, UNGRADED, SUCCESS),
        (FAILURE, UNGRADED, FAILURE, FAILURE),
        (GRADED, UNGRADED, UNGRADED, GRADED),
    ],
)
def test_an_outcome_shows_the_half_that_decides(
    workflow: ExecutionResult,
    grader: ExecutionResult | None,
    result: ExecutionResult,
    to_save: ExecutionResult,
) -> None:
    outcome = ExecutionOutcome(workflow=workflow, grader=grader)
    assert outcome.result is result
    assert outcome.result_to_save is to_save


def test_a_failed_workflow_without_a_sample_shows_the_graders() -> None:
    outcome = ExecutionOutcome(workflow=FAILURE, grader=GRADED)
    assert outcome.result.sample is GRADED.sample
    assert (outcome.result.status, outcome.result.err_message) == (RolloutStatus.FAILURE, "boom")
    assert FAILURE.sample is None


def test_usage_starts_at_nothing() -> None:
    assert ModelUsage().model_dump(exclude_none=True) == {
        "calls": 0,
        "failed_calls": 0,
        "prompt_tokens": 0,
        "completion_tokens": 0,
        "total_tokens": 0,
        "retries": 0,
    }
