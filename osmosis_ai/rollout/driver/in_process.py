"""InProcessDriver: rollouts on a backend in this process, one breakpoint away."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from osmosis_ai.rollout.backend.base import CancelDisposition, ExecutionBackend
from osmosis_ai.rollout.context import RolloutContext
from osmosis_ai.rollout.controller.listener import Controller
from osmosis_ai.rollout.driver.base import Deadline, RolloutDriver, deadline_sec
from osmosis_ai.rollout.flight.flight import STOP_PATIENCE_SEC, Flight, Flights, OnSample
from osmosis_ai.rollout.flight.outcome import CANCELLED, without_result
from osmosis_ai.rollout.trajectory.save import save_trajectory, snapshot_messages
from osmosis_ai.rollout.types import ExecutionOutcome, ExecutionResult, RolloutStatus


class InProcessDriver(Flights, RolloutDriver):
    """Gives each rollout its model endpoint and runs it on `backend`, in the caller's loop.

    Rollout folders go to `artifact_root`, each with its trajectory.
    """

    def __init__(
        self,
        backend: ExecutionBackend,
        *,
        controller: Controller,
        project_path: Path | None = None,
        artifact_root: Path | None = None,
        on_sample: OnSample | None = None,
        deadline: Deadline = deadline_sec,
        stop_patience_sec: float = STOP_PATIENCE_SEC,
    ) -> None:
        capacity = backend.capacity()
        super().__init__(
            controller,
            limit=None if capacity is None else capacity.max,
            deadline=deadline,
            stop_patience_sec=stop_patience_sec,
            artifact_root=artifact_root,
        )
        self._backend = backend
        self._project_path = None if project_path is None else str(project_path)
        self._on_sample = on_sample

    @property
    def description(self) -> str:
        """Which backend, and that it is here."""
        return f"in-process, {type(self._backend).__name__}"

    async def _execute(self, flight: Flight) -> None:
        request, endpoint = flight.request, flight.endpoint
        context = RolloutContext(
            chat_completions_url=endpoint.chat_completions_url,
            api_key=endpoint.api_key,
            rollout_id=request.id,
            project_path=self._project_path,
            artifact_root=self._artifact_root,
        )
        answers = _Answers(flight, self._backend, self._on_sample)
        flight.start_clock()
        with context:
            await self._backend.execute(request, answers.on_workflow, answers.on_grader)

    async def _cancel(self, flight: Flight) -> bool:
        rollout_id = flight.request.id
        said = await self._backend.cancel_rollouts(ids=[rollout_id])
        return said.get(rollout_id, _NOT_FOUND) is not _NOT_FOUND

    async def _archive(self, flight: Flight, outcome: ExecutionOutcome) -> None:
        request = flight.request
        await save_trajectory(
            rollout_id=request.id,
            result=outcome.result_to_save,
            request_label=request.label,
            request_metadata=request.metadata,
            report=flight.report(),
            artifact_root=self._artifact_root,
            diagnostics=outcome.result.extra_fields or outcome.workflow.extra_fields,
            messages=flight.messages,
        )


@asynccontextmanager
async def open_in_process_driver(
    backend: ExecutionBackend,
    *,
    controller: Controller,
    project_path: Path,
    artifact_root: Path,
    on_sample: OnSample | None = None,
    deadline: Deadline = deadline_sec,
) -> AsyncIterator[InProcessDriver]:
    """The driver of a backend, which is shut down at the end of the block."""
    driver = InProcessDriver(
        backend,
        controller=controller,
        project_path=project_path,
        artifact_root=artifact_root,
        on_sample=on_sample,
        deadline=deadline,
    )
    try:
        yield driver
    finally:
        await driver.close()
        await backend.shutdown()


_NOT_FOUND = CancelDisposition.NOT_FOUND


@dataclass(frozen=True, slots=True)
class _Answers:
    """Takes a backend's answers, those that come before the deadline."""

    flight: Flight
    backend: ExecutionBackend
    on_sample: OnSample | None

    async def on_workflow(self, result: ExecutionResult) -> None:
        request = self.flight.request
        if self.flight.endpoint.is_expired:
            # The driver's own cancel may wait for the loop that this rollout has blocked.
            await self.backend.cancel_rollouts(ids=[request.id])
            return
        if result.status is RolloutStatus.CANCELLED:
            result = result.model_copy(update={"no_result": CANCELLED})
        self.flight.take_workflow(result)
        self.flight.endpoint.note_progress()
        self.flight.messages = snapshot_messages(result.sample)
        if self.on_sample is not None:
            self.on_sample(request, result.sample)

    async def on_grader(self, result: ExecutionResult) -> None:
        if self.flight.endpoint.is_expired:
            return
        workflow = self.flight.workflow
        if workflow is not None and workflow.succeeded and self._is_cancelled(result):
            result = without_result("grader", CANCELLED, sample=workflow.sample)
        self.flight.grader = result

    def _is_cancelled(self, result: ExecutionResult) -> bool:
        if result.succeeded:
            return False
        state = self.backend.rollout_status(self.flight.request.id)
        return state is not None and state.stopping
