"""What the answers of a backend come to, and what their absence does."""

from __future__ import annotations

from dataclasses import dataclass

from osmosis_ai.rollout.types import (
    ExecutionResult,
    Phase,
    RolloutErrorCategory,
    RolloutSample,
    RolloutStatus,
)

CANCELLED = "the rollout was cancelled"
NO_ANSWER = "the backend ended the rollout without an answer"


@dataclass(frozen=True, slots=True)
class Ending:
    """How a rollout ended where it did not end by itself: its deadline, or somebody's failure."""

    limit_sec: float
    expired: bool
    problem: str | None = None

    def missing(self, phase: Phase, *, sample: RolloutSample | None = None) -> ExecutionResult:
        """The result that stands for an answer which did not come in time."""
        if self.expired:
            return timed_out(phase, self.limit_sec, sample=sample)
        return without_result(phase, self.problem or NO_ANSWER, sample=sample)


def settle(
    workflow: ExecutionResult | None, grader: ExecutionResult | None, ending: Ending
) -> tuple[ExecutionResult, ExecutionResult]:
    """Both results of a rollout, each the answer that came or what its absence means."""
    if workflow is None:
        return ending.missing("workflow"), ungraded()
    if grader is not None:
        return workflow, grader
    if not workflow.succeeded:
        return workflow, ungraded()
    return workflow, ending.missing("grader", sample=workflow.sample)


def ungraded() -> ExecutionResult:
    """The bare failure of a rollout that nobody graded."""
    return ExecutionResult(status=RolloutStatus.FAILURE, phase="grader")


def timed_out(
    phase: Phase, limit_sec: float, *, sample: RolloutSample | None = None
) -> ExecutionResult:
    """The result of the half of a rollout that was going on at the deadline."""
    return ExecutionResult(
        status=RolloutStatus.FAILURE,
        sample=sample,
        err_message=f"the rollout exceeded its {limit_sec:g}s deadline during its {phase}",
        err_category=RolloutErrorCategory.TIMEOUT,
        phase=phase,
    )


def over_budget(limit: str, *, sample: RolloutSample | None) -> ExecutionResult:
    """The result of a workflow whose rollout asked its model for more than it may take."""
    return ExecutionResult(
        status=RolloutStatus.FAILURE,
        sample=sample,
        err_message=f"the rollout's budget is used up: {limit}",
        err_category=RolloutErrorCategory.AGENT_ERROR,
        phase="workflow",
    )


def without_result(
    phase: Phase, reason: str, *, sample: RolloutSample | None = None
) -> ExecutionResult:
    """The result of a half that failed for reasons outside the agent."""
    return ExecutionResult(
        status=RolloutStatus.FAILURE,
        sample=sample,
        err_message=reason,
        err_category=RolloutErrorCategory.INTERNAL_ERROR,
        phase=phase,
        no_result=reason,
    )
