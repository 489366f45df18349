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
from osmosis_ai.rollout.server.bounds import Bounds
from osmosis_ai.rollout.server.delivery import Delivery
from osmosis_ai.rollout.server.entry import (
    Accepted,
    AnswerState,
    Entry,
)
from osmosis_ai.rollout.server.history import Ended, History
from osmosis_ai.rollout.server.job import Job
from osmosis_ai.rollout.server.journal import Journal
from osmosis_ai.rollout.server.lease import Lease, LeaseTerms
from osmosis_ai.rollout.server.mailbox import Mailbox, mailbox_for
from osmosis_ai.rollout.server.recipient import (
    NOT_ASKED_FOR,
    Callbacks,
    Outcome,
    Recipient,
    ungraded,
)
from osmosis_ai.rollout.server.restart import (
    adopt_abandoned,
    ended_from,
    finish_unfinished,
    mailbox_from,
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
    deliver_sec: float = 3.0
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
        bounds: Bounds | None = None,
    ) -> None:
        self.terms = LeaseTerms() if terms is None else terms
        self._backend = backend
        self._delivery = delivery
        self._history = History() if history is None else history
        self._bounds = Bounds() if bounds is None else bounds
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
        journal.keep_bodies_sec = self._history.retention_sec
        if adopt:
            await adopt_abandoned(journal)
        for mailbox in await finish_unfinished(journal):
            self._delivery.hand_over_written(mailbox)

    async def admit(self, body: StartRequest) -> Admission:
        """Start a rollout, or find the one that is meant; nothing is run twice.

        Returns when the rollout is on disk, where there is a journal. Raises ValueError where a
        callback URL or the key cannot be used.
        """
        request = body.to_execution_request(body.rollout_id or uuid4().hex)
        accepted = _accepted(body, request)
        recipient = self._recipient(accepted, body)
        known = self._find(request.id) if body.rollout_id else None
        try:
            if known is not None:
                return await self._admit_again(known, accepted, recipient)
            if self.is_draining:
                return Admission.DRAINING
            if not self._has_room():
                return Admission.FULL
            return await self._start(Job(request, body, accepted.digest, recipient), accepted)
        except RunError as exc:
            logger.error("rollout %s: it is not taken: %s", request.id, exc)
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
        if isinstance(found, Ended):
            return None if found.is_forgotten else found.lease
        return None if found is None else _lease_of(found.recipient)

    async def cancel(
        self,
        *,
        ids: Iterable[str] | None = None,
        prefix: str | None = None,
        all: bool = False,
    ) -> dict[str, CancelDisposition]:
        """Ask the backend to stop rollouts, by exactly one selector."""
        return await self._backend.cancel_rollouts(ids=ids, prefix=prefix, all=all)

    async def drain(self, limits: DrainLimits) -> None:
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

    def _has_room(self) -> bool:
        if not self._backend.has_capacity():
            return False
        depth = self._bounds.max_queue_depth
        if depth is None:
            return True
        capacity = self._backend.capacity()
        if capacity is None or capacity.max is None:
            return True
        # Not `capacity.queued`: what was admitted in this moment has not reached the backend yet.
        return self.active - capacity.max < depth

    def _recipient(self, accepted: Accepted, body: StartRequest) -> Recipient:
        if isinstance(body, RolloutInitRequest):
            mailbox = mailbox_for(accepted)
            for letter in mailbox:
                self._bounds.check_target(letter)
            return Callbacks(mailbox, self._delivery)
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
        return ended_from(entry, journal=self._journal, retention_sec=self._history.retention_sec)

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
        """Send the answers of a known rollout to where they are wanted now."""
        lease = known.lease if isinstance(known, Ended) else _lease_of(known.recipient)
        if known.digest != accepted.digest or (lease is None) is isinstance(newer, Lease):
            return Admission.CONFLICT
        if isinstance(known, Ended):
            if known.is_forgotten:
                return Admission.FORGOTTEN
        elif not await _is_written(known):
            return Admission.UNWRITABLE
        if isinstance(newer, Callbacks):
            await self._readdress(known, newer.mailbox, accepted)
        return Admission.ACCEPTED

    async def _readdress(self, known: Job | Ended, newer: Mailbox, accepted: Accepted) -> None:
        mailbox = self._mailbox(known, accepted.rollout_id)
        if mailbox is not None:
            mailbox.readdress(newer)
        entry = None
        if self._journal is not None:
            await self._journal.redirect(accepted)
            entry = self._journal.find(accepted.rollout_id)
        if entry is not None:
            # Another request may have come in the meantime: what was written last is meant.
            mailbox = self._mailbox(known, accepted.rollout_id) or mailbox or mailbox_from(entry)
            mailbox.readdress(mailbox_for(entry.accepted))
            self._give_owed(mailbox, entry)
        if isinstance(known, Ended):
            mailbox = self._reopen(known, mailbox or newer)
        assert mailbox is not None, "a rollout that runs has its mailbox"
        # At once: another request of this moment must find this mailbox, and not make one more.
        self._delivery.hand_over_written(mailbox)
        if any(letter.is_stranded for letter in mailbox):
            self._spawn(self._delivery.deliver_stranded(mailbox))

    def _give_owed(self, mailbox: Mailbox, entry: Entry) -> None:
        assert self._journal is not None, "it is what says so"
        bodies = {answer.kind: answer.body for answer in entry.owed}
        for letter in mailbox:
            if letter.kind in bodies and not letter.is_under_way and not letter.is_waiting:
                if letter.has_arrived:  # it was faster than the commit
                    self._journal.settle(mailbox.rollout_id, letter.kind, AnswerState.DELIVERED)
                else:
                    letter.give(bodies[letter.kind])
                    letter.is_written = True

    def _mailbox(self, known: Job | Ended, rollout_id: str) -> Mailbox | None:
        """Where the answers of a rollout are that did not arrive; None where a journal says it."""
        if isinstance(known, Job):
            recipient = known.recipient
            assert isinstance(recipient, Callbacks), "it is told apart from one that is polled"
            return recipient.mailbox
        return self._delivery.mailbox(rollout_id) or known.mailbox

    def _reopen(self, ended: Ended, mailbox: Mailbox) -> Mailbox:
        """The mailbox of a rollout that is over; it says no to who asks for a grade only now."""
        letter = mailbox.grader
        if letter is not None and not letter.is_given and not ended.was_asked_for_grade:
            letter.give(encode_grade(mailbox.rollout_id, ungraded(NOT_ASKED_FOR)))
            ended = ended._replace(was_asked_for_grade=True, mailbox=mailbox)
            self._history.put(mailbox.rollout_id, ended)
        return mailbox

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
        lease = _lease_of(job.recipient)
        if lease is not None:
            lease.start(self.terms.polling_lease_timeout_sec, partial(self._expire, job, lease))
        try:
            await job.run(self._backend)
        finally:
            del self._live[job.request.id]
            self._history.add(job)

    def _expire(self, job: Job, lease: Lease) -> None:
        logger.warning("rollout %s: nobody asks for it any more", job.request.id)
        self._spawn(self._end_unwanted(job, lease))

    async def _end_unwanted(self, job: Job, lease: Lease) -> None:
        await lease.expire()
        said = await self._backend.cancel_rollouts(ids=[job.request.id])
        if said.get(job.request.id, CancelDisposition.NOT_FOUND) is CancelDisposition.NOT_FOUND:
            for task, other in list(self._tasks.items()):
                if other is job:
                    task.cancel()


async def _when_written(job: Job) -> Admission:
    return Admission.ACCEPTED if await _is_written(job) else Admission.UNWRITABLE


async def _is_written(job: Job) -> bool:
    # Shielded: one client that goes away must not take the answer from the others.
    return job.admitted is None or await asyncio.shield(job.admitted)


def _lease_of(recipient: Recipient) -> Lease | None:
    return recipient if isinstance(recipient, Lease) else None


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
