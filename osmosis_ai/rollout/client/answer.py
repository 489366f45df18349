"""What goes to a server for a rollout, and what its answers come to."""

from __future__ import annotations

from dataclasses import dataclass, field

from osmosis_ai.rollout.controller.endpoint import Callbacks
from osmosis_ai.rollout.flight.flight import Flight
from osmosis_ai.rollout.flight.outcome import CANCELLED, ungraded
from osmosis_ai.rollout.protocol import (
    GraderCompleteRequest,
    RolloutCompleteRequest,
    RolloutResultResponse,
    WireSample,
)
from osmosis_ai.rollout.safe_json import dump_json
from osmosis_ai.rollout.types import (
    ExecutionRequest,
    ExecutionResult,
    GraderStatus,
    Phase,
    RolloutErrorCategory,
    RolloutSample,
    RolloutStatus,
)


@dataclass(frozen=True, slots=True)
class Policy:
    """A model's endpoint that the servers reach by themselves."""

    chat_completions_url: str
    api_key: str | None = field(default=None, repr=False)


def encode_order(flight: Flight, *, callbacks: Callbacks | None, policy: Policy | None) -> bytes:
    """The body of `POST /rollout`; without callbacks it asks for a rollout to be polled.

    With them `grade` is there all the same: a server that knows no callbacks answers in its way.
    """
    request, item, endpoint = flight.request, flight.item, flight.endpoint
    policy = policy or Policy(endpoint.chat_completions_url, endpoint.api_key)
    order = {
        "rollout_id": request.id,
        "initial_messages": request.prompt,
        "label": request.label,
        "metadata": request.metadata,
        "agent_timeout_sec": request.agent_timeout_sec,
        "grader_timeout_sec": request.grader_timeout_sec,
        "chat_completions_url": policy.chat_completions_url,
        "llm_api_key": policy.api_key,
        "grade": True,
        "extra_fields": {"row_index": item.row, "run_index": item.attempt},
    }
    if callbacks is not None:
        order["controller_api_key"] = callbacks.api_key
        order["completion_callback_url"] = callbacks.completion_url
        order["grader_callback_url"] = callbacks.grader_url
    return dump_json(order).data


def workflow_result(completion: RolloutCompleteRequest) -> ExecutionResult:
    """The workflow's half, as its callback says it."""
    cancelled = completion.status is RolloutStatus.CANCELLED
    return ExecutionResult(
        status=completion.status,
        err_message=completion.err_message,
        err_category=completion.err_category,
        err_summary=completion.err_summary,
        phase=completion.phase or "workflow",
        no_result=completion.no_result or (CANCELLED if cancelled else None),
    )


def grader_result(grade: GraderCompleteRequest) -> ExecutionResult:
    """The grader's half, as its callback says it."""
    succeeded = grade.status is GraderStatus.SUCCESS
    return ExecutionResult(
        status=RolloutStatus.SUCCESS if succeeded else RolloutStatus.FAILURE,
        sample=None if grade.sample is None else _sample(grade.sample),
        err_message=grade.err_message,
        err_category=grade.err_category,
        err_summary=grade.err_summary,
        phase=grade.phase or "grader",
        no_result=grade.no_result,
    )


def polled_results(
    result: RolloutResultResponse, request: ExecutionRequest
) -> tuple[ExecutionResult, ExecutionResult]:
    """Both halves of a rollout whose server says them in one."""
    phase = _failed_phase(result, request)
    said = ExecutionResult(
        status=result.status,
        sample=None if result.sample is None else _sample(result.sample),
        err_message=result.err_message,
        err_category=result.err_category,
        err_summary=result.err_summary,
        phase=phase or "grader",
        no_result=result.no_result or _why_nothing(result),
    )
    if phase == "workflow":
        return said, ungraded()
    workflow = ExecutionResult(status=RolloutStatus.SUCCESS, sample=said.sample, phase="workflow")
    return workflow, said


def before_grading(sample: RolloutSample | None) -> RolloutSample | None:
    """The sample without its grade, as far as the wire lets one tell them apart."""
    if sample is None:
        return None
    return sample.model_copy(update={"reward": None, "remove_sample": False})


def _failed_phase(result: RolloutResultResponse, request: ExecutionRequest) -> Phase | None:
    """Which half failed; a server that does not say it is known by what it sends."""
    if result.status is RolloutStatus.SUCCESS:
        return None
    if result.phase is not None:
        return result.phase
    if result.status is RolloutStatus.CANCELLED:
        return "workflow"
    is_bare = result.err_message is None and not request.is_gradable
    return "grader" if result.sample is not None or is_bare else "workflow"


def _why_nothing(result: RolloutResultResponse) -> str | None:
    if result.status is RolloutStatus.CANCELLED:
        return CANCELLED
    if result.err_category is RolloutErrorCategory.LEASE_EXPIRED:
        return result.err_message or "polling lease expired"
    return None


def _sample(sample: WireSample) -> RolloutSample:
    return RolloutSample(
        messages=sample.messages,
        label=sample.label,
        reward=sample.reward,
        remove_sample=sample.remove_sample,
        metrics=sample.metrics,
        extra_fields=sample.extra_fields,
    )
