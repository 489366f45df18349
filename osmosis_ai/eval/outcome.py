"""What came of a rollout: a value, or one of the ways in which there is none."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from osmosis_ai.rollout.types import (
    ExecutionOutcome,
    ExecutionResult,
    Phase,
    RolloutErrorCategory,
    RolloutStatus,
)


class Outcome(StrEnum):
    """The six ways in which a rollout counts, or does not; `docs/outcomes.md` explains them."""

    SCORED = "scored"
    REMOVED = "removed"
    UNGRADED = "ungraded"
    WORKFLOW_FAILED = "workflow_failed"
    GRADER_FAILED = "grader_failed"
    NO_RESULT = "no_result"


FAILED = frozenset({Outcome.WORKFLOW_FAILED, Outcome.GRADER_FAILED})
"""Outcomes that are the workflow's or the grader's own doing."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """An outcome, and the reward or the reason that goes with it."""

    outcome: Outcome
    reward: float | None = None
    phase: Phase | None = None
    category: str | None = None
    message: str | None = None
    summary: str | None = None
    """What user code raised, in one line, and where."""


def classify(outcome: ExecutionOutcome) -> Verdict:
    """The first of the six outcomes that fits, failures from outside agent and grader first."""
    workflow, grader = outcome.workflow, outcome.grader
    outside = _why_no_result(outcome)
    if outside is not None:
        return outside
    if not workflow.succeeded:
        return _failed(Outcome.WORKFLOW_FAILED, workflow, phase="workflow")
    if grader is None or _is_bare_failure(grader):
        return Verdict(Outcome.UNGRADED)
    if not grader.succeeded:
        return _failed(Outcome.GRADER_FAILED, grader, phase="grader")
    return _graded(grader)


def no_result(message: str, *, category: str | None = None) -> Verdict:
    """The verdict on a rollout whose driver gave no outcome at all."""
    return Verdict(Outcome.NO_RESULT, category=category, message=message)


_FROM_OUTSIDE = frozenset(
    {
        RolloutErrorCategory.HTTP_ERROR,
        RolloutErrorCategory.INTERNAL_ERROR,
        RolloutErrorCategory.LEASE_EXPIRED,
    }
)
"""Categories of failures of the place where a rollout ran; user code raises none of them."""

_CRASHED = "Internal server error"
"""What a rollout server says, without a category, of a rollout that its backend lost."""


def _why_no_result(outcome: ExecutionOutcome) -> Verdict | None:
    workflow, usage = outcome.workflow, outcome.usage
    lost = _lost(workflow, phase="workflow")
    if lost is not None:
        return lost
    if not workflow.succeeded and usage is not None and usage.last_error is not None:
        reason = f"the model did not answer: {usage.last_error}"
        return _failed(Outcome.NO_RESULT, workflow, phase="workflow", reason=reason)
    if workflow.succeeded and outcome.grader is not None:
        return _lost(outcome.grader, phase="grader")
    return None


def _lost(result: ExecutionResult, *, phase: Phase) -> Verdict | None:
    """The verdict where a result itself says that it tells nothing about agent or grader."""
    if result.no_result is not None:
        return _failed(Outcome.NO_RESULT, result, phase=phase, reason=result.no_result)
    crashed = result.err_category is None and result.err_message == _CRASHED
    cancelled = result.status is RolloutStatus.CANCELLED
    if not result.succeeded and (cancelled or crashed or result.err_category in _FROM_OUTSIDE):
        return _failed(Outcome.NO_RESULT, result, phase=phase)
    return None


def _is_bare_failure(grader: ExecutionResult) -> bool:
    """Whether this is what a backend answers where there was nothing to grade, or no grader."""
    said = (grader.sample, grader.err_message, grader.err_category)
    return not grader.succeeded and said == (None, None, None)


def _graded(grader: ExecutionResult) -> Verdict:
    sample = grader.sample
    if sample is not None and sample.remove_sample:
        return Verdict(Outcome.REMOVED)
    if sample is None or sample.reward is None or not math.isfinite(sample.reward):
        return Verdict(
            Outcome.GRADER_FAILED,
            phase="grader",
            category=RolloutErrorCategory.VALIDATION_ERROR,
            message="the grader left no reward",
        )
    return Verdict(Outcome.SCORED, reward=float(sample.reward))


def _failed(
    outcome: Outcome, result: ExecutionResult, *, phase: Phase, reason: str | None = None
) -> Verdict:
    is_raised = reason is None or reason == result.err_message
    return Verdict(
        outcome,
        phase=result.phase or phase,
        category=result.err_category,
        message=reason or result.err_message or str(result.status),
        summary=result.err_summary if is_raised else None,
    )
