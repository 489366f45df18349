"""The rollouts of one server: admitted once, found again, cancelled, drained."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any
from uuid import uuid4

import orjson

from osmosis_ai.rollout.backend.base import CancelDisposition, ExecutionBackend
from osmosis_ai.rollout.protocol import RolloutInitRequest, encode_grade
from osmosis_ai.rollout.server.delivery import Delivery, Mailbox, mailbox_for
from osmosis_ai.rollout.server.history import Ended, History
from osmosis_ai.rollout.server.job import NOT_ASKED_FOR, Job, Outcome, ungraded
from osmosis_ai.rollout.types import ExecutionRequest, RolloutStatus

logger = logging.getLogger(__name__)


class Admission(Enum):
    """What became of a request for a rollout."""

    ACCEPTED = auto()
    CONFLICT = auto()
    FULL = auto()
    DRAINING = auto()


@dataclass(frozen=True, slots=True)
class DrainLimits:
    """How long a server that shuts down waits, in seconds, for each of the ways out."""

    finish_sec: float = 10.0
    """For rollouts to end by themselves."""
    cancel_sec: float = 120.0
    """For cancelled ones to end and for their answers to arrive."""
    break_off_sec: float = 5.0
    """For those whose tasks had to be broken off."""


class Jobs:
    """The rollouts in flight, and for a while those that are over."""

    def __init__(
        self, backend: ExecutionBackend, delivery: Delivery, *, history: History | None = None
    ) -> None:
        self._backend = backend
        self._delivery = delivery
        self._history = History() if history is None else history
        self._live: dict[str, Job] = {}
        self._tasks: dict[asyncio.Task[None], Job | None] = {}
        self.is_draining = False

    @property
    def active(self) -> int:
        """How many rollouts are in flight."""
        return len(self._live)

    def admit(self, body: RolloutInitRequest) -> Admission:
        """Start a rollout, or find the one that is meant; nothing is run twice.

        Raises ValueError where a callback URL or the key cannot be used.
        """
        request = body.to_execution_request(body.rollout_id or uuid4().hex)
        mailbox = mailbox_for(request.id, body)
        digest = _digest(request)
        known = self._live.get(request.id) or self._history.get(request.id)
        if known is not None:
            return self._admit_again(known, digest=digest, newer=mailbox)
        if self.is_draining:
            return Admission.DRAINING
        if not self._backend.has_capacity():
            return Admission.FULL
        job = Job(request, body, digest, mailbox, self._delivery)
        self._live[request.id] = job
        self._spawn(self._run(job), job)
        return Admission.ACCEPTED

    def outcome(self, rollout_id: str) -> Outcome:
        """How a rollout stands; `unknown` where nobody knows (any more)."""
        job = self._live.get(rollout_id)
        if job is None:
            ended = self._history.get(rollout_id)
            if ended is not None:
                return ended.outcome
        state = self._backend.rollout_status(rollout_id)
        if job is None:
            return Outcome(RolloutStatus.UNKNOWN if state is None else state.status)
        if state is not None:
            return job.outcome._replace(status=state.status)
        if job.completion is not None and not job.mailbox.is_complete:
            return Outcome(RolloutStatus.GRADING)
        return job.outcome

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

    async def _cancel_rest(self) -> None:
        try:
            said = await self._backend.cancel_rollouts(all=True)
        except Exception:  # the backend's failure: the server ends all the same
            logger.exception("the backend failed to cancel its rollouts")
            said = {}
        for task, job in self._tasks.items():
            # A backend that cannot cancel has its rollouts cancelled from outside.
            if job is not None and job.request.id not in said and not job.mailbox.is_complete:
                task.cancel()

    async def _wait(self, limit_sec: float) -> None:
        clock = asyncio.get_running_loop().time
        deadline = clock() + limit_sec
        while self._tasks and (left := deadline - clock()) > 0:
            await asyncio.wait(self._tasks, timeout=left)

    def _admit_again(self, known: Job | Ended, *, digest: bytes, newer: Mailbox) -> Admission:
        """Send what did not arrive of a known rollout to where it is wanted now."""
        if known.digest != digest:
            return Admission.CONFLICT
        if isinstance(known, Ended):
            mailbox = self._reopen(known, newer)
        else:
            mailbox = known.mailbox
            mailbox.readdress(newer)
        if any(letter.is_stranded for letter in mailbox):
            self._spawn(self._delivery.deliver_stranded(mailbox))
        return Admission.ACCEPTED

    def _reopen(self, ended: Ended, newer: Mailbox) -> Mailbox:
        """The mailbox of a rollout that is over; it says no to who asks for a grade only now."""
        mailbox = newer
        if ended.mailbox is not None:
            mailbox = ended.mailbox
            mailbox.readdress(newer)
        if mailbox.grader is not None and not ended.was_asked_for_grade:
            mailbox.grader.give(encode_grade(mailbox.rollout_id, ungraded(NOT_ASKED_FOR)))
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

    async def _run(self, job: Job) -> None:
        try:
            await job.run(self._backend)
        finally:
            del self._live[job.request.id]
            job.mailbox.report = None
            self._history.add(job)


def _digest(request: ExecutionRequest) -> bytes:
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
    return hashlib.blake2b(data, digest_size=16).digest()
