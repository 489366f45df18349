"""ServerFlights: rollouts on servers, from the server that takes one to its last answer."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

from osmosis_ai.errors import BackendError, ProtocolError
from osmosis_ai.rollout.client.answer import (
    Policy,
    before_grading,
    encode_order,
    grader_result,
    polled_results,
    workflow_result,
)
from osmosis_ai.rollout.client.fleet import Fleet, RolloutServer
from osmosis_ai.rollout.client.poll import PATIENT, Lease, RolloutLost, poll_result
from osmosis_ai.rollout.client.server_client import Reply
from osmosis_ai.rollout.controller.endpoint import Callbacks
from osmosis_ai.rollout.controller.listener import Controller
from osmosis_ai.rollout.controller.retry import RetryPolicy, retry_after_sec
from osmosis_ai.rollout.flight.flight import STOP_PATIENCE_SEC, Flight, Flights, OnSample
from osmosis_ai.rollout.flight.item import Deadline, deadline_sec
from osmosis_ai.rollout.flight.outcome import without_result
from osmosis_ai.rollout.protocol import GraderCompleteRequest
from osmosis_ai.rollout.types import ExecutionResult, RolloutStatus

logger = logging.getLogger(__name__)

START_RETRIES = RetryPolicy(max_retries=4)
"""How often a server that does not answer is asked to start a rollout, before it counts as down."""

WATCH_SEC = 5.0
"""How often a server is asked whether it is there."""

MISSES = 3
"""After how many times without an answer a server counts as down."""

ANSWER_PATIENCE_SEC = 30.0
"""How long answers are waited for that a server says it has given."""

POLICY_GONE = "the client that served its policy is gone"
"""Why there is no result of a rollout that an earlier client left under way."""

_ORDER_PATIENCE_SEC = 1.0
_BUSY = 429
_BUSY_PAUSE_SEC = 1.0
_BUSY_BOUNDS_SEC = (0.05, 60.0)
_REFUSES_THIS_ONE = frozenset({400, 409, 410, 413, 422})


class ServerFlights(Flights):
    """Sends each rollout to the server with the most room, and brings its answers.

    A server that takes no more now (429) is left alone as long as it says. With `resubmits` the
    rollouts of a lost server go to another one, else they have no result. With `finds_again` a
    rollout goes to the server that has it already. Where all servers are
    gone, rollouts wait `patience_sec` for one to come back; None ends the run at once: BackendError
    for this rollout and all later ones.
    """

    def __init__(
        self,
        fleet: Fleet,
        *,
        controller: Controller,
        policy: Policy | None = None,
        on_sample: OnSample | None = None,
        deadline: Deadline = deadline_sec,
        stop_patience_sec: float = STOP_PATIENCE_SEC,
        retry: RetryPolicy = START_RETRIES,
        resubmits: bool = False,
        finds_again: bool = False,
        patience_sec: float | None = None,
        answer_patience_sec: float = ANSWER_PATIENCE_SEC,
        artifact_root: Path | None = None,
    ) -> None:
        super().__init__(
            controller,
            limit=fleet.limit,
            deadline=deadline,
            stop_patience_sec=stop_patience_sec,
            artifact_root=artifact_root,
        )
        self.fleet = fleet
        self._policy = policy
        self._on_sample = on_sample
        self._retry = retry
        self._resubmits = resubmits
        self._finds_again = finds_again
        self._patience_sec = patience_sec
        self._answer_patience_sec = answer_patience_sec
        self._all_lost_at = asyncio.get_running_loop().time()
        self._change = asyncio.Event()

    async def watch(self, server: RolloutServer, *, every_sec: float) -> None:
        """Ask a server now and then how it is; return when no rollout will go there again."""
        misses = 0
        while not server.is_lost_for_good and self._down is None:
            await asyncio.sleep(every_sec)
            try:
                health = await server.link.health()
            except BackendError as error:
                misses += 1
                if misses <= MISSES:
                    logger.warning("%s (%d of %d)", error, misses, MISSES)
                if misses == MISSES:
                    self._lose(server, BackendError(f"the rollout server at {server.url} is gone"))
                continue
            may_have_forgotten = server.hear(health) or misses > 0
            misses = 0
            self._welcome(server)
            if may_have_forgotten:
                server.stir()

    async def _execute(self, flight: Flight) -> None:
        found = await self._find_again(flight) if self._finds_again else None
        while True:
            server, found = found or await self._find_server(), None
            try:
                with server.carrying(flight):
                    await self._run_on(server, flight)
                return
            except _Busy as busy:
                server.rest(busy.pause_sec)
                # A server alone is asked again after what it said, to the millisecond.
                rested = self.fleet.rested_in_sec if len(self.fleet.servers) > 1 else None
                await self._retry.sleep(busy.pause_sec if rested is None else rested)
            except RolloutLost as lost:
                if not self._resubmits or self._down is not None:
                    raise
                logger.warning("rollout %s is sent again: %s", flight.request.id, lost)
                # Nothing of it goes on, and another run's answers count from here on.
                flight.endpoint.clear_deadline()
                flight.workflow = None

    async def _find_again(self, flight: Flight) -> RolloutServer | None:
        """The server that has this rollout from an earlier client; None where none has."""
        servers = [server for server in self.fleet.servers if server.loss is None]
        if len(servers) == 1 and self._policy is not None:
            return servers[0]
        rollout_id = flight.request.id
        said = await asyncio.gather(*(server.link.status(rollout_id) for server in servers))
        for server, status in zip(servers, said, strict=True):
            if status is None or status == RolloutStatus.UNKNOWN:
                continue
            if self._policy is None and status not in _ENDED:
                with server.carrying(flight):
                    await self._cancel(flight)
                raise BackendError(POLICY_GONE)
            return server
        return None

    async def _find_server(self) -> RolloutServer:
        while (server := self.fleet.pick()) is None:
            waited = asyncio.get_running_loop().time() - self._all_lost_at
            left = (self._patience_sec or 0.0) - waited
            if left <= 0 or self.fleet.is_hopeless:
                raise BackendError(self.fleet.problem)
            self._change.clear()
            try:
                async with asyncio.timeout(left):
                    await self._change.wait()
            except TimeoutError:
                continue
        return server

    async def _run_on(self, server: RolloutServer, flight: Flight) -> None:
        # New ones for each go: what an earlier one still says is refused by its key.
        callbacks = flight.endpoint.expect_callbacks() if server.posts_back else None
        order = encode_order(flight, callbacks=callbacks, policy=self._policy)
        dispatching = asyncio.ensure_future(self._dispatch(server, order))
        try:
            reply = await asyncio.shield(dispatching)
        except asyncio.CancelledError:
            # The server may be taking it in this very moment, and a cancel must not overtake it.
            await asyncio.wait({dispatching}, timeout=_ORDER_PATIENCE_SEC)
            dispatching.cancel()
            await self._cancel(flight)
            raise
        flight.start_clock()
        lease = Lease.of(reply)
        if lease is not None:
            await self._guard(server, flight, self._poll(server, flight, lease), order=None)
        elif callbacks is not None:
            await self._guard(server, flight, self._await_posts(flight, callbacks), order=order)
        else:
            raise ProtocolError(
                f"the rollout server at {server.url} took a rollout that is to be polled, and gave "
                "no polling_lease_token",
                status_code=reply.status,
            )

    async def _dispatch(self, server: RolloutServer, order: bytes) -> Reply:
        """Bring a rollout to the server, as soon as it answers."""
        failures = 0
        while True:
            reply = await server.link.start_rollout(order)
            if reply.is_taken:
                return reply
            if reply.status == _BUSY:
                raise _Busy(_busy_pause_sec(reply))
            failures += 1
            await self._retry.sleep(self._pause_sec(server, reply, failures))

    def _pause_sec(self, server: RolloutServer, reply: Reply, failures: int) -> float:
        """Seconds before the next try; raises where none would help."""
        refusal = f"the rollout server at {server.url} {reply.problem}"
        if reply.status in _REFUSES_THIS_ONE:
            raise ProtocolError(refusal, status_code=reply.status)
        pause_sec = None
        if reply.may_pass and server.loss is None:
            pause_sec = self._retry.pause_sec(failures, retry_after=reply.retry_after)
        if pause_sec is None:
            self._lose(server, BackendError(refusal), for_good=not reply.may_pass)
            raise RolloutLost(refusal)
        return pause_sec

    async def _guard(
        self,
        server: RolloutServer,
        flight: Flight,
        waiting: Coroutine[Any, Any, None],
        *,
        order: bytes | None,
    ) -> None:
        """Wait for the answers of a rollout as long as its server can be expected to give them."""
        task = asyncio.ensure_future(waiting)
        ended_at: float | None = None
        try:
            while True:
                await asyncio.wait({task, server.news}, return_when=asyncio.FIRST_COMPLETED)
                if task.done():
                    return task.result()
                if server.loss is not None:
                    raise RolloutLost(str(server.loss))
                now = asyncio.get_running_loop().time()
                if order is not None and await self._has_ended(server, flight, order):
                    ended_at = now if ended_at is None else ended_at
                if ended_at is not None and now - ended_at >= self._answer_patience_sec:
                    raise BackendError(
                        f"the rollout server at {server.url} gave the answers of this rollout to "
                        "somebody else, and does not give them again"
                    )
        finally:
            task.cancel()

    async def _has_ended(self, server: RolloutServer, flight: Flight, order: bytes) -> bool:
        """Ask again for answers that are missing; whether their server says there are all given."""
        status = await server.link.status(flight.request.id)
        if status == RolloutStatus.UNKNOWN:
            raise RolloutLost(
                f"the rollout server at {server.url} does not know this rollout any more"
            )
        if status is None:
            return False
        # The same id and content: nothing is run again, and answers that wait are posted now.
        await server.link.start_rollout(order)
        return status in _ENDED

    async def _poll(self, server: RolloutServer, flight: Flight, lease: Lease) -> None:
        retry = replace(self._retry, max_retries=PATIENT)
        result = await poll_result(server.link, flight.request.id, lease, retry=retry)
        if flight.endpoint.is_expired:
            return
        workflow, grader = polled_results(result, flight.request)
        flight.take_workflow(workflow)
        flight.grader = grader
        self._show(flight, grader)

    async def _await_posts(self, flight: Flight, callbacks: Callbacks) -> None:
        completion = await callbacks.rendezvous.completion()
        if completion is not None and not flight.endpoint.is_expired:
            flight.take_workflow(workflow_result(completion))
        grade = await callbacks.rendezvous.grade()
        if not flight.endpoint.is_expired:
            self._take_grade(flight, grade)

    def _take_grade(self, flight: Flight, grade: GraderCompleteRequest) -> None:
        graded = grader_result(grade)
        if flight.workflow is None:
            # Its answer was lost on the way: the grader's says how it ended, if anything does.
            if graded.sample is None and graded.no_result is None:
                return
            flight.take_workflow(_implied(graded))
        assert flight.workflow is not None
        flight.workflow = flight.workflow.model_copy(update={"sample": graded.sample})
        flight.grader = graded
        self._show(flight, graded)

    def _show(self, flight: Flight, graded: ExecutionResult) -> None:
        if self._on_sample is not None:
            self._on_sample(flight.request, before_grading(graded.sample))

    async def _cancel(self, flight: Flight) -> bool:
        server, rollout_id = self.fleet.carrier(flight), flight.request.id
        if server is None:
            return False
        try:
            return await server.link.cancel(rollout_id)
        except BackendError as error:
            logger.warning("rollout %s cannot be told to stop: %s", rollout_id, error)
            return False

    def _lose(self, server: RolloutServer, error: BackendError, *, for_good: bool = False) -> None:
        server.lose(error, for_good=for_good)
        if self.fleet.is_there:
            self._resize()
        elif self._patience_sec is None:
            self.go_down(error)
        else:
            self._all_lost_at = asyncio.get_running_loop().time()
            self._change.set()

    def _welcome(self, server: RolloutServer) -> None:
        if server.loss is not None:
            logger.warning("the rollout server at %s is back", server.url)
            server.welcome()
            self._change.set()
        self._resize()

    def _resize(self) -> None:
        self._limit = self.fleet.limit
        self._slots.resize(self._limit)


class _Busy(Exception):
    """A server takes no rollout for so long."""

    def __init__(self, pause_sec: float) -> None:
        super().__init__(pause_sec)
        self.pause_sec = pause_sec


def _implied(graded: ExecutionResult) -> ExecutionResult:
    """The workflow's result as the grader's implies it: there is a sample, or a reason for none."""
    if graded.sample is None:
        assert graded.no_result is not None, "an answer that implies nothing is not asked"
        return without_result("workflow", graded.no_result)
    return ExecutionResult(status=RolloutStatus.SUCCESS, phase="workflow")


_ENDED = frozenset(status.value for status in RolloutStatus if status.is_terminal)


def _busy_pause_sec(reply: Reply) -> float:
    asked = retry_after_sec(reply.retry_after, now=time.time())
    least, most = _BUSY_BOUNDS_SEC
    return min(most, max(least, _BUSY_PAUSE_SEC if asked is None else asked))
