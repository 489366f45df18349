"""Mutants of clause 3.2: what user code raises goes wrong on its way to the result."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from osmosis_ai.rollout.types import (
    ExecutionRequest,
    ExecutionResult,
    RolloutErrorCategory,
    RolloutSample,
)
from tests.mutants.mutant import breaks
from tests.mutants.plain import PlainBackend, Rollout, logger


@breaks("3.2", "an exception of run becomes a result", "an exception of grade becomes a result")
class CallsEverythingAnAgentError(PlainBackend):
    def category_of(self, error: BaseException) -> RolloutErrorCategory:
        return RolloutErrorCategory.AGENT_ERROR


@breaks("3.2", "an exception of grade becomes a result")
class LosesTheSampleOfAFailedGrade(PlainBackend):
    def failure(
        self, error: BaseException, request: ExecutionRequest, sample: RolloutSample | None
    ) -> ExecutionResult:
        return super().failure(error, request, None)


@breaks("3.2", "an exception of run becomes a result")
class AnswersWithTheReprOfTheError(PlainBackend):
    def text_of(self, error: BaseException) -> str:
        return repr(error)


@breaks("3.2", "an exception of the workflows constructor becomes a result")
class BuildsTheWorkflowUnguarded(PlainBackend):
    async def run_workflow(self, rollout: Rollout) -> ExecutionResult:
        self.workflow(self.config_for_execution())
        return await super().run_workflow(rollout)


@breaks("3.2", "an exception of the graders constructor becomes a result")
class BuildsTheGraderUnguarded(PlainBackend):
    async def run_grader(self, rollout: Rollout, result: ExecutionResult) -> ExecutionResult:
        self.build_grader()
        return await super().run_grader(rollout, result)


@breaks("3.2", "system exit ends the rollout alone")
class LetsSystemExitEscape(PlainBackend):
    def failure(
        self, error: BaseException, request: ExecutionRequest, sample: RolloutSample | None
    ) -> ExecutionResult:
        if isinstance(error, SystemExit):
            raise error
        return super().failure(error, request, sample)


@breaks("3.2", "a cancellation nobody asked for is a failure")
class TakesAStrayCancellationForARequest(PlainBackend):
    def was_stopped(self, rollout: Rollout, step: asyncio.Task[Any]) -> bool:
        return super().was_stopped(rollout, step) or step.cancelled()

    def failure(
        self, error: BaseException, request: ExecutionRequest, sample: RolloutSample | None
    ) -> ExecutionResult:
        if isinstance(error, asyncio.CancelledError):
            raise error
        return super().failure(error, request, sample)


@breaks("3.2", "a cancellation that user code settles itself is none")
class TakesAMarkedTaskForACancelledOne(PlainBackend):
    def was_stopped(self, rollout: Rollout, step: asyncio.Task[Any]) -> bool:
        return super().was_stopped(rollout, step) or step.cancelling() > 0


@breaks("3.2", "a failure without text names its class")
class LeavesAnEmptyMessageEmpty(PlainBackend):
    def text_of(self, error: BaseException) -> str:
        return super().text_of(error) if str(error) else ""


@breaks("3.2", "the traceback is logged once with the rollout id")
class LogsTheTracebackTwice(PlainBackend):
    def log(self, error: BaseException, request: ExecutionRequest) -> None:
        super().log(error, request)
        super().log(error, request)


@breaks("3.2", "the traceback is logged once with the rollout id")
class LogsNoTraceback(PlainBackend):
    def log(self, error: BaseException, request: ExecutionRequest) -> None:
        logger.error("rollout %s failed: %s", request.id, error)


@breaks("3.2", "the traceback is logged once with the rollout id")
class LogsWithoutTheRolloutId(PlainBackend):
    def log(self, error: BaseException, request: ExecutionRequest) -> None:
        logger.error("a rollout failed", exc_info=error)


@breaks("3.2", "keyboard interrupt passes")
class MakesKeyboardInterruptAResult(PlainBackend):
    async def caught(
        self,
        work: Coroutine[Any, Any, ExecutionResult],
        request: ExecutionRequest,
        sample: RolloutSample | None,
    ) -> ExecutionResult:
        try:
            return await super().caught(work, request, sample)
        except KeyboardInterrupt as exc:
            return self.failure(exc, request, sample)


@breaks("3.2", "a failure frees its slot", hangs=True)
class LeaksTheSlotOfAFailure(PlainBackend):
    def failure(
        self, error: BaseException, request: ExecutionRequest, sample: RolloutSample | None
    ) -> ExecutionResult:
        next(one for one in self.live if one.request is request).has_slot = False
        return super().failure(error, request, sample)
