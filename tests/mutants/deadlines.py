"""Mutants of clause 3.1: deadlines kept by nobody's wish, or not kept when asked."""

from __future__ import annotations

import asyncio
from typing import Any

from osmosis_ai.rollout.types import ExecutionResult, RolloutStatus
from tests.mutants.mutant import breaks
from tests.mutants.plain import PlainBackend, Rollout


@breaks("3.1", "timeouts interrupt nothing unless asked")
class EnforcesTimeoutsUnasked(PlainBackend):
    def __init__(self, **wiring: Any) -> None:
        super().__init__(**{**wiring, "enforce_timeouts": True})


@breaks(
    "3.1",
    "an enforced deadline ends the workflow",
    "an enforced deadline ends the grader",
    hangs=True,
)
class IgnoresTheOptIn(PlainBackend):
    def __init__(self, **wiring: Any) -> None:
        super().__init__(**{**wiring, "enforce_timeouts": False})


@breaks("3.1", "an enforced deadline ends the workflow")
class CallsADeadlineACancel(PlainBackend):
    def timed_out(self, sample: Any) -> ExecutionResult:
        return ExecutionResult(status=RolloutStatus.CANCELLED, sample=sample)


@breaks("3.1", "an enforced deadline ends the grader")
class LosesTheSampleAtTheGradersDeadline(PlainBackend):
    def timed_out(self, sample: Any) -> ExecutionResult:
        return super().timed_out(None)


@breaks("3.1", "an enforced deadline counts the time in the queue")
class ForgivesTheTimeInTheQueue(PlainBackend):
    def time_left(self, timeout_sec: float | None, spent_sec: float) -> float | None:
        return super().time_left(timeout_sec, 0.0)


@breaks("3.1", "the grader has its own full window")
class CountsTheWorkflowsTimeAgainstTheGrader(PlainBackend):
    def grader_time_left(self, rollout: Rollout) -> float | None:
        spent = asyncio.get_running_loop().time() - rollout.arrived
        return self.time_left(rollout.request.grader_timeout_sec, spent)


@breaks("3.1", "a late return of blocking code is a timeout")
class AcceptsALateReturn(PlainBackend):
    def late_is_timeout(self) -> bool:
        return False


@breaks("3.1", "an ample deadline changes nothing")
class ReadsSecondsAsMicroseconds(PlainBackend):
    def time_left(self, timeout_sec: float | None, spent_sec: float) -> float | None:
        left = super().time_left(timeout_sec, spent_sec)
        return None if left is None else left / 1e6
