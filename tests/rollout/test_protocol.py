"""The bodies on the wire: documented, always valid JSON, and a reward only where it counts."""

from __future__ import annotations

import json
import math
from collections import UserList, deque
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from osmosis_ai.rollout.protocol import (
    MADE_SAFE_KEY,
    CancelRolloutsRequest,
    CancelRolloutsResponse,
    GraderCompleteRequest,
    RolloutCompleteRequest,
    RolloutInitRequest,
    RolloutInitResponse,
    RolloutStatusResponse,
    WireSample,
    encode_completion,
    encode_grade,
    encode_sample,
)
from osmosis_ai.rollout.types import (
    ExecutionResult,
    GraderStatus,
    RolloutErrorCategory,
    RolloutSample,
    RolloutStatus,
)
from tests.rollout.strange import Strange, conversations, maps, ordinary_form, texts

INIT = {
    "initial_messages": [{"role": "user", "content": "2 + 2"}],
    "chat_completions_url": "http://controller/v1",
    "completion_callback_url": "http://controller/completion",
}


def parse(data: bytes) -> Any:
    parsed = json.loads(data.decode(), parse_constant=pytest.fail)
    assert orjson.loads(data) == parsed
    return parsed


def graded(sample: RolloutSample | None, **fields: Any) -> dict[str, Any]:
    """The grader callback of a successful grade, as a controller reads it."""
    result = ExecutionResult(
        **{"status": RolloutStatus.SUCCESS, "phase": "grader", "sample": sample, **fields}
    )
    body = parse(encode_grade("r", result))
    assert GraderCompleteRequest.model_validate(body).rollout_id == "r"
    return body


class TestInitRequest:
    """Facts 10.2."""

    def test_the_least_a_controller_says(self) -> None:
        request = RolloutInitRequest.model_validate(INIT)
        assert (request.rollout_id, request.grader_callback_url) == (None, None)
        assert (request.agent_timeout_sec, request.grader_timeout_sec) == (None, None)
        assert (request.label, request.metadata, request.extra_fields) == (None, None, None)

    def test_unknown_keys_are_ignored(self) -> None:
        """A newer controller may say more than this server knows."""
        assert RolloutInitRequest.model_validate({**INIT, "novelty": 1})

    @pytest.mark.parametrize("missing", INIT)
    def test_what_it_needs(self, missing: str) -> None:
        with pytest.raises(ValidationError, match=missing):
            RolloutInitRequest.model_validate({key: INIT[key] for key in INIT if key != missing})

    @pytest.mark.parametrize(
        ("field", "refused"),
        [
            ("rollout_id", ""),
            ("rollout_id", "../x"),
            ("rollout_id", "a/b"),
            ("rollout_id", "\ud800"),
            ("llm_api_key", ""),
            ("agent_timeout_sec", math.nan),
            ("grader_timeout_sec", "inf"),
            ("agent_timeout_sec", "soon"),
            ("completion_callback_url", ""),
            ("completion_callback_url", "ftp://controller"),
            ("grader_callback_url", "controller/grader"),
            ("initial_messages", "hello"),
            ("initial_messages", ["hello"]),
            ("metadata", []),
        ],
        ids=ascii,
    )
    def test_what_it_refuses(self, field: str, refused: Any) -> None:
        with pytest.raises(ValidationError, match=field):
            RolloutInitRequest.model_validate({**INIT, field: refused})

    def test_keys_are_not_printed(self) -> None:
        request = RolloutInitRequest.model_validate(
            {**INIT, "controller_api_key": "secret", "llm_api_key": "secret"}
        )
        assert "secret" not in repr(request)

    def test_it_becomes_a_request_under_the_id_it_was_given(self) -> None:
        request = RolloutInitRequest.model_validate(
            {**INIT, "label": "4", "metadata": {"a": 1}, "agent_timeout_sec": "5"}
        ).to_execution_request("mine")
        assert (request.id, request.prompt, request.label) == (
            "mine",
            INIT["initial_messages"],
            "4",
        )
        assert (request.metadata, request.agent_timeout_sec) == ({"a": 1}, 5.0)
        assert request.grader_timeout_sec is None
        assert request.is_gradable


class TestCompletion:
    def test_a_success(self) -> None:
        result = ExecutionResult(
            status=RolloutStatus.SUCCESS,
            sample=RolloutSample(),
            extra_fields={"backend": "diagnostics"},
            phase="workflow",
        )
        assert parse(encode_completion("r", result)) == {
            "status": "success",
            "rollout_id": "r",
            "extra_fields": None,
            "err_message": None,
            "err_category": None,
            "err_summary": None,
            "phase": "workflow",
            "no_result": None,
        }

    def test_a_failure(self) -> None:
        result = ExecutionResult(
            status=RolloutStatus.FAILURE,
            err_message="boom \ud800",
            err_category=RolloutErrorCategory.VALIDATION_ERROR,
            err_summary="ValueError: boom \ud800",
            no_result="gone \ud800",
        )
        body = parse(encode_completion("r", result))
        assert (body["status"], body["err_category"]) == ("failure", "validation_error")
        assert (body["err_message"], body["no_result"]) == ("boom \ufffd", "gone \ufffd")
        assert body["err_summary"] == "ValueError: boom \ufffd"
        assert RolloutCompleteRequest.model_validate(body).err_message == "boom \ufffd"

    @given(st.none() | texts, st.none() | texts, st.sampled_from(RolloutStatus))
    def test_any_text_can_be_sent(
        self, err_message: str | None, no_result: str | None, status: RolloutStatus
    ) -> None:
        result = ExecutionResult(status=status, err_message=err_message, no_result=no_result)
        body = parse(encode_completion("r", result))
        assert (body["err_message"] is None) is (err_message is None)
        assert RolloutCompleteRequest.model_validate(body).status is status


class TestGrade:
    """Facts 10.3 and contract 3.5."""

    def test_a_graded_sample(self) -> None:
        sample = RolloutSample(
            messages=[{"role": "assistant", "content": "4"}],
            trajectory_messages=[{"kept": "here"}],
            label="4",
            reward=1.0,
            metrics={"turns": 2},
            extra_fields={"seed": 7},
        )
        assert graded(sample) == {
            "status": "success",
            "rollout_id": "r",
            "sample": {
                "messages": [{"role": "assistant", "content": "4"}],
                "label": "4",
                "reward": 1.0,
                "remove_sample": False,
                "metrics": {"turns": 2},
                "extra_fields": {"seed": 7},
            },
            "err_message": None,
            "err_category": None,
            "err_summary": None,
            "phase": "grader",
            "no_result": None,
        }

    def test_a_bare_failure(self) -> None:
        body = graded(None, status=RolloutStatus.FAILURE)
        assert (body["status"], body["sample"], body["err_message"]) == ("failure", None, None)

    @pytest.mark.parametrize("status", [RolloutStatus.FAILURE, RolloutStatus.CANCELLED])
    def test_the_reward_of_a_failed_grade_stays_here(self, status: RolloutStatus) -> None:
        sample = RolloutSample(reward=1.0)
        body = graded(sample, status=status, err_message="boom")
        assert (body["status"], body["sample"]["reward"]) == ("failure", None)
        assert sample.reward == 1.0

    def test_the_reward_of_a_removed_sample_stays_here(self) -> None:
        sample = RolloutSample(reward=0.5, remove_sample=True, metrics={"bad": math.nan})
        body = graded(sample)["sample"]
        assert (body["remove_sample"], body["reward"], body["metrics"]) == (True, None, {})
        assert (sample.reward, math.isnan(sample.metrics["bad"])) == (0.5, True)

    @pytest.mark.parametrize("reward", [0.0, -0.0, 1.0, -1e308, 5e-324, 0.1 + 0.2])
    def test_a_reward_arrives_exactly(self, reward: float) -> None:
        arrived = graded(RolloutSample(reward=reward))["sample"]["reward"]
        assert (arrived, math.copysign(1, arrived)) == (reward, math.copysign(1, reward))

    def test_a_sample_without_a_reward_has_none(self) -> None:
        assert graded(RolloutSample())["sample"]["reward"] is None

    @pytest.mark.parametrize("wrap", [tuple, deque, UserList])
    def test_any_sequence_of_messages_arrives_as_a_list(self, wrap: Any) -> None:
        body = graded(RolloutSample(messages=wrap([{"role": "user"}])))["sample"]
        assert (body["messages"], body["extra_fields"]) == ([{"role": "user"}], {})

    def test_what_had_to_change_is_named_beside_what_is_left(self) -> None:
        sample = RolloutSample(
            messages=[{"content": "a\ud800"}],
            label="b\ud800",
            reward=1.0,
            metrics={"score": np.float32(0.5), "bad": math.inf, "tools": {1: 2}},
            extra_fields={"kept": "c", "lock": object(), "n": 2**70},
        )
        body = graded(sample)["sample"]
        assert body["reward"] == 1.0
        assert (body["messages"], body["label"]) == ([{"content": "a\ufffd"}], "b\ufffd")
        assert body["metrics"] == {"score": 0.5, "tools": {"1": 2}}
        assert body["extra_fields"] == {
            "kept": "c",
            MADE_SAFE_KEY: [
                "messages[0].content: a lone surrogate replaced",
                "label: a lone surrogate replaced",
                "metrics.score: a float32 became a float",
                "metrics.bad: a number that is not finite",
                "metrics.tools: a key of type int became a text",
                "extra_fields.lock: a object has no JSON form",
                "extra_fields.n: an integer beyond 64 bits",
            ],
        }
        assert sample.extra_fields.keys() == {"kept", "lock", "n"}

    @given(
        messages=conversations,
        label=st.none() | texts,
        reward=st.floats(allow_nan=False, allow_infinity=False),
        metrics=maps,
        extra_fields=maps,
    )
    def test_anything_arrives_as_json_with_its_reward(
        self,
        messages: Any,
        label: str | None,
        reward: float,
        metrics: dict[str, Any],
        extra_fields: dict[str, Any],
    ) -> None:
        """What was changed is marked; what was not is equal and unmarked."""
        extra_fields.pop(MADE_SAFE_KEY, None)
        sample = RolloutSample(messages=messages, label=label, reward=reward)
        sample.metrics, sample.extra_fields = metrics, extra_fields
        body = graded(sample)["sample"]
        assert body["reward"] == reward
        assert isinstance(body["messages"], list)
        assert len(body["messages"]) == len(messages)
        marks = body["extra_fields"].pop(MADE_SAFE_KEY, [])
        for name in ("messages", "label", "metrics", "extra_fields"):
            try:
                form = ordinary_form(getattr(sample, name))
            except Strange:
                assert marks
            else:
                assert body[name] == form
                assert not [mark for mark in marks if mark.startswith(name)]

    @given(messages=conversations, metrics=maps)
    def test_the_sample_of_a_failed_grade_is_a_sample_of_the_wire(
        self, messages: Any, metrics: Any
    ) -> None:
        sample = RolloutSample.model_construct(messages=messages, metrics=metrics, reward=1.0)
        body = parse(encode_sample(sample, rewarded=False))
        assert WireSample.model_validate(body).reward is None


class TestOtherBodies:
    def test_the_202_says_nothing_yet(self) -> None:
        assert RolloutInitResponse().model_dump() == {}

    def test_a_status_may_be_asked_for_any_name(self) -> None:
        response = RolloutStatusResponse(rollout_id="../x", status=RolloutStatus.UNKNOWN)
        assert response.model_dump(mode="json") == {
            "rollout_id": "../x",
            "status": "unknown",
            "reward": None,
            "err_message": None,
        }

    def test_a_cancel_names_its_selector(self) -> None:
        assert CancelRolloutsRequest(ids=["a"]).model_dump(exclude_none=True) == {"ids": ["a"]}
        response = CancelRolloutsResponse(dispositions={"a": "not_found"})
        assert response.model_dump() == {"dispositions": {"a": "not_found"}}

    @pytest.mark.parametrize("body", [RolloutCompleteRequest, GraderCompleteRequest])
    def test_a_callback_names_its_rollout(self, body: Any) -> None:
        with pytest.raises(ValidationError, match="rollout_id"):
            body.model_validate({"status": "success"})
        with pytest.raises(ValidationError, match="segment"):
            body.model_validate({"status": "success", "rollout_id": "a/b"})

    def test_a_callback_without_our_keys_is_one(self) -> None:
        """Other servers know neither `phase` nor `no_result`."""
        body = GraderCompleteRequest.model_validate(
            {"status": "success", "rollout_id": "r", "sample": {"reward": 0.5}}
        )
        assert body.status is GraderStatus.SUCCESS
        assert body.sample is not None
        assert body.sample.reward == 0.5
        assert (body.phase, body.no_result) == (None, None)

    @pytest.mark.parametrize("reward", [math.nan, math.inf, "many"])
    def test_a_reward_on_the_wire_is_finite(self, reward: Any) -> None:
        with pytest.raises(ValidationError, match="reward"):
            WireSample(reward=reward)
