"""Rendezvous: where the two answers of a rollout on a server meet whoever waits for them."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, InvalidStateError
from typing import Literal, TypeAlias, TypeVar

from pydantic import ValidationError

from osmosis_ai.rollout.controller.asgi import HttpError
from osmosis_ai.rollout.controller.model.base import parse_object
from osmosis_ai.rollout.protocol import GraderCompleteRequest, RolloutCompleteRequest
from osmosis_ai.rollout.trajectory.report import TrajectoryReport
from osmosis_ai.rollout.types import GraderStatus

logger = logging.getLogger(__name__)

Kind: TypeAlias = Literal["completion", "grader"]
Answer: TypeAlias = RolloutCompleteRequest | GraderCompleteRequest
Commit: TypeAlias = Callable[[Answer], Awaitable[None]]
"""Makes an answer last, before it is acknowledged; where it raises, the server asks again."""

T = TypeVar("T")

Report: TypeAlias = Callable[[], TrajectoryReport | None]
"""What the controller knows of the model calls so far."""

ACK = b"{}"


class Rendezvous:
    """Takes a rollout's answers in the listener's thread, and hands them to the waiting loop.

    The grader's answer is the last one and ends the wait. Of several answers of a kind the first
    counts: each later one is acknowledged all the same, and logged where it says something else.
    """

    def __init__(
        self, rollout_id: str, *, commit: Commit | None = None, report: Report | None = None
    ) -> None:
        self.api_key = secrets.token_urlsafe(24)
        self.token = self.api_key.encode()
        self.name = secrets.token_hex(4)
        """Tells it from others of the same rollout."""
        self._rollout_id = rollout_id
        self._commit = commit
        self._report = report
        self._acks: dict[Kind, bytes] = {"grader": ACK}
        self._digests: dict[Kind, bytes] = {}
        self._completion: Future[RolloutCompleteRequest | None] = Future()
        self._grade: Future[GraderCompleteRequest] = Future()
        # One at a time: a duplicate must not be committed beside its original.
        self._turn = asyncio.Lock()

    async def completion(self) -> RolloutCompleteRequest | None:
        """Wait, in any event loop, for the workflow's answer; None where it was lost."""
        return await asyncio.wrap_future(self._completion)

    async def grade(self) -> GraderCompleteRequest:
        """Wait, in any event loop, for the grader's answer."""
        return await asyncio.wrap_future(self._grade)

    def end(self) -> None:
        """Let go of the answers; what comes again is acknowledged all the same."""
        self._completion, self._grade = Future(), Future()
        self._completion.cancel()
        self._grade.cancel()

    async def accept(self, kind: Kind, body: bytes) -> bytes:
        """Take one answer and return its acknowledgement; raises HttpError 422 for a wrong one."""
        answer = self._parse(kind, body)
        digest = hashlib.sha256(body).digest()
        async with self._turn:
            if kind not in self._digests:
                await self._keep(answer)
                # Before the wait ends: a grader's own calls are no part of the conversation.
                self._acks.setdefault(kind, _acknowledge(self._report))
                self._digests[kind] = digest
                self._publish(answer)
            elif self._digests[kind] != digest:
                logger.warning(
                    "rollout %s: a second %s answer says something else; the first one counts",
                    self._rollout_id,
                    kind,
                )
            return self._acks[kind]

    async def _keep(self, answer: Answer) -> None:
        if self._commit is None:
            return
        try:
            await self._commit(answer)
        except Exception as error:  # keeping is whoever waits' own; the server comes again
            raise HttpError(503, f"the answer cannot be kept now: {error}") from error

    def _parse(self, kind: Kind, body: bytes) -> Answer:
        try:
            data = {"rollout_id": self._rollout_id, **parse_object(body)}
            answer = _MODELS[kind].model_validate(data)
        except ValidationError as error:
            raise HttpError(422, f"not a {kind} answer: {error}") from error
        except ValueError as error:
            raise HttpError(422, str(error)) from error
        if answer.rollout_id != self._rollout_id:
            raise HttpError(422, f"this URL belongs to rollout {self._rollout_id!r}")
        if not _is_terminal(answer):
            raise HttpError(422, f"status {answer.status.value!r} is not an end of a rollout")
        return answer

    def _publish(self, answer: Answer) -> None:
        if isinstance(answer, RolloutCompleteRequest):
            self._hand_over(self._completion, answer)
            return
        if not self._completion.done():
            self._hand_over(self._completion, None)
        self._hand_over(self._grade, answer)

    def _hand_over(self, place: Future[T], answer: T) -> None:
        try:
            place.set_result(answer)
        except InvalidStateError:
            logger.info("rollout %s: an answer came after the wait for it", self._rollout_id)


def _acknowledge(report: Report | None) -> bytes:
    """What a server is answered: the report on the rollout's model calls, where there is one."""
    found = None if report is None else report()
    if found is None:
        return ACK
    return b'{"trajectory":' + found.model_dump_json(exclude_none=True).encode() + b"}"


_MODELS: dict[Kind, type[RolloutCompleteRequest | GraderCompleteRequest]] = {
    "completion": RolloutCompleteRequest,
    "grader": GraderCompleteRequest,
}


def _is_terminal(answer: Answer) -> bool:
    if isinstance(answer, RolloutCompleteRequest):
        return answer.status.is_terminal
    return answer.status is not GraderStatus.PENDING
