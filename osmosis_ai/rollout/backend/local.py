"""LocalBackend: rollouts in this process, so many at once."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from osmosis_ai.errors import ConfigError
from osmosis_ai.rollout import execution
from osmosis_ai.rollout.agent_workflow import AgentWorkflow
from osmosis_ai.rollout.artifacts import make_artifacts_dir
from osmosis_ai.rollout.backend.base import (
    CancelDisposition,
    Capacity,
    ExecutionBackend,
    ResultCallback,
    RolloutState,
)
from osmosis_ai.rollout.context import RolloutContext, get_rollout_context
from osmosis_ai.rollout.grader import Grader
from osmosis_ai.rollout.program import load_program
from osmosis_ai.rollout.types import (
    AgentWorkflowConfig,
    ExecutionRequest,
    ExecutionResult,
    GraderConfig,
    Phase,
    RolloutErrorCategory,
    RolloutStatus,
)

T = TypeVar("T")


class LocalBackend(ExecutionBackend):
    """Run a workflow and its grader in the current process.

    Each argument is the object or its `"module:attr"` import path. Without a `workflow_config` 4
    rollouts run at once, else as many as `workflow_config.concurrency.max_concurrent` says, None
    being unlimited. Request timeouts interrupt nothing unless `enforce_timeouts` is set: then
    queue time counts against the workflow's budget and the grader has its own full window.

        backend = LocalBackend(workflow=MyWorkflow, grader=MyGrader)
    """

    def __init__(
        self,
        *,
        workflow: type[AgentWorkflow[Any]] | str,
        workflow_config: AgentWorkflowConfig | str | None = None,
        grader: type[Grader] | str | None = None,
        grader_config: GraderConfig | str | None = None,
        enforce_timeouts: bool = False,
    ) -> None:
        self._program = load_program(
            workflow=workflow,
            workflow_config=workflow_config,
            grader=grader,
            grader_config=grader_config,
        )
        self._enforce_timeouts = enforce_timeouts
        self._slots = _Slots(self._program.max_concurrent)
        self._live: dict[_Rollout, None] = {}

    async def run_workflow(self, request: ExecutionRequest) -> ExecutionResult:
        """Run the workflow alone, in no slot: for a harness of your own."""
        return await self._workflow(_Step.of(request))

    async def run_grader(
        self, request: ExecutionRequest, result: ExecutionResult
    ) -> ExecutionResult:
        """Grade a workflow's result alone; without a grader it comes back as it is."""
        return await self._grader(_Step.of(request), result)

    async def execute(
        self,
        request: ExecutionRequest,
        on_workflow_complete: ResultCallback,
        on_grader_complete: ResultCallback | None = None,
    ) -> None:
        """Run one rollout in a slot: workflow, its callback, grading, its callback."""
        rollout = _Rollout(request, _Answers(on_workflow_complete, on_grader_complete))
        self._live[rollout] = None
        try:
            await self._run(rollout)
        except asyncio.CancelledError:
            if not rollout.is_cancelled:  # a callback's own, and no business of ours
                raise
            await rollout.settle()
            await rollout.answers.cancelled()
            if rollout.cancelled_from_outside:
                raise
        finally:
            if rollout.has_slot:
                self._slots.release()
            del self._live[rollout]

    def capacity(self) -> Capacity:
        """How many rollouts run, wait and are stopping."""
        return Capacity(
            max=self._slots.limit,
            running=self._slots.taken,
            queued=len(self._slots.waiting),
            stopping=sum(rollout.is_stopping for rollout in self._live),
        )

    def rollout_status(self, rollout_id: str) -> RolloutState | None:
        """Where a rollout is; None as soon as it has ended."""
        for rollout in self._live:
            if rollout.request.id == rollout_id:
                return rollout.state
        return None

    def rollout_states(self) -> dict[str, RolloutState]:
        """Where every rollout is that has not ended."""
        return {rollout.request.id: rollout.state for rollout in self._live}

    async def cancel_rollouts(
        self,
        *,
        ids: Iterable[str] | None = None,
        prefix: str | None = None,
        all: bool = False,
    ) -> dict[str, CancelDisposition]:
        """Ask rollouts to stop; a slot is free when the code in it has ended.

        A rollout whose last answer is on its way counts as not found: nothing is left to stop.
        """
        if (ids is not None) + (prefix is not None) + all != 1:
            raise ConfigError("pass exactly one selector: ids, prefix, or all")
        said = dict.fromkeys(ids or (), CancelDisposition.NOT_FOUND)
        for rollout in [r for r in self._live if not r.answers.complete]:
            rollout_id = rollout.request.id
            if all or rollout_id in said or (prefix is not None and rollout_id.startswith(prefix)):
                said[rollout_id] = rollout.cancel()
        return said

    def health(self) -> dict[str, Any]:
        """The limit, and how many rollouts wait and run."""
        capacity = self.capacity()
        return {
            "status": "ok",
            "concurrency": {
                "max_concurrent": capacity.max,
                "queued": capacity.queued,
                "running": capacity.running,
            },
        }

    async def _run(self, rollout: _Rollout) -> None:
        request, answers = rollout.request, rollout.answers
        await rollout.interruptible(RolloutStatus.QUEUED, lambda: self._take_slot(rollout))
        step = _Step.of(request, queued_sec=rollout.age_sec)
        result = await rollout.interruptible(RolloutStatus.RUNNING, lambda: self._workflow(step))
        await answers.workflow(result)
        if answers.on_grader is None:
            return
        if self._program.grader is None or not result.succeeded or not request.is_gradable:
            await answers.grader(_ungraded())
            return
        graded = await rollout.interruptible(
            RolloutStatus.GRADING, lambda: self._grader(step, result)
        )
        await answers.grader(graded)

    async def _take_slot(self, rollout: _Rollout) -> None:
        await self._slots.take()
        rollout.has_slot = True

    async def _workflow(self, step: _Step) -> ExecutionResult:
        limit_sec = step.request.agent_timeout_sec
        work = execution.run_workflow(
            self._program,
            step.request,
            context=step.context,
            artifacts_dir=step.artifacts_dir,
            variables=step.variables,
        )
        if not self._enforce_timeouts or limit_sec is None:
            return await work
        return await _within(work, limit_sec, phase="workflow", queued_sec=step.queued_sec)

    async def _grader(self, step: _Step, result: ExecutionResult) -> ExecutionResult:
        limit_sec = step.request.grader_timeout_sec
        work = execution.run_grader(
            self._program,
            step.request,
            result,
            context=step.context,
            artifacts_dir=step.artifacts_dir,
            variables=step.variables,
        )
        if not self._enforce_timeouts or limit_sec is None:
            return await work
        graded = await _within(work, limit_sec, phase="grader")
        return graded.model_copy(update={"sample": graded.sample or result.sample})


class _Step(NamedTuple):
    """What the workflow and the grader of one rollout share."""

    request: ExecutionRequest
    context: RolloutContext
    artifacts_dir: Path | None
    variables: Context
    queued_sec: float

    @classmethod
    def of(cls, request: ExecutionRequest, *, queued_sec: float = 0.0) -> _Step:
        ambient = get_rollout_context()
        if ambient is None:
            context = RolloutContext(rollout_id=request.id)
        else:
            context = ambient.for_rollout(request.id)
        return cls(
            request,
            context,
            make_artifacts_dir(request.id, context=context),
            copy_context(),
            queued_sec,
        )


def _ungraded() -> ExecutionResult:
    return ExecutionResult(status=RolloutStatus.FAILURE, phase="grader")


async def _within(
    work: Coroutine[Any, Any, ExecutionResult],
    limit_sec: float,
    *,
    phase: Phase,
    queued_sec: float = 0.0,
) -> ExecutionResult:
    """Run to the deadline; past it the result is a timeout, a late success of blocking code too."""
    left_sec = limit_sec - queued_sec
    if left_sec <= 0:
        work.close()
        return _timed_out(limit_sec, phase=phase, queued_sec=queued_sec)
    clock = asyncio.get_running_loop().time
    deadline = clock() + left_sec
    try:
        async with asyncio.timeout_at(deadline):
            result = await work
    except TimeoutError:  # the deadline's own: what user code raises has become a result
        return _timed_out(limit_sec, phase=phase, queued_sec=queued_sec)
    if result.succeeded and clock() > deadline:
        return _timed_out(limit_sec, phase=phase, queued_sec=queued_sec)
    return result


def _timed_out(limit_sec: float, *, phase: Phase, queued_sec: float) -> ExecutionResult:
    queued = f" ({queued_sec:.1f}s of it spent queued)" if queued_sec >= 0.1 else ""
    return ExecutionResult(
        status=RolloutStatus.FAILURE,
        err_message=f"{phase} exceeded its {limit_sec:g}s deadline{queued}",
        err_category=RolloutErrorCategory.TIMEOUT,
        phase=phase,
    )


@dataclass(slots=True)
class _Answers:
    """The answers of one rollout, each given at most once."""

    on_workflow: ResultCallback
    on_grader: ResultCallback | None
    workflow_given: bool = False
    grader_given: bool = False

    @property
    def complete(self) -> bool:
        """Whether nothing is left to be said."""
        return self.workflow_given and (self.grader_given or self.on_grader is None)

    async def workflow(self, result: ExecutionResult) -> None:
        if not self.workflow_given:
            self.workflow_given = True
            await self.on_workflow(result)

    async def grader(self, result: ExecutionResult) -> None:
        if self.on_grader is not None and not self.grader_given:
            self.grader_given = True
            await self.on_grader(result)

    async def cancelled(self) -> None:
        """Say what is still owed to the caller of a cancelled rollout."""
        try:
            await self.workflow(
                ExecutionResult(
                    status=RolloutStatus.CANCELLED, err_message="cancelled", phase="workflow"
                )
            )
        finally:  # an answer that was interrupted does not cost the other
            await self.grader(_ungraded())


def _current_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None, "execute() is a coroutine, and coroutines run in tasks"
    return task


@dataclass(slots=True, eq=False)
class _Rollout:
    """One rollout in flight: where it is, and the way to interrupt it."""

    request: ExecutionRequest
    answers: _Answers
    task: asyncio.Task[Any] = field(default_factory=_current_task)
    status: RolloutStatus = RolloutStatus.QUEUED
    has_slot: bool = False
    is_stopping: bool = False
    _open: bool = False
    _interrupted: bool = False
    _cancels_before: int = field(init=False)
    _arrived: float = field(init=False)
    _changed: float = field(init=False)

    def __post_init__(self) -> None:
        self._cancels_before = self.task.cancelling()
        self._arrived = self._changed = self.task.get_loop().time()

    @property
    def age_sec(self) -> float:
        """Seconds since the rollout came."""
        return self.task.get_loop().time() - self._arrived

    @property
    def state(self) -> RolloutState:
        """Where the rollout is, and since when."""
        age_sec = self.task.get_loop().time() - self._changed
        return RolloutState(self.status, stopping=self.is_stopping, age_sec=age_sec)

    @property
    def cancelled_from_outside(self) -> bool:
        """Whether somebody cancelled the task itself and waits for that to show."""
        return self.task.cancelling() > self._cancels_before

    @property
    def is_cancelled(self) -> bool:
        """Whether somebody asked for the end of this rollout."""
        return self.is_stopping or self.cancelled_from_outside

    def cancel(self) -> CancelDisposition:
        """Interrupt the rollout where it can be: while it waits or while user code runs."""
        self.is_stopping = True
        if self._open and not self._interrupted:
            self._interrupted = True
            self.task.cancel()
        if self.status is RolloutStatus.QUEUED:
            return CancelDisposition.CANCELLED_QUEUED
        return CancelDisposition.CANCELLED_RUNNING

    async def interruptible(self, status: RolloutStatus, work: Callable[[], Awaitable[T]]) -> T:
        """Do a step that `cancel` may interrupt; answers are given outside of such steps."""
        if self.is_stopping:
            raise asyncio.CancelledError
        self.status = status
        self._changed = self.task.get_loop().time()
        self._open = True
        try:
            return await work()
        finally:
            self._open = False

    async def settle(self) -> None:
        """Take back our own cancellation of the task, so that it can give its last answers."""
        if self._interrupted:
            self.task.uncancel()
        # One that user code asked for before it ever waited is still due, and would strike there.
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)


@dataclass(slots=True)
class _Slots:
    """So many at once, first come first served; not bound to one event loop."""

    limit: int | None
    taken: int = 0
    waiting: OrderedDict[asyncio.Future[None], None] = field(default_factory=OrderedDict)

    async def take(self) -> None:
        if self.limit is None or self.taken < self.limit:
            self.taken += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting[turn] = None
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release()  # the slot was handed over in the same moment
            self.waiting.pop(turn, None)
            raise

    def release(self) -> None:
        """Hand the slot to the next in line, or free it."""
        while self.waiting:
            turn, _ = self.waiting.popitem(last=False)
            if not turn.done():  # done: cancelled, and not yet told
                turn.set_result(None)
                return
        self.taken -= 1
