"""Lease: a rollout whose result somebody comes for, and which nobody needs once they stay away."""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass

from osmosis_ai.errors import RunError
from osmosis_ai.rollout.protocol import encode_result
from osmosis_ai.rollout.server.entry import (
    Answer,
    AnswerKind,
    AnswerState,
)
from osmosis_ai.rollout.server.journal import Journal
from osmosis_ai.rollout.server.recipient import Outcome, Recipient
from osmosis_ai.rollout.types import ExecutionResult, RolloutErrorCategory, RolloutStatus

logger = logging.getLogger(__name__)

LOOK_EVERY_SEC = 0.5
"""How often a held poll looks whether a rollout has begun, of which a backend says nothing."""

EXPIRED = "polling lease expired"

RESULT_WAIT_SEC = 30.0
POLLING_LEASE_SEC = 120.0


@dataclass(frozen=True, slots=True)
class LeaseTerms:
    """How a server holds the polls of its rollouts, in seconds."""

    result_wait_timeout_sec: float = RESULT_WAIT_SEC
    """The longest that a poll is held."""
    polling_lease_timeout_sec: float = POLLING_LEASE_SEC
    """How long a rollout goes on that nobody asks for."""


class Lease(Recipient):
    """The right to a rollout's result, renewed by each poll; `on_expiry` is called without one."""

    def __init__(
        self,
        rollout_id: str,
        *,
        wants_grade: bool,
        token: str | None = None,
        journal: Journal | None = None,
        result: bytes | None = None,
    ) -> None:
        self.rollout_id = rollout_id
        self.token = secrets.token_urlsafe(24) if token is None else token
        self._result = result
        self._wants_grade = wants_grade
        self._journal = journal
        self._completion: ExecutionResult | None = None
        self._ended_by_itself: Outcome | None = None
        self._ended = asyncio.Event()
        if result is not None:
            self._ended.set()
        self._expires_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def wants_grade(self) -> bool:
        return self._wants_grade

    @property
    def is_complete(self) -> bool:
        return self._result is not None

    @property
    def ended_by_itself(self) -> Outcome | None:
        return self._ended_by_itself

    @property
    def result(self) -> bytes | None:
        """The body of the final reply; None before the end, and before it is on disk."""
        return self._result if self._ended.is_set() else None

    def opens_with(self, token: str) -> bool:
        """Whether this token is the lease's."""
        return hmac.compare_digest(token.encode(), self.token.encode())

    def start(self, timeout_sec: float, on_expiry: Callable[[], None]) -> None:
        """Count from now until somebody renews the lease."""
        self.renew(timeout_sec)
        self._wind(on_expiry)

    def renew(self, timeout_sec: float) -> None:
        """Somebody asked: the rollout is wanted for so long."""
        self._expires_at = asyncio.get_running_loop().time() + timeout_sec

    async def wait(self, status: Callable[[], RolloutStatus], limit_sec: float) -> None:
        """Return when the status changes, and at the latest after the limit."""
        before, clock = status(), asyncio.get_running_loop().time
        until = clock() + limit_sec
        while self.result is None and status() is before and (left := until - clock()) > 0:
            try:
                async with asyncio.timeout(min(left, LOOK_EVERY_SEC)):
                    await self._ended.wait()
            except TimeoutError:
                continue

    def note_taken(self) -> None:
        """Somebody came for the result; it stays for who comes again, and is owed to nobody."""
        if self._journal is not None:
            self._journal.settle(self.rollout_id, AnswerKind.RESULT, AnswerState.DELIVERED)

    async def expire(self) -> None:
        """End it as one that nobody came for."""
        if self._result is None:
            self._ended_by_itself = Outcome(RolloutStatus.FAILURE, err_message=EXPIRED)
        await self._end(
            ExecutionResult(
                status=RolloutStatus.FAILURE,
                err_message=EXPIRED,
                err_category=RolloutErrorCategory.LEASE_EXPIRED,
                no_result=EXPIRED,
            ),
            None,
        )

    async def take_completion(self, result: ExecutionResult) -> None:
        self._completion = result
        if not self._wants_grade:
            await self._end(result, None)

    async def take_grade(self, result: ExecutionResult) -> None:
        assert self._completion is not None, "a workflow's answer comes before its grader's"
        await self._end(self._completion, result if self._wants_grade else None)

    async def take_interrupted(self) -> None:
        if self._result is not None:
            await self._write_down(self._result)
            self._ended.set()

    def note_archived(self) -> None:
        """Who polls reports nothing that could still come."""

    async def _end(self, completion: ExecutionResult, grade: ExecutionResult | None) -> None:
        if self._result is not None:
            return
        self._result = encode_result(self.rollout_id, completion, grade)
        if self._timer is not None:
            self._timer.cancel()
        await self._write_down(self._result)
        self._ended.set()

    async def _write_down(self, body: bytes) -> None:
        if self._journal is None:
            return
        answer = Answer(self.rollout_id, AnswerKind.RESULT, body)
        try:
            await self._journal.answer(answer)
        except RunError as exc:
            logger.error("rollout %s: its result is not on disk: %s", self.rollout_id, exc)

    def _wind(self, on_expiry: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        if loop.time() >= self._expires_at:
            on_expiry()
            return
        self._timer = loop.call_at(self._expires_at, self._wind, on_expiry)
