"""Flight: one rollout under way in a task of its own, from its slot to its outcome."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from bdb import BdbQuit
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeAlias

from osmosis_ai.errors import BackendError, BudgetError, OsmosisError
from osmosis_ai.rollout.controller.endpoint import RolloutEndpoint
from osmosis_ai.rollout.controller.listener import Controller
from osmosis_ai.rollout.controller.usage import AnsweredCall, make_report
from osmosis_ai.rollout.flight.item import Deadline, RolloutItem
from osmosis_ai.rollout.flight.outcome import Ending, over_budget, settle, ungraded
from osmosis_ai.rollout.flight.slots import Slots
from osmosis_ai.rollout.raised import summarize_error
from osmosis_ai.rollout.safe_json import SafeJson
from osmosis_ai.rollout.trajectory.report import TrajectoryReport
from osmosis_ai.rollout.trajectory.tokens import save_tokens
from osmosis_ai.rollout.types import (
    ExecutionOutcome,
    ExecutionRequest,
    ExecutionResult,
    RolloutSample,
    RolloutTiming,
)

logger = logging.getLogger(__name__)

OnSample: TypeAlias = Callable[[ExecutionRequest, RolloutSample | None], None]
"""Told of a rollout's sample; where the grader runs in this process, before it does."""

STOP_PATIENCE_SEC = 30.0
"""How long a rollout that was told to stop is waited for."""

NO_ITEM = RolloutItem(row=0, attempt=0, seed=0)


class Flights(ABC):
    """Runs each rollout in a task, under a slot and a deadline.

    A rollout past its deadline is told to stop, and its outcome is a timeout; one that does not
    stop keeps its slot. Subclasses say what the task does, and how a rollout is told to stop.
    """

    def __init__(
        self,
        controller: Controller,
        *,
        limit: int | None,
        deadline: Deadline,
        stop_patience_sec: float = STOP_PATIENCE_SEC,
        artifact_root: Path | None = None,
    ) -> None:
        self._controller = controller
        self._artifact_root = artifact_root
        self._limit = limit
        self._deadline = deadline
        self._stop_patience_sec = stop_patience_sec
        self._slots = Slots(limit)
        self._flights: dict[asyncio.Task[None], Flight] = {}
        self._down: OsmosisError | None = None

    @abstractmethod
    async def _execute(self, flight: Flight) -> None:
        """Start the flight's clock and bring its answers; return when nothing goes on any more."""

    @abstractmethod
    async def _cancel(self, flight: Flight) -> bool:
        """Tell a rollout to stop; False where nobody knows it, so that nothing will end it."""

    async def _archive(self, flight: Flight, outcome: ExecutionOutcome) -> None:
        """Keep what is to be kept of a rollout."""

    @property
    def max_in_flight(self) -> int | None:
        """As many as there are slots."""
        return self._limit

    async def run(
        self, request: ExecutionRequest, *, item: RolloutItem | None = None
    ) -> ExecutionOutcome:
        """Run one rollout, as soon as there is room for it."""
        flight = await self._start(request, item or NO_ITEM)
        try:
            await flight.wait()
            await self._stop(flight)
        except asyncio.CancelledError:
            await self._stop(flight)
            raise
        if (limit := flight.endpoint.run_limit_reached) is not None:
            raise BudgetError(
                f"the run's budget is used up: evaluation.{limit}. What is left stays pending; "
                "with a larger limit the same command goes on."
            )
        if self._down is not None and flight.grader is None:
            raise BackendError(str(self._down)) from self._down
        outcome = flight.outcome()
        self._keep_tokens(flight)
        await self._archive(flight, outcome)
        return outcome

    async def probe(self) -> None:
        """Ask the model that the rollouts call."""
        await self._controller.probe()

    def _keep_tokens(self, flight: Flight) -> None:
        """Write the tokens of a rollout's calls beside its trajectory, where the model gave any."""
        calls = flight.endpoint.answered_calls()
        tokens = [call.receipt.tokens for call in calls if call.receipt.tokens is not None]
        if not tokens or self._artifact_root is None:
            return
        rollout_id = flight.request.id
        try:
            save_tokens(self._artifact_root / rollout_id, tokens)
        except OSError as error:
            logger.warning("rollout %s: its tokens are not kept: %s", rollout_id, error.strerror)

    async def close(self) -> None:
        """Cancel what did not stop when it was told to."""
        for task in self._flights:
            task.cancel()
        if self._flights:
            await asyncio.wait(self._flights, timeout=self._stop_patience_sec)

    def go_down(self, error: OsmosisError) -> None:
        """End all flights, and start none any more: no further rollout can succeed."""
        self._down = self._down or error
        self._slots.shut(self._down)
        for task in self._flights:
            task.cancel()

    async def _start(self, request: ExecutionRequest, item: RolloutItem) -> Flight:
        asked_at = asyncio.get_running_loop().time()
        await self._slots.take()
        try:
            endpoint = self._controller.open_rollout(
                request.id, row=item.row, attempt=item.attempt, seed=item.seed
            )
        except ValueError:
            self._slots.release()
            raise
        flight = Flight(request, item, endpoint, self._deadline(request), asked_at)
        flight.take_off(asyncio.create_task(self._fly(flight)))
        self._flights[flight.task] = flight
        flight.task.add_done_callback(self._land)
        return flight

    async def _fly(self, flight: Flight) -> None:
        with flight.endpoint:
            await self._execute(flight)

    def _land(self, task: asyncio.Task[None]) -> None:
        del self._flights[task]
        self._slots.release(task)
        if not task.cancelled():
            # Looked at, so that a flight nobody waits for any more is not reported as forgotten.
            task.exception()

    async def _stop(self, flight: Flight) -> None:
        """Tell a rollout that is still going on to stop, and wait until it has."""
        if flight.task.done():
            return
        if not await self._cancel(flight):
            flight.task.cancel()
        await asyncio.wait({flight.task}, timeout=self._stop_patience_sec)
        if not flight.task.done():
            flight.endpoint.stop_calls()
            self._slots.mark_stuck(flight.task)
            logger.error(
                "rollout %s was told to stop and goes on: its slot stays taken", flight.request.id
            )


class _Turn(NamedTuple):
    """A moment in a rollout, and what its model calls had come to by then."""

    at: float
    model_sec: float
    calls: list[AnsweredCall]


@dataclass(eq=False)
class Flight:
    """One rollout that goes on: its answers as they come, and its deadline."""

    request: ExecutionRequest
    item: RolloutItem
    endpoint: RolloutEndpoint
    limit_sec: float
    asked_at: float
    """When somebody wished for it, in the loop's time."""
    workflow: ExecutionResult | None = None
    grader: ExecutionResult | None = None
    messages: SafeJson | None = None
    """The conversation before it was graded, where this process is the one that archives it."""
    task: asyncio.Task[None] = field(init=False)
    _over: asyncio.Future[None] = field(init=False)
    _loop: asyncio.AbstractEventLoop = field(init=False)
    _started: float = field(init=False)
    _turn: _Turn | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._over = self._loop.create_future()
        self._started = self._loop.time()

    def take_off(self, task: asyncio.Task[None]) -> None:
        """Its task begins; the end of that is what `wait` waits for."""
        self.task = task
        task.add_done_callback(self._hear)

    def start_clock(self) -> None:
        """Execution begins: so does the time the rollout has."""
        self._started = self._loop.time()
        self.endpoint.set_deadline(self.limit_sec, self.ring)

    def ring(self) -> None:
        """The deadline has passed; said by the listener's thread."""
        try:
            self._loop.call_soon_threadsafe(self._hear)
        except RuntimeError:
            logger.debug("a deadline rang after its event loop was closed")

    def _hear(self, task: asyncio.Task[None] | None = None) -> None:
        if not self._over.done():
            self._over.set_result(None)

    async def wait(self) -> None:
        """Return when it has ended or its deadline rings, whichever is first."""
        await self._over

    def take_workflow(self, result: ExecutionResult) -> None:
        """The workflow's answer is here; what comes now is grading."""
        self.workflow = result
        self._turn = self._turn or self._now()

    def report(self) -> TrajectoryReport | None:
        """What an archive is told of the model calls of the workflow."""
        return make_report((self._turn or self._now()).calls)

    def _now(self) -> _Turn:
        return _Turn(self._loop.time(), self.endpoint.model_sec, self.endpoint.answered_calls())

    def _timing(self) -> RolloutTiming:
        end = self._now()
        turn = self._turn or end
        workflow_sec = turn.at - self._started
        was_graded = self.grader is not None and _succeeded(self.workflow)
        return RolloutTiming(
            waiting_sec=self._started - self.asked_at,
            model_sec=turn.model_sec,
            # Calls may go on where nobody waits for them any more.
            tools_sec=max(0.0, workflow_sec - turn.model_sec),
            grading_sec=end.at - turn.at if was_graded else None,
            call_sec=tuple(call.latency_sec for call in end.calls),
        )

    def outcome(self) -> ExecutionOutcome:
        """What came of it: the answers that came in time, or what their absence means.

        Raises BdbQuit where somebody has left a debugger: then nothing came of it.
        """
        ending = Ending(
            limit_sec=self.limit_sec, expired=self.endpoint.is_expired, problem=self._problem()
        )
        workflow, grader = settle(self.workflow, self.grader, ending)
        if (limit := self.endpoint.limit_reached) is not None:
            # Whatever it made of the refusal, and whether it was told to stop before it ended.
            workflow, grader = over_budget(limit, sample=workflow.sample), ungraded()
        return ExecutionOutcome(
            workflow=workflow,
            grader=grader,
            usage=self.endpoint.usage(),
            duration_sec=self._loop.time() - self._started,
            timing=self._timing(),
        )

    def _problem(self) -> str | None:
        """What was raised in the place of answers."""
        if not self.task.done() or self.task.cancelled():
            return None
        error = self.task.exception()
        if error is None:
            return None
        if isinstance(error, BdbQuit):
            raise error
        logger.error("rollout %s: the backend failed", self.request.id, exc_info=error)
        if isinstance(error, OsmosisError):
            return str(error)
        return f"the backend failed: {summarize_error(error)}"


def _succeeded(result: ExecutionResult | None) -> bool:
    return result is not None and result.succeeded
