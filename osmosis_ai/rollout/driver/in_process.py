"""InProcessDriver: rollouts on a backend in this process, one breakpoint away."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from osmosis_ai.rollout.backend.base import CancelDisposition, ExecutionBackend
from osmosis_ai.rollout.context import RolloutContext
from osmosis_ai.rollout.controller.endpoint import RolloutEndpoint
from osmosis_ai.rollout.controller.listener import Controller
from osmosis_ai.rollout.driver.base import Deadline, RolloutDriver, RolloutItem, deadline_sec
from osmosis_ai.rollout.driver.outcome import CANCELLED, Ending, settle, without_result
from osmosis_ai.rollout.driver.slots import Slots
from osmosis_ai.rollout.execution import error_text
from osmosis_ai.rollout.safe_json import SafeJson
from osmosis_ai.rollout.trajectory.save import save_trajectory, snapshot_messages
from osmosis_ai.rollout.types import (
    ExecutionOutcome,
    ExecutionRequest,
    ExecutionResult,
    RolloutSample,
    RolloutStatus,
)

logger = logging.getLogger(__name__)

OnSample: TypeAlias = Callable[[ExecutionRequest, RolloutSample | None], None]
"""Told of a rollout's sample when its workflow has returned and before it is graded."""

STOP_PATIENCE_SEC = 30.0
"""How long a rollout that was told to stop is waited for."""


class InProcessDriver(RolloutDriver):
    """Gives each rollout its model endpoint and runs it on `backend`, in the caller's loop.

    A rollout past its deadline is told to stop and its outcome is a timeout; one that does not
    stop keeps its slot. Rollout folders go to `artifact_root`, each with its trajectory.
    """

    def __init__(
        self,
        backend: ExecutionBackend,
        *,
        controller: Controller,
        project_path: Path | None = None,
        artifact_root: Path | None = None,
        on_sample: OnSample | None = None,
        stop_patience_sec: float = STOP_PATIENCE_SEC,
        deadline: Deadline = deadline_sec,
    ) -> None:
        capacity = backend.capacity()
        self._backend = backend
        self._controller = controller
        self._project_path = project_path
        self._artifact_root = artifact_root
        self._on_sample = on_sample
        self._stop_patience_sec = stop_patience_sec
        self._deadline = deadline
        self._max_in_flight = None if capacity is None else capacity.max
        self._slots = Slots(self._max_in_flight)
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def max_in_flight(self) -> int | None:
        """As many as the backend runs at once."""
        return self._max_in_flight

    @property
    def description(self) -> str:
        """Which backend, and that it is here."""
        return f"in-process, {type(self._backend).__name__}"

    async def run(
        self, request: ExecutionRequest, *, item: RolloutItem | None = None
    ) -> ExecutionOutcome:
        """Run one rollout, as soon as the backend has room for it."""
        await self._slots.take()
        try:
            rollout = self._start(request, item or RolloutItem(row=0, attempt=0, seed=0))
        except BaseException:  # whoever failed: a slot without a rollout would be lost
            self._slots.release()
            raise
        with rollout.endpoint:
            try:
                await rollout.wait()
                await self._stop(rollout)
            except asyncio.CancelledError:
                await self._stop(rollout)
                raise
            outcome = rollout.outcome()
        await self._save(rollout, outcome)
        return outcome

    async def close(self) -> None:
        """Cancel what did not stop when it was told to."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._stop_patience_sec)

    def _start(self, request: ExecutionRequest, item: RolloutItem) -> _Rollout:
        loop = asyncio.get_running_loop()
        rang: asyncio.Future[None] = loop.create_future()
        limit_sec = self._deadline(request)
        endpoint = self._controller.open_rollout(
            request.id,
            row=item.row,
            attempt=item.attempt,
            seed=item.seed,
            deadline_sec=limit_sec,
            on_deadline=lambda: _ring(loop, rang),
        )
        answers = _Answers(request, endpoint, self._backend, self._on_sample)
        task = loop.create_task(self._execute(request, answers))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(self._slots.release)
        return _Rollout(request, endpoint, answers, task, rang, limit_sec, started=loop.time())

    async def _execute(self, request: ExecutionRequest, answers: _Answers) -> None:
        context = RolloutContext(
            chat_completions_url=answers.endpoint.chat_completions_url,
            api_key=answers.endpoint.api_key,
            rollout_id=request.id,
            project_path=None if self._project_path is None else str(self._project_path),
            artifact_root=self._artifact_root,
        )
        with context:
            await self._backend.execute(request, answers.on_workflow, answers.on_grader)

    async def _stop(self, rollout: _Rollout) -> None:
        """Tell a rollout that is still going on to stop, and wait until it has."""
        if rollout.task.done():
            return
        said = await self._backend.cancel_rollouts(ids=[rollout.request.id])
        if said.get(rollout.request.id, _UNKNOWN) is _UNKNOWN:
            rollout.task.cancel()
        await asyncio.wait({rollout.task}, timeout=self._stop_patience_sec)
        if not rollout.task.done():
            self._slots.mark_stuck(rollout.task)
            logger.error(
                "rollout %s was told to stop and goes on: its slot stays taken", rollout.request.id
            )

    async def _save(self, rollout: _Rollout, outcome: ExecutionOutcome) -> None:
        request = rollout.request
        await save_trajectory(
            rollout_id=request.id,
            result=outcome.result_to_save,
            request_label=request.label,
            request_metadata=request.metadata,
            artifact_root=self._artifact_root,
            diagnostics=outcome.result.extra_fields or outcome.workflow.extra_fields,
            messages=rollout.answers.messages,
        )


_UNKNOWN = CancelDisposition.NOT_FOUND


@dataclass(slots=True)
class _Answers:
    """Takes a backend's answers, those that come before the deadline."""

    request: ExecutionRequest
    endpoint: RolloutEndpoint
    backend: ExecutionBackend
    on_sample: OnSample | None
    workflow: ExecutionResult | None = None
    grader: ExecutionResult | None = None
    messages: SafeJson | None = None

    async def on_workflow(self, result: ExecutionResult) -> None:
        if self.endpoint.is_expired:
            # The driver's own cancel may wait for the loop that this rollout has blocked.
            await self.backend.cancel_rollouts(ids=[self.request.id])
            return
        if result.status is RolloutStatus.CANCELLED:
            result = result.model_copy(update={"no_result": CANCELLED})
        self.workflow = result
        self.messages = snapshot_messages(result.sample)
        if self.on_sample is not None:
            self.on_sample(self.request, result.sample)

    async def on_grader(self, result: ExecutionResult) -> None:
        if self.endpoint.is_expired:
            return
        if not result.succeeded and self._was_cancelled_while_grading():
            sample = None if self.workflow is None else self.workflow.sample
            result = without_result("grader", CANCELLED, sample=sample)
        self.grader = result

    def _was_cancelled_while_grading(self) -> bool:
        state = self.backend.rollout_status(self.request.id)
        graded = self.workflow is not None and self.workflow.succeeded
        return graded and state is not None and state.stopping


@dataclass(frozen=True, slots=True)
class _Rollout:
    """One rollout that goes on in a task of its own."""

    request: ExecutionRequest
    endpoint: RolloutEndpoint
    answers: _Answers
    task: asyncio.Task[None]
    rang: asyncio.Future[None]
    limit_sec: float
    started: float

    async def wait(self) -> None:
        """Return when it has ended or its deadline rings, whichever is first."""
        await asyncio.wait({self.task, self.rang}, return_when=asyncio.FIRST_COMPLETED)

    def outcome(self) -> ExecutionOutcome:
        ending = Ending(
            limit_sec=self.limit_sec, expired=self.endpoint.is_expired, problem=self._problem()
        )
        workflow, grader = settle(self.answers.workflow, self.answers.grader, ending)
        return ExecutionOutcome(
            workflow=workflow,
            grader=grader,
            usage=self.endpoint.usage(),
            duration_sec=asyncio.get_running_loop().time() - self.started,
        )

    def _problem(self) -> str | None:
        """What the backend raised instead of giving its answers."""
        if not self.task.done() or self.task.cancelled():
            return None
        error = self.task.exception()
        if error is None:
            return None
        logger.error("rollout %s: the backend failed", self.request.id, exc_info=error)
        return f"the backend failed: {error_text(error)}"


def _ring(loop: asyncio.AbstractEventLoop, rang: asyncio.Future[None]) -> None:
    try:
        loop.call_soon_threadsafe(_set, rang)
    except RuntimeError:
        logger.debug("a deadline rang after its event loop was closed")


def _set(rang: asyncio.Future[None]) -> None:
    if not rang.done():
        rang.set_result(None)
