"""The bodies on the wire of the callback protocol, one class per message."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import orjson
from pydantic import AfterValidator, Field, FiniteFloat, ValidationError
from pydantic_core import from_json

from osmosis_ai.rollout.oversize import cut_sample
from osmosis_ai.rollout.safe_json import Safe, dump_json, make_safe, safe_text
from osmosis_ai.rollout.types import (
    DeferredModel,
    ExecutionRequest,
    ExecutionResult,
    GraderStatus,
    Phase,
    RolloutErrorCategory,
    RolloutId,
    RolloutSample,
    RolloutStatus,
)

MADE_SAFE_KEY = "made_safe"
"""Key of `extra_fields` that lists what had to change for a sample to be valid JSON."""

SERVER_RESTARTED = "server_restarted"
"""The `no_result` of a rollout that was under way when its server ended."""


def _check_url(value: str) -> str:
    if not value.startswith(("http://", "https://")):
        raise ValueError(f"{value!r} must be an http:// or https:// URL")
    return value


CallbackUrl: TypeAlias = Annotated[str, AfterValidator(_check_url)]
"""Where an answer is posted to."""


class RolloutInitRequest(DeferredModel):
    """Body of `POST /rollout`: a controller asks for one rollout."""

    initial_messages: list[dict[str, Any]]
    label: str | None = None
    metadata: dict[str, Any] | None = None
    rollout_id: RolloutId | None = None
    chat_completions_url: str
    controller_api_key: str | None = Field(default=None, repr=False)
    llm_api_key: Annotated[str, Field(min_length=1)] | None = Field(default=None, repr=False)
    completion_callback_url: CallbackUrl
    grader_callback_url: CallbackUrl | None = None
    agent_timeout_sec: FiniteFloat | None = None
    grader_timeout_sec: FiniteFloat | None = None
    extra_fields: dict[str, Any] | None = None

    @property
    def policy_key(self) -> str | None:
        """The key of the model's URL."""
        return self.llm_api_key or self.controller_api_key

    def to_execution_request(self, rollout_id: str) -> ExecutionRequest:
        """The rollout this asks for, under the id it was given."""
        return _to_execution_request(self, rollout_id)


class RolloutPollRequest(DeferredModel):
    """Body of `POST /rollout` of a controller that comes for the result itself."""

    rollout_id: RolloutId
    initial_messages: list[dict[str, Any]]
    label: str | None = None
    metadata: dict[str, Any] | None = None
    chat_completions_url: str
    llm_api_key: Annotated[str, Field(min_length=1)] | None = Field(default=None, repr=False)
    completion_callback_url: None = None
    grader_callback_url: None = None
    grade: bool = True
    """Whether the grader's answer is wanted too."""
    agent_timeout_sec: FiniteFloat | None = None
    grader_timeout_sec: FiniteFloat | None = None
    extra_fields: dict[str, Any] | None = None

    @property
    def policy_key(self) -> str | None:
        """The key of the model's URL."""
        return self.llm_api_key

    def to_execution_request(self, rollout_id: str) -> ExecutionRequest:
        """The rollout this asks for, under the id it was given."""
        return _to_execution_request(self, rollout_id)


StartRequest: TypeAlias = RolloutInitRequest | RolloutPollRequest
"""What a rollout can be asked for with."""


def parse_start_request(data: bytes) -> StartRequest:
    """The body of `POST /rollout`: without any callback URL it asks for a rollout to be polled.

    Raises ValidationError.
    """
    try:
        return RolloutInitRequest.model_validate_json(data)
    except ValidationError:
        if _names_a_callback(data):
            raise
    return RolloutPollRequest.model_validate_json(data)


def _names_a_callback(data: bytes) -> bool:
    try:
        body = from_json(data)  # as the model reads it: NaN and all
    except ValueError:
        return False
    urls = ("completion_callback_url", "grader_callback_url")
    return isinstance(body, dict) and any(body.get(url) is not None for url in urls)


def _to_execution_request(body: StartRequest, rollout_id: str) -> ExecutionRequest:
    return ExecutionRequest.model_construct(
        id=rollout_id,
        prompt=body.initial_messages,
        label=body.label,
        metadata=body.metadata,
        agent_timeout_sec=body.agent_timeout_sec,
        grader_timeout_sec=body.grader_timeout_sec,
    )


class RolloutInitResponse(DeferredModel):
    """Body of the 202 to a `POST /rollout` with callback URLs: nothing yet."""


class RolloutPollResponse(DeferredModel):
    """Body of the 202 to a `POST /rollout` without callback URLs."""

    rollout_id: str
    status: RolloutStatus
    polling_lease_token: str = Field(repr=False)
    """Goes into the header `X-Osmosis-Rollout-Lease` of each poll."""
    result_wait_timeout_sec: float
    """How long the server holds a poll."""
    polling_lease_timeout_sec: float
    """How long the rollout goes on without a poll."""


class RolloutCompleteRequest(DeferredModel):
    """Body of the completion callback: how the workflow ended."""

    status: RolloutStatus
    rollout_id: RolloutId
    extra_fields: dict[str, Any] | None = None
    err_message: str | None = None
    err_category: RolloutErrorCategory | None = None
    err_summary: str | None = None
    phase: Phase | None = None
    no_result: str | None = None


class WireSample(DeferredModel):
    """A sample as callbacks carry it: the archive's messages stay behind."""

    messages: list[dict[str, Any]] = Field(default_factory=list)
    label: str | None = None
    reward: FiniteFloat | None = None
    remove_sample: bool = False
    metrics: dict[str, Any] = Field(default_factory=dict)
    extra_fields: dict[str, Any] = Field(default_factory=dict)


class GraderCompleteRequest(DeferredModel):
    """Body of the grader callback: the graded sample, or a bare failure."""

    status: GraderStatus
    rollout_id: RolloutId
    sample: WireSample | None = None
    err_message: str | None = None
    err_category: RolloutErrorCategory | None = None
    err_summary: str | None = None
    phase: Phase | None = None
    no_result: str | None = None


class RolloutResultResponse(DeferredModel):
    """Body of `GET /rollout/{id}/result`; only the end of a rollout carries more than a status."""

    rollout_id: str
    status: RolloutStatus
    sample: WireSample | None = None
    err_message: str | None = None
    err_category: RolloutErrorCategory | None = None
    err_summary: str | None = None
    phase: Phase | None = None
    no_result: str | None = None


class RolloutStatusResponse(DeferredModel):
    """Body of `GET /rollout/{id}/status`; ids nobody knows are `unknown`."""

    rollout_id: str
    status: RolloutStatus
    reward: FiniteFloat | None = None
    err_message: str | None = None


class CancelRolloutsRequest(DeferredModel):
    """Body of `POST /rollout/cancel`: exactly one selector."""

    ids: list[str] | None = None
    prefix: str | None = None
    all: bool | None = None


class CancelRolloutsResponse(DeferredModel):
    """What a cancel did to each rollout it named or found."""

    dispositions: dict[str, str]


def encode_completion(rollout_id: str, result: ExecutionResult) -> bytes:
    """The completion callback's body; never fails."""
    return orjson.dumps(
        {
            "status": result.status,
            "rollout_id": rollout_id,
            "extra_fields": None,
            **_error_fields(result),
        }
    )


def encode_grade(rollout_id: str, result: ExecutionResult) -> bytes:
    """The grader callback's body; never fails, and marks in the sample what had to change.

    The reward leaves only with a successful grade of a kept sample.
    """
    graded = result.succeeded
    sample = None if result.sample is None else encode_sample(result.sample, rewarded=graded)
    return orjson.dumps(
        {
            "status": GraderStatus.SUCCESS if graded else GraderStatus.FAILURE,
            "rollout_id": rollout_id,
            "sample": None if sample is None else orjson.Fragment(sample),
            **_error_fields(result),
        }
    )


def encode_result(
    rollout_id: str, completion: ExecutionResult, grade: ExecutionResult | None
) -> bytes:
    """The result of a rollout that is polled: both answers in one; never fails."""
    last = grade if grade is not None and completion.succeeded else completion
    sample = last.sample if last.sample is not None else completion.sample
    rewarded = grade is not None and last.succeeded
    encoded = None if sample is None else encode_sample(sample, rewarded=rewarded)
    return orjson.dumps(
        {
            "status": last.status,
            "rollout_id": rollout_id,
            "sample": None if encoded is None else orjson.Fragment(encoded),
            **_error_fields(last),
        }
    )


def encode_sample(sample: RolloutSample, *, rewarded: bool) -> bytes:
    """A sample as JSON bytes without its archive, cut where it is too large for the wire.

    The reward is null unless it counts.
    """
    messages = dump_json(sample.messages, at="messages")
    label = dump_json(sample.label, at="label")
    metrics = _safe_map(sample.metrics, at="metrics")
    extra = _safe_map(sample.extra_fields, at="extra_fields")
    changes = messages.changes + label.changes + metrics.changes + extra.changes
    if changes:
        extra.value[MADE_SAFE_KEY] = changes
    encoded = orjson.dumps(
        {
            "messages": orjson.Fragment(messages.data),
            "label": orjson.Fragment(label.data),
            "reward": sample.reward if rewarded and not sample.remove_sample else None,
            "remove_sample": sample.remove_sample,
            "metrics": metrics.value,
            "extra_fields": extra.value,
        }
    )
    return cut_sample(encoded)


def _safe_map(value: dict[str, Any], *, at: str) -> Safe:
    return make_safe(value, drop=True, at=at) if value else Safe({}, ())


def _error_fields(result: ExecutionResult) -> dict[str, Any]:
    return {
        "err_message": None if result.err_message is None else safe_text(result.err_message),
        "err_category": result.err_category,
        "err_summary": None if result.err_summary is None else safe_text(result.err_summary),
        "phase": result.phase,
        "no_result": None if result.no_result is None else safe_text(result.no_result),
    }
