"""The rollouts of one server: admitted once, found again, cancelled, drained."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import secrets
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import Any
from uuid import uuid4

import orjson

from osmosis_ai.errors import RunError
from osmosis_ai.rollout.backend.base import CancelDisposition, ExecutionBackend
from osmosis_ai.rollout.protocol import RolloutInitRequest, StartRequest, encode_grade
from osmosis_ai.rollout.server.delivery import Delivery
from osmosis_ai.rollout.server.history import History
from osmosis_ai.rollout.server.job import Job
from osmosis_ai.rollout.server.journal import Accepted, Journal
from osmosis_ai.rollout.server.lease import Lease, LeaseTerms
from osmosis_ai.rollout.server.mailbox import mailbox_for
from osmosis_ai.rollout.server.recipient import (
    NOT_ASKED_FOR,
    Callbacks,
    Ended,
    Outcome,
    Recipient,
    ungraded,
)
from osmosis_ai.rollout.server.restart import (
    adopt_abandoned,
    ended_from,
    finish_unfinished,
    give_owed,
    is_forgotten,
)
from osmosis_ai.rollout.types import ExecutionRequest, RolloutStatus

logger = logging.getLogger(__name__)


class Admission(Enum):
    """What became of a request for a rollout."""

    ACCEPTED = auto()
    CONFLICT = auto()
    FORGOTTEN = auto()
    FULL = auto()
    DRAINING = auto()
    UNWRITABLE = auto()


@dataclass(frozen=True, slots=True)
class DrainLimits:
    """How long a server that shuts down waits, in seconds, for each of the ways out."""

    finish_sec: float = 10.0
    """For rollouts to end by themselves."""
    cancel_sec: float = 120.0
    """For cancelled ones to end and for their answers to arrive."""
    break_off_sec: float = 5.0
    """For those whose tasks had to be broken off."""
    deliver_sec: float = 10.0
    """For answers to arrive that a journal keeps if they do not."""


class Jobs:
    """The rollouts in flight, and for a while those that are over."""

    def __init__(
        self,
        backend: ExecutionBackend,
        delivery: Delivery,
        *,
        history: History | None = None,
        terms: LeaseTerms | None = None,
        max_queue_depth: int | None = None,
    ) -> None:
        self.terms = LeaseTerms() if terms is None else terms
        self._backend = backend
        self._delivery = delivery
        self._history = History() if history is None else history
        self._max_queue_depth = max_queue_depth
        self._live: dict[str, Job] = {}
        self._tasks: dict[asyncio.Task[None], Job | None] = {}
        self._journal: Journal | None = None
        self.is_draining = False

    @property
    def active(self) -> int:
        """How many rollouts are in flight."""
        return len(self._live)

    async def begin(self, journal: Journal | None, *, adopt: bool) -> None:
        """Write everything down from now on, and deliver what earlier servers owed.

        With `adopt` that includes servers whose journals lie beside this one.
        """
        self._journal = self._delivery.journal = journal
        if journal is None:
            return
        if adopt:
            await adopt_abandoned(journal)
        for entry in await finish_unfinished(journal):
            if entry.owed:
                ended = ended_from(entry, journal=journal, delivery=self._delivery)
                self._history.add(entry.accepted.rollout_id, ended)
                if isinstance(ended.recipient, Callbacks):
                    self._delivery.hand_over(ended.recipient.mailbox)

    async def admit(self, body: StartRequest) -> Admission:
        """Start a rollout, or find the one that is meant; nothing is run twice.

        Returns when the rollout is on disk, where there is a journal. Raises ValueError where a
        callback URL or the key cannot be used.
        """
        rollout_id = body.rollout_id or uuid4().hex
        request = body.to_execution_request(rollout_id)
        accepted = _accepted(body, request)
        recipient = self._recipient(accepted, body)
        try:
            known = self._find(rollout_id) if body.rollout_id else None
            if known is not None:
                return await self._admit_again(known, accepted, recipient)
            if self.is_draining:
                return Admission.DRAINING
            if self._is_full():
                return Admission.FULL
            return await self._start(Job(request, body, accepted.digest, recipient), accepted)
        except RunError as exc:
            logger.error("rollout %s: it is not taken: %s", rollout_id, exc)
            return Admission.UNWRITABLE

    def outcome(self, rollout_id: str) -> Outcome:
        """How a rollout stands; `unknown` where nobody knows (any more)."""
        found = self._find(rollout_id)
        if isinstance(found, Ended):
            return found.outcome
        state = self._backend.rollout_status(rollout_id)
        if found is None:
            return Outcome(RolloutStatus.UNKNOWN if state is None else state.status)
        if state is not None:
            return found.outcome._replace(status=state.status)
        if found.completion is not None and not found.recipient.is_complete:
            return Outcome(RolloutStatus.GRADING)
        return found.outcome

    def lease(self, rollout_id: str) -> Lease | None:
        """What opens the result of a rollout; None for one that is not polled, or not known."""
        found = self._find(rollout_id)
        recipient = None if found is None else found.recipient
        return recipient if isinstance(recipient, Lease) else None

    async def cancel(
        self,
        *,
        ids: Iterable[str] | None = None,
        prefix: str | None = None,
        all: bool = False,
    ) -> dict[str, CancelDisposition]:
        """Ask the backend to stop rollouts, by exactly one selector."""
        return await self._backend.cancel_rollouts(ids=ids, prefix=prefix, all=all)

    async def drain(self, limits: DrainLimits = DrainLimits()) -> None:
        """Let rollouts end, cancel the rest, and return when their answers have been given."""
        self.is_draining = True
        await self._wait(limits.finish_sec)
        if self._tasks:
            await self._cancel_rest()
            await self._wait(limits.cancel_sec)
        for task in self._tasks:
            task.cancel()
        await self._wait(limits.break_off_sec)
        for rollout_id in self._live:
            logger.error("rollout %s: still not over, and the server ends", rollout_id)
        await self._delivery.drain(limits.deliver_sec)

    async def _cancel_rest(self) -> None:
        try:
            said = await self._backend.cancel_rollouts(all=True)
        except Exception:  # the backend's failure: the server ends all the same
            logger.exception("the backend failed to cancel its rollouts")
            said = {}
        for task, job in self._tasks.items():
            # A backend that cannot cancel has its rollouts cancelled from outside.
            if job is not None and job.request.id not in said and not job.recipient.is_complete:
                task.cancel()

    async def _wait(self, limit_sec: float) -> None:
        clock = asyncio.get_running_loop().time
        deadline = clock() + limit_sec
        while self._tasks and (left := deadline - clock()) > 0:
            await asyncio.wait(self._tasks, timeout=left)

    def _recipient(self, accepted: Accepted, body: StartRequest) -> Recipient:
        if isinstance(body, RolloutInitRequest):
            return Callbacks(mailbox_for(accepted), self._delivery)
        return Lease(
            accepted.rollout_id,
            wants_grade=body.grade,
            token=accepted.lease_token,
            journal=self._journal,
        )

    def _find(self, rollout_id: str) -> Job | Ended | None:
        found = self._live.get(rollout_id) or self._history.get(rollout_id)
        if found is not None or self._journal is None:
            return found
        entry = self._journal.find(rollout_id)
        if entry is None:
            return None
        return ended_from(entry, journal=self._journal, delivery=self._delivery)

    def _is_full(self) -> bool:
        capacity = self._backend.capacity()
        if self._max_queue_depth is None or capacity is None or capacity.max is None:
            return not self._backend.has_capacity()
        return self.active >= capacity.max + self._max_queue_depth

    async def _start(self, job: Job, accepted: Accepted) -> Admission:
        self._live[job.request.id] = job
        if self._journal is None:
            self._spawn(self._run(job), job)
            return Admission.ACCEPTED
        job.admitted = asyncio.get_running_loop().create_future()
        self._spawn(self._write_and_run(job, accepted, self._journal), job)
        return await _when_written(job)

    async def _admit_again(
        self, known: Job | Ended, accepted: Accepted, newer: Recipient
    ) -> Admission:
        if known.digest != accepted.digest or type(known.recipient) is not type(newer):
            return Admission.CONFLICT
        if isinstance(known, Job):
            admission = await _when_written(known)
            if admission is not Admission.ACCEPTED:
                return admission
        elif self._is_forgotten(accepted.rollout_id):
            return Admission.FORGOTTEN
        if isinstance(known.recipient, Callbacks) and isinstance(newer, Callbacks):
            await self._readdress(known, known.recipient, newer, accepted)
        return Admission.ACCEPTED

    def _is_forgotten(self, rollout_id: str) -> bool:
        entry = None if self._journal is None else self._journal.find(rollout_id)
        return entry is not None and is_forgotten(entry)

    async def _readdress(
        self, known: Job | Ended, to: Callbacks, newer: Callbacks, accepted: Accepted
    ) -> None:
        mailbox = to.mailbox
        if isinstance(known, Ended):
            # So that whoever comes next finds this mailbox, and not another one.
            self._history.add(accepted.rollout_id, known)
        moved = mailbox.is_elsewhere(newer.mailbox)
        mailbox.readdress(newer.mailbox)
        if self._journal is not None and (moved or mailbox.stranded):
            await self._journal.redirect(accepted, again=moved)
            entry = self._journal.find(accepted.rollout_id)
            if entry is not None:
                give_owed(mailbox, entry)
        if isinstance(known, Ended) and mailbox.grader is not None and not mailbox.is_complete:
            mailbox.grader.give(encode_grade(mailbox.rollout_id, ungraded(NOT_ASKED_FOR)))
        if mailbox.stranded:
            self._spawn(self._delivery.deliver_stranded(mailbox))

    def _spawn(self, work: Coroutine[Any, Any, None], job: Job | None = None) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = job
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        if not task.cancelled() and task.exception() is not None:
            logger.error("a rollout's task failed", exc_info=task.exception())

    async def _write_and_run(self, job: Job, accepted: Accepted, journal: Journal) -> None:
        assert job.admitted is not None, "somebody waits for the commit"
        written = False
        try:
            await journal.accept(accepted)
            written = True
        except RunError as exc:
            logger.error("rollout %s: it is not taken: %s", job.request.id, exc)
        finally:
            if not written:
                del self._live[job.request.id]
            job.admitted.set_result(written)
        if written:
            await self._run(job)

    async def _run(self, job: Job) -> None:
        if isinstance(job.recipient, Lease):
            job.recipient.start(self.terms.polling_lease_timeout_sec, partial(self._expire, job))
        try:
            await job.run(self._backend)
        finally:
            del self._live[job.request.id]
            self._history.add(job.request.id, Ended(job.digest, job.recipient, job.outcome))

    def _expire(self, job: Job) -> None:
        logger.warning("rollout %s: nobody asks for it any more", job.request.id)
        self._spawn(self._end_unwanted(job))

    async def _end_unwanted(self, job: Job) -> None:
        assert isinstance(job.recipient, Lease), "callbacks do not expire"
        await job.recipient.expire()
        said = await self._backend.cancel_rollouts(ids=[job.request.id])
        if said.get(job.request.id, CancelDisposition.NOT_FOUND) is CancelDisposition.NOT_FOUND:
            for task, other in list(self._tasks.items()):
                if other is job:
                    task.cancel()


async def _when_written(job: Job) -> Admission:
    # Shielded: one client that goes away must not take the answer from the others.
    if job.admitted is None or await asyncio.shield(job.admitted):
        return Admission.ACCEPTED
    return Admission.UNWRITABLE


def _accepted(body: StartRequest, request: ExecutionRequest) -> Accepted:
    digest = _digest(request)
    if isinstance(body, RolloutInitRequest):
        return Accepted(
            request.id,
            digest,
            body.completion_callback_url,
            body.grader_callback_url,
            body.controller_api_key,
        )
    return Accepted(request.id, digest, lease_token=secrets.token_urlsafe(24))


def _digest(request: ExecutionRequest) -> str:
    """What tells two requests of one id apart: all that the rollout depends on."""
    content = (
        request.prompt,
        request.label,
        request.metadata,
        request.agent_timeout_sec,
        request.grader_timeout_sec,
    )
    try:
        data = orjson.dumps(content, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # an integer beyond 64 bits
        data = json.dumps(content, sort_keys=True).encode()
    return hashlib.blake2b(data, digest_size=16).hexdigest()
