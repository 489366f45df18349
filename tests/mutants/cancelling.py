"""Mutants of clause 3.3: cancelling that loses answers, slots, or the truth."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any

from osmosis_ai.rollout.backend.base import (
    CancelDisposition,
    Capacity,
    ResultCallback,
    RolloutState,
)
from osmosis_ai.rollout.types import ExecutionResult, RolloutStatus
from tests.mutants.mutant import breaks
from tests.mutants.plain import PlainBackend, Rollout, Stopped


@breaks(
    "3.3",
    "a cancelled rollout gives a cancelled answer",
    "a grader answer that was asked for comes too",
)
class LeavesOutTheCancelledAnswer(PlainBackend):
    async def answer_cancelled(
        self, rollout: Rollout, on_workflow: ResultCallback, on_grader: ResultCallback | None
    ) -> None:
        pass


@breaks("3.3", "a cancelled rollout gives a cancelled answer")
class CallsACancelledRolloutAFailure(PlainBackend):
    def cancelled_result(self) -> ExecutionResult:
        return ExecutionResult(status=RolloutStatus.FAILURE, err_message="cancelled")


@breaks("3.3", "a grader answer that was asked for comes too")
class LeavesOutTheGraderAnswerOfACancelledRollout(PlainBackend):
    async def answer_cancelled(
        self, rollout: Rollout, on_workflow: ResultCallback, on_grader: ResultCallback | None
    ) -> None:
        await super().answer_cancelled(rollout, on_workflow, None)


@breaks("3.3", "cancelling while grading leaves the workflows answer")
class AnswersForACancelledWorkflowAgain(PlainBackend):
    async def answer_cancelled(
        self, rollout: Rollout, on_workflow: ResultCallback, on_grader: ResultCallback | None
    ) -> None:
        rollout.answered = 0
        await super().answer_cancelled(rollout, on_workflow, on_grader)


@breaks("3.3", "a delivery is not interrupted")
class InterruptsADelivery(PlainBackend):
    async def answer(
        self, rollout: Rollout, callback: ResultCallback, result: ExecutionResult
    ) -> None:
        rollout.answered += 1
        rollout.step = asyncio.ensure_future(callback(result))
        await asyncio.wait([rollout.step])


@breaks("3.3", "a queued rollout is cancelled without running", hangs=True)
class CannotCancelWhatIsQueued(PlainBackend):
    def stop(self, rollout: Rollout) -> CancelDisposition:
        if rollout.status is RolloutStatus.QUEUED:
            rollout.stopping = True
            return CancelDisposition.CANCELLED_QUEUED
        return super().stop(rollout)


@breaks("3.3", "cancel says what it did")
class SaysThatAllWereRunning(PlainBackend):
    def stop(self, rollout: Rollout) -> CancelDisposition:
        super().stop(rollout)
        return CancelDisposition.CANCELLED_RUNNING


@breaks("3.3", "cancel says what it did")
class SaysNothingOfUnknownRollouts(PlainBackend):
    async def cancel_rollouts(
        self, *, ids: Iterable[str] | None = None, prefix: str | None = None, all: bool = False
    ) -> dict[str, CancelDisposition]:
        said = await super().cancel_rollouts(ids=ids, prefix=prefix, all=all)
        return {name: one for name, one in said.items() if one is not CancelDisposition.NOT_FOUND}


@breaks(
    "3.3",
    "user code cannot swallow a cancellation",
    "user code cannot turn a cancellation into a failure",
    "a grader cannot swallow a cancellation",
)
class LetsUserCodeSwallowACancellation(PlainBackend):
    def was_stopped(self, rollout: Rollout, step: asyncio.Task[Any]) -> bool:
        return step.cancelled()


@breaks("3.3", "user code cannot turn a cancellation into a failure")
class BelievesTheExceptionOfACancelledWorkflow(PlainBackend):
    def was_stopped(self, rollout: Rollout, step: asyncio.Task[Any]) -> bool:
        failed = not step.cancelled() and isinstance(step.result(), ExecutionResult)
        return rollout.stopping and not (failed and not step.result().succeeded)


@breaks(
    "3.3",
    "cancel frees the slot when user code has ended",
    "a rollout whose code goes on is stopping",
)
class FreesTheSlotBeforeTheCodeHasEnded(PlainBackend):
    async def do_step(
        self, rollout: Rollout, status: RolloutStatus, work: Coroutine[Any, Any, Any]
    ) -> Any:
        rollout.status = status
        rollout.step = step = asyncio.create_task(work)
        self.asked = asyncio.Event()
        asked = asyncio.create_task(self.asked.wait())
        await asyncio.wait([step, asked], return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()
        if rollout.stopping:
            raise Stopped
        return step.result()

    def stop(self, rollout: Rollout) -> CancelDisposition:
        said = super().stop(rollout)
        self.asked.set()
        return said


@breaks("3.3", "a rollout whose code goes on is stopping")
class DoesNotCountWhatIsStopping(PlainBackend):
    def capacity(self) -> Capacity | None:
        queued = sum(not rollout.has_slot for rollout in self.live)
        return Capacity(self.limit, self.taken, queued)


@breaks("3.3", "a rollout whose code goes on is stopping")
class HidesThatARolloutIsStopping(PlainBackend):
    def rollout_status(self, rollout_id: str) -> RolloutState | None:
        state = super().rollout_status(rollout_id)
        return None if state is None else RolloutState(state.status)


@breaks("3.3", "cancelling leaks no slot", hangs=True)
class LeaksTheSlotOnCancel(PlainBackend):
    async def free_slot(self, rollout: Rollout) -> None:
        if not rollout.stopping:
            await super().free_slot(rollout)


@breaks("3.3", "cancelling leaks no slot")
class FreesASlotThatAQueuedRolloutNeverHad(PlainBackend):
    async def free_slot(self, rollout: Rollout) -> None:
        rollout.has_slot = True
        await super().free_slot(rollout)


@breaks("3.3", "cancelling twice is cancelling once")
class InterruptsTheCodeAgainOnASecondCancel(PlainBackend):
    def stop(self, rollout: Rollout) -> CancelDisposition:
        rollout.stopping = False
        return super().stop(rollout)


@breaks("3.3", "cancelling the task of execute passes through")
class SwallowsTheCancellationOfItsCaller(PlainBackend):
    async def execute(
        self,
        request: Any,
        on_workflow_complete: ResultCallback,
        on_grader_complete: ResultCallback | None = None,
    ) -> None:
        try:
            await super().execute(request, on_workflow_complete, on_grader_complete)
        except asyncio.CancelledError:
            return


@breaks("3.3", "a cancelled rollout leaves its callers task usable")
class CancelsItsCallerToo(PlainBackend):
    async def answer_cancelled(
        self, rollout: Rollout, on_workflow: ResultCallback, on_grader: ResultCallback | None
    ) -> None:
        await super().answer_cancelled(rollout, on_workflow, on_grader)
        task = asyncio.current_task()
        assert task is not None
        task.cancel()


@breaks("3.3", "cancelling one leaves the others alone")
class CancelsTheNeighboursToo(PlainBackend):
    def stop(self, rollout: Rollout) -> CancelDisposition:
        for other in self.live:
            super().stop(other)
        return super().stop(rollout)
