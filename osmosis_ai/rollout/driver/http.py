"""HttpDriver: rollouts on a rollout server that runs already, wherever it is."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from osmosis_ai.errors import BackendError, ProtocolError
from osmosis_ai.rollout.client.server_client import Reply, ServerClient, open_server_client
from osmosis_ai.rollout.controller.endpoint import Callbacks
from osmosis_ai.rollout.controller.listener import Controller
from osmosis_ai.rollout.controller.retry import RetryPolicy, retry_after_sec
from osmosis_ai.rollout.driver.base import Deadline, RolloutDriver, deadline_sec
from osmosis_ai.rollout.flight.flight import STOP_PATIENCE_SEC, Flight, Flights, OnSample
from osmosis_ai.rollout.flight.outcome import CANCELLED
from osmosis_ai.rollout.protocol import GraderCompleteRequest, RolloutCompleteRequest, WireSample
from osmosis_ai.rollout.safe_json import dump_json
from osmosis_ai.rollout.types import (
    ExecutionResult,
    GraderStatus,
    RolloutSample,
    RolloutStatus,
)

logger = logging.getLogger(__name__)

START_RETRIES = RetryPolicy(max_retries=4)
"""How often a server that does not answer is asked to start a rollout, before it counts as down."""

WATCH_SEC = 5.0
"""How often a server is asked whether it is there."""

MISSES = 3
"""After how many times without an answer a server counts as down."""

_BUSY = 429
_BUSY_PAUSE_SEC = 1.0
_BUSY_BOUNDS_SEC = (0.05, 60.0)
_REFUSES_THIS_ONE = frozenset({400, 409, 413, 422})


class HttpDriver(Flights, RolloutDriver):
    """Posts rollouts to a server and waits for its answers; made by `open_http_driver`.

    A server that takes no more now (429) is asked again. One that is gone, or knows no such key or
    URL, ends the run: BackendError.
    """

    def __init__(
        self,
        server: ServerClient,
        *,
        controller: Controller,
        limit: int | None,
        on_sample: OnSample | None = None,
        deadline: Deadline = deadline_sec,
        stop_patience_sec: float = STOP_PATIENCE_SEC,
        retry: RetryPolicy = START_RETRIES,
        kind: str = "http",
        artifact_root: Path | None = None,
    ) -> None:
        super().__init__(
            controller,
            limit=limit,
            deadline=deadline,
            stop_patience_sec=stop_patience_sec,
            artifact_root=artifact_root,
        )
        self._server = server
        self._on_sample = on_sample
        self._retry = retry
        self._kind = kind

    @property
    def description(self) -> str:
        """Which server."""
        return f"{self._kind}, {self._server.url}"

    async def watch(self, *, every_sec: float) -> None:
        """Ask the server now and then whether it is there; return when it is not."""
        misses = 0
        while misses < MISSES:
            await asyncio.sleep(every_sec)
            try:
                await self._server.health()
                misses = 0
            except BackendError as error:
                misses += 1
                logger.warning("%s (%d of %d)", error, misses, MISSES)
        self.go_down(BackendError(f"the rollout server at {self._server.url} is gone"))

    async def _execute(self, flight: Flight) -> None:
        callbacks = flight.endpoint.expect_callbacks()
        try:
            await self._dispatch(flight, _encode(flight, callbacks))
        except asyncio.CancelledError:
            # The server may have taken it in this very moment.
            await self._cancel(flight)
            raise
        flight.start_clock()
        completion = await callbacks.rendezvous.completion()
        if completion is not None and not flight.endpoint.is_expired:
            flight.take_workflow(_workflow_result(completion))
        grade = await callbacks.rendezvous.grade()
        if not flight.endpoint.is_expired:
            self._take_grade(flight, grade)

    def _take_grade(self, flight: Flight, grade: GraderCompleteRequest) -> None:
        graded = _grader_result(grade)
        if flight.workflow is None:
            # Its answer was lost on the way; that there is a sample says how it ended.
            if graded.sample is None:
                return
            flight.take_workflow(ExecutionResult(status=RolloutStatus.SUCCESS, phase="workflow"))
        assert flight.workflow is not None
        flight.workflow = flight.workflow.model_copy(update={"sample": graded.sample})
        flight.grader = graded
        if self._on_sample is not None:
            self._on_sample(flight.request, _before_grading(graded.sample))

    async def _cancel(self, flight: Flight) -> bool:
        rollout_id = flight.request.id
        try:
            return await self._server.cancel(rollout_id)
        except BackendError as error:
            logger.warning("rollout %s cannot be told to stop: %s", rollout_id, error)
            return False

    async def _dispatch(self, flight: Flight, body: bytes) -> None:
        """Bring a rollout to the server, as soon as it takes one more."""
        failures = 0
        while True:
            reply = await self._server.start_rollout(body)
            if reply.is_taken:
                return
            pause_sec = _busy_pause_sec(reply)
            if reply.status != _BUSY:
                failures += 1
                pause_sec = self._pause_sec(reply, failures, flight)
            await self._retry.sleep(pause_sec)

    def _pause_sec(self, reply: Reply, failures: int, flight: Flight) -> float:
        """Seconds before the next try; raises where none would help."""
        refusal = f"the rollout server at {self._server.url} {reply.problem}"
        if reply.status in _REFUSES_THIS_ONE:
            raise ProtocolError(refusal, status_code=reply.status)
        pause_sec = None
        if reply.may_pass:
            pause_sec = self._retry.pause_sec(failures, retry_after=reply.retry_after)
        if pause_sec is None:
            error = BackendError(refusal)
            self.go_down(error)
            raise error
        return pause_sec


@asynccontextmanager
async def open_http_driver(
    server_url: str,
    *,
    controller: Controller,
    api_key: str | None = None,
    on_sample: OnSample | None = None,
    deadline: Deadline = deadline_sec,
    stop_patience_sec: float = STOP_PATIENCE_SEC,
    retry: RetryPolicy = START_RETRIES,
    watch_sec: float = WATCH_SEC,
    kind: str = "http",
    artifact_root: Path | None = None,
) -> AsyncIterator[HttpDriver]:
    """The driver of a server that answers at `server_url`; raises BackendError where none does.

    `api_key` is what the server was given as its own. As many rollouts are in flight as the server
    says it runs at once. The tokens of their calls, where the model gives any, go to
    `artifact_root`, each rollout's to a folder of its own.
    """
    async with open_server_client(server_url, api_key=api_key) as server:
        driver = HttpDriver(
            server,
            controller=controller,
            limit=_limit(await server.health()),
            on_sample=on_sample,
            deadline=deadline,
            stop_patience_sec=stop_patience_sec,
            retry=retry,
            kind=kind,
            artifact_root=artifact_root,
        )
        watch = asyncio.create_task(driver.watch(every_sec=watch_sec))
        try:
            yield driver
        finally:
            watch.cancel()
            await driver.close()


def _limit(health: dict[str, object]) -> int | None:
    """How many rollouts the server runs at once, where it says so."""
    concurrency = health.get("concurrency")
    limit = concurrency.get("max_concurrent") if isinstance(concurrency, dict) else None
    return limit if isinstance(limit, int) and limit > 0 else None


def _encode(flight: Flight, callbacks: Callbacks) -> bytes:
    request, item = flight.request, flight.item
    return dump_json(
        {
            "rollout_id": request.id,
            "initial_messages": request.prompt,
            "label": request.label,
            "metadata": request.metadata,
            "agent_timeout_sec": request.agent_timeout_sec,
            "grader_timeout_sec": request.grader_timeout_sec,
            "chat_completions_url": flight.endpoint.chat_completions_url,
            "llm_api_key": flight.endpoint.api_key,
            "controller_api_key": callbacks.api_key,
            "completion_callback_url": callbacks.completion_url,
            "grader_callback_url": callbacks.grader_url,
            "extra_fields": {"row_index": item.row, "run_index": item.attempt},
        }
    ).data


def _busy_pause_sec(reply: Reply) -> float:
    asked = retry_after_sec(reply.retry_after, now=time.time())
    least, most = _BUSY_BOUNDS_SEC
    return min(most, max(least, _BUSY_PAUSE_SEC if asked is None else asked))


def _workflow_result(completion: RolloutCompleteRequest) -> ExecutionResult:
    cancelled = completion.status is RolloutStatus.CANCELLED
    return ExecutionResult(
        status=completion.status,
        err_message=completion.err_message,
        err_category=completion.err_category,
        phase=completion.phase or "workflow",
        no_result=completion.no_result or (CANCELLED if cancelled else None),
    )


def _grader_result(grade: GraderCompleteRequest) -> ExecutionResult:
    succeeded = grade.status is GraderStatus.SUCCESS
    return ExecutionResult(
        status=RolloutStatus.SUCCESS if succeeded else RolloutStatus.FAILURE,
        sample=None if grade.sample is None else _sample(grade.sample),
        err_message=grade.err_message,
        err_category=grade.err_category,
        phase=grade.phase or "grader",
        no_result=grade.no_result,
    )


def _before_grading(sample: RolloutSample | None) -> RolloutSample | None:
    """The sample without its grade, as far as the wire lets one tell them apart."""
    if sample is None:
        return None
    return sample.model_copy(update={"reward": None, "remove_sample": False})


def _sample(sample: WireSample) -> RolloutSample:
    return RolloutSample(
        messages=sample.messages,
        label=sample.label,
        reward=sample.reward,
        remove_sample=sample.remove_sample,
        metrics=sample.metrics,
        extra_fields=sample.extra_fields,
    )
