"""PlainBackend: the contract once more, written apart from LocalBackend, to be broken in one place.

User code runs in a task of its own, unlike in LocalBackend: that both pass the suite shows that it
asks for the promises and not for one way of keeping them. Each method is a seam for a mutant.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import logging
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from osmosis_ai.rollout.agent_workflow import AgentWorkflowOutput
from osmosis_ai.rollout.artifacts import make_artifacts_dir
from osmosis_ai.rollout.backend.base import (
    CancelDisposition,
    Capacity,
    ExecutionBackend,
    ResultCallback,
    RolloutState,
)
from osmosis_ai.rollout.context import (
    AgentWorkflowContext,
    GraderContext,
    RolloutContext,
    get_rollout_context,
)
from osmosis_ai.rollout.safe_json import safe_text
from osmosis_ai.rollout.types import (
    ExecutionRequest,
    ExecutionResult,
    RolloutErrorCategory,
    RolloutSample,
    RolloutStatus,
)

logger = logging.getLogger(__name__)


class Stopped(Exception):
    """The rollout was cancelled, and the user code of this step has ended."""


@dataclass(eq=False)
class Rollout:
    """One rollout in flight."""

    request: ExecutionRequest
    arrived: float
    status: RolloutStatus = RolloutStatus.QUEUED
    stopping: bool = False
    has_slot: bool = False
    step: asyncio.Task[Any] | None = None
    answered: int = 0


class PlainBackend(ExecutionBackend):
    """Every clause kept, as plainly as it can be written."""

    def __init__(
        self,
        *,
        workflow: Any,
        workflow_config: Any = None,
        grader: Any = None,
        grader_config: Any = None,
        enforce_timeouts: bool = False,
    ) -> None:
        self.workflow, self.workflow_config = workflow, workflow_config
        self.grader, self.grader_config = grader, grader_config
        self.enforce_timeouts = enforce_timeouts
        self.check()
        self.limit = self.find_limit()
        self.taken = 0
        self.live: list[Rollout] = []
        self.slot_freed = asyncio.Condition()

    # Building

    def check(self) -> None:
        self.check_is_async(self.workflow, "run")
        if self.grader is not None:
            self.check_is_async(self.grader, "grade")
        self.check_config()

    def check_is_async(self, target: Any, method: str) -> None:
        if not inspect.iscoroutinefunction(getattr(target, method)):
            raise ValueError(f"{target.__name__}.{method} is synchronous: write async def")

    def check_config(self) -> None:
        try:
            copy.deepcopy(self.workflow_config)
        except Exception as exc:  # whatever a value in the config raises when it is copied
            raise ValueError("workflow_config cannot be copied") from exc

    def find_limit(self) -> int | None:
        return (
            4 if self.workflow_config is None else self.workflow_config.concurrency.max_concurrent
        )

    # One rollout

    async def execute(
        self,
        request: ExecutionRequest,
        on_workflow_complete: ResultCallback,
        on_grader_complete: ResultCallback | None = None,
    ) -> None:
        rollout = Rollout(request, asyncio.get_running_loop().time())
        self.live.append(rollout)
        try:
            await self.run(rollout, on_workflow_complete, on_grader_complete)
        except (Stopped, asyncio.CancelledError) as exc:
            await self.answer_cancelled(rollout, on_workflow_complete, on_grader_complete)
            if isinstance(exc, asyncio.CancelledError):
                raise
        finally:
            self.live.remove(rollout)
            await self.free_slot(rollout)

    async def run(
        self, rollout: Rollout, on_workflow: ResultCallback, on_grader: ResultCallback | None
    ) -> None:
        await self.do_step(rollout, RolloutStatus.QUEUED, self.take_slot(rollout))
        result = await self.do_step(rollout, RolloutStatus.RUNNING, self.run_workflow(rollout))
        await self.answer(rollout, on_workflow, result)
        if on_grader is None:
            return
        if not self.is_gradable(rollout.request, result):
            await self.answer(rollout, on_grader, self.bare_failure())
            return
        work = self.run_grader(rollout, result)
        graded = await self.do_step(rollout, RolloutStatus.GRADING, work)
        await self.answer(rollout, on_grader, graded)

    async def do_step(
        self, rollout: Rollout, status: RolloutStatus, work: Coroutine[Any, Any, Any]
    ) -> Any:
        """Run a step that a cancel may interrupt, and wait until its code has really ended."""
        if rollout.stopping:
            work.close()
            raise Stopped
        rollout.status = status
        rollout.step = step = asyncio.create_task(work)
        try:
            await asyncio.wait([step])
        except asyncio.CancelledError:
            rollout.stopping = True
            step.cancel()
            await asyncio.wait([step])
            raise
        finally:
            rollout.step = None
        if self.was_stopped(rollout, step):
            if not step.cancelled():
                step.exception()  # looked at, so that nobody complains that nobody did
            raise Stopped
        return step.result()

    def was_stopped(self, rollout: Rollout, step: asyncio.Task[Any]) -> bool:
        return rollout.stopping

    async def answer(
        self, rollout: Rollout, callback: ResultCallback, result: ExecutionResult
    ) -> None:
        rollout.answered += 1
        await callback(result)

    async def answer_cancelled(
        self, rollout: Rollout, on_workflow: ResultCallback, on_grader: ResultCallback | None
    ) -> None:
        if rollout.answered < 1:
            await self.answer(rollout, on_workflow, self.cancelled_result())
        if rollout.answered < 2 and on_grader is not None:
            await self.answer(rollout, on_grader, self.bare_failure())

    def cancelled_result(self) -> ExecutionResult:
        return ExecutionResult(status=RolloutStatus.CANCELLED, err_message="cancelled")

    def bare_failure(self) -> ExecutionResult:
        return ExecutionResult(status=RolloutStatus.FAILURE)

    def is_gradable(self, request: ExecutionRequest, result: ExecutionResult) -> bool:
        has_reference = request.label is not None or request.metadata is not None
        return self.grader is not None and result.succeeded and has_reference

    # Slots

    async def take_slot(self, rollout: Rollout) -> None:
        async with self.slot_freed:
            await self.slot_freed.wait_for(lambda: self.limit is None or self.taken < self.limit)
            self.taken += 1
            rollout.has_slot = True

    async def free_slot(self, rollout: Rollout) -> None:
        if rollout.has_slot:
            rollout.has_slot = False
            async with self.slot_freed:
                self.taken -= 1
                self.slot_freed.notify_all()

    # User code

    async def run_workflow(self, rollout: Rollout) -> ExecutionResult:
        request = rollout.request
        spent = asyncio.get_running_loop().time() - rollout.arrived
        limit = self.time_left(request.agent_timeout_sec, spent)
        async with self.ambient(request) as context:
            work = self.call_workflow(request, context)
            return await self.guarded(work, request, limit=limit, sample=None)

    async def call_workflow(
        self, request: ExecutionRequest, context: RolloutContext
    ) -> ExecutionResult:
        config = self.config_for_execution()
        given = AgentWorkflowContext(
            prompt=self.own(request.prompt),
            config=config,
            metadata=self.own(request.metadata),
            artifacts_dir=self.artifacts_dir(request, context),
        )
        returned = await self.workflow(self.config_for_constructor(config)).run(given)
        sample = await self.sample_from(returned, request, context)
        return ExecutionResult(status=RolloutStatus.SUCCESS, sample=sample)

    async def run_grader(self, rollout: Rollout, result: ExecutionResult) -> ExecutionResult:
        request = rollout.request
        limit = self.grader_time_left(rollout)
        async with self.ambient_of_grader(request) as context:
            work = self.call_grader(request, result, context)
            return await self.guarded(work, request, limit=limit, sample=result.sample)

    async def call_grader(
        self, request: ExecutionRequest, result: ExecutionResult, context: RolloutContext
    ) -> ExecutionResult:
        given = GraderContext(
            label=request.label,
            sample=result.sample,
            project_path=context.project_path,
            metadata=self.own(request.metadata),
            artifacts_dir=self.artifacts_dir_of_grader(request, context),
        )
        returned = await self.build_grader().grade(given)
        self.check_graded(given.sample, returned)
        return ExecutionResult(status=RolloutStatus.SUCCESS, sample=given.sample)

    async def guarded(
        self,
        work: Coroutine[Any, Any, ExecutionResult],
        request: ExecutionRequest,
        *,
        limit: float | None,
        sample: RolloutSample | None,
    ) -> ExecutionResult:
        """What the user's code gives, in time; what it raises becomes the result."""
        clock = asyncio.get_running_loop().time
        end = None if limit is None else clock() + limit
        deadline = asyncio.timeout_at(end)
        try:
            async with deadline:
                result = await self.caught(work, request, sample)
        except TimeoutError:  # the deadline's own: the user's has become a result
            return self.timed_out(sample)
        late = end is not None and clock() > end and self.late_is_timeout()
        return self.timed_out(sample) if late else result

    async def caught(
        self,
        work: Coroutine[Any, Any, ExecutionResult],
        request: ExecutionRequest,
        sample: RolloutSample | None,
    ) -> ExecutionResult:
        try:
            return await work
        except asyncio.CancelledError as exc:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            return self.failure(exc, request, sample)
        except (Exception, SystemExit) as exc:  # the user's code may raise anything
            return self.failure(exc, request, sample)

    def failure(
        self, error: BaseException, request: ExecutionRequest, sample: RolloutSample | None
    ) -> ExecutionResult:
        self.log(error, request)
        return ExecutionResult(
            status=RolloutStatus.FAILURE,
            sample=sample,
            err_message=self.text_of(error),
            err_category=self.category_of(error),
        )

    def timed_out(self, sample: RolloutSample | None) -> ExecutionResult:
        return ExecutionResult(
            status=RolloutStatus.FAILURE, sample=sample, err_category=RolloutErrorCategory.TIMEOUT
        )

    def late_is_timeout(self) -> bool:
        return True

    def time_left(self, timeout_sec: float | None, spent_sec: float) -> float | None:
        if not self.enforce_timeouts or timeout_sec is None:
            return None
        return max(0.0, timeout_sec - spent_sec)

    def grader_time_left(self, rollout: Rollout) -> float | None:
        return self.time_left(rollout.request.grader_timeout_sec, 0.0)

    def log(self, error: BaseException, request: ExecutionRequest) -> None:
        logger.error("rollout %s failed", request.id, exc_info=error)

    def text_of(self, error: BaseException) -> str:
        try:
            return safe_text(str(error)) or type(error).__name__
        except Exception:  # the user's __str__ may raise anything
            return type(error).__name__

    def category_of(self, error: BaseException) -> RolloutErrorCategory:
        if isinstance(error, TimeoutError):
            return RolloutErrorCategory.TIMEOUT
        if isinstance(error, ValueError | TypeError | AssertionError):
            return RolloutErrorCategory.VALIDATION_ERROR
        return RolloutErrorCategory.AGENT_ERROR

    # What user code is given, and what it leaves

    def own(self, value: Any) -> Any:
        return copy.deepcopy(value)

    def config_for_execution(self) -> Any:
        return copy.deepcopy(self.workflow_config)

    def config_for_constructor(self, config: Any) -> Any:
        return config

    def build_grader(self) -> Any:
        return self.grader(self.grader_config)

    def artifacts_dir(self, request: ExecutionRequest, context: RolloutContext) -> Path | None:
        return make_artifacts_dir(request.id, context=context)

    def artifacts_dir_of_grader(
        self, request: ExecutionRequest, context: RolloutContext
    ) -> Path | None:
        return self.artifacts_dir(request, context)

    @asynccontextmanager
    async def ambient(self, request: ExecutionRequest) -> AsyncIterator[RolloutContext]:
        with self.context_for(request) as context:
            yield context

    @asynccontextmanager
    async def ambient_of_grader(self, request: ExecutionRequest) -> AsyncIterator[RolloutContext]:
        async with self.ambient(request) as context:
            yield context

    def context_for(self, request: ExecutionRequest) -> RolloutContext:
        return (get_rollout_context() or RolloutContext()).for_rollout(request.id)

    async def sample_from(
        self, returned: Any, request: ExecutionRequest, context: RolloutContext
    ) -> RolloutSample | None:
        if returned is None:
            return await context.get_sample()
        if isinstance(returned, list):
            returned = AgentWorkflowOutput(messages=returned)
        if not isinstance(returned, AgentWorkflowOutput):
            raise TypeError(f"run() returned {returned!r}")
        output = AgentWorkflowOutput.model_validate(returned)
        if output.messages is None:
            return None
        return RolloutSample(
            messages=output.messages, label=request.label, metrics=dict(output.metrics)
        )

    def check_graded(self, sample: RolloutSample | None, returned: Any) -> None:
        if sample is None:
            raise ValueError("No sample to grade")
        if sample.reward is None and not sample.remove_sample:
            said = "" if returned is None else f": call ctx.set_reward({returned!r})"
            raise ValueError(f"Sample has no reward after grading{said}")

    # Control

    def capacity(self) -> Capacity | None:
        queued = sum(not rollout.has_slot for rollout in self.live)
        stopping = sum(rollout.stopping for rollout in self.live)
        return Capacity(self.limit, self.taken, queued, stopping)

    def rollout_status(self, rollout_id: str) -> RolloutState | None:
        for rollout in self.live:
            if rollout.request.id == rollout_id:
                return RolloutState(rollout.status, rollout.stopping)
        return None

    async def cancel_rollouts(
        self, *, ids: Iterable[str] | None = None, prefix: str | None = None, all: bool = False
    ) -> dict[str, CancelDisposition]:
        self.check_selectors(ids, prefix, all)
        said = dict.fromkeys(ids or (), CancelDisposition.NOT_FOUND)
        for rollout in self.live:
            name = rollout.request.id
            if all or name in said or self.has_prefix(name, prefix):
                said[name] = self.stop(rollout)
        return said

    def check_selectors(self, ids: Iterable[str] | None, prefix: str | None, all: bool) -> None:
        if [ids is not None, prefix is not None, all].count(True) != 1:
            raise ValueError("pass exactly one selector: ids, prefix, or all")

    def has_prefix(self, name: str, prefix: str | None) -> bool:
        return prefix is not None and name.startswith(prefix)

    def stop(self, rollout: Rollout) -> CancelDisposition:
        if not rollout.stopping:
            rollout.stopping = True
            if rollout.step is not None:
                rollout.step.cancel()
        if rollout.status is RolloutStatus.QUEUED:
            return CancelDisposition.CANCELLED_QUEUED
        return CancelDisposition.CANCELLED_RUNNING

    def health(self) -> dict[str, Any]:
        queued = sum(not rollout.has_slot for rollout in self.live)
        limits = {"max_concurrent": self.limit, "queued": queued, "running": self.taken}
        return {"status": "ok", "concurrency": limits}
