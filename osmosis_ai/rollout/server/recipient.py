"""Recipient: who is owed the answers of a rollout, and what is known of it when it is over."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import NamedTuple

from osmosis_ai.rollout.protocol import encode_completion, encode_grade
from osmosis_ai.rollout.server.delivery import Delivery
from osmosis_ai.rollout.server.mailbox import Mailbox
from osmosis_ai.rollout.trajectory.report import TrajectoryReport
from osmosis_ai.rollout.types import ExecutionResult, RolloutStatus

NOT_ASKED_FOR = "the rollout had been accepted without a grader callback and is not graded"


class Outcome(NamedTuple):
    """How a rollout stands; the reward only where it counts."""

    status: RolloutStatus
    reward: float | None = None
    err_message: str | None = None


class Recipient(ABC):
    """Who is owed the answers of one rollout."""

    __slots__ = ()

    @property
    @abstractmethod
    def wants_grade(self) -> bool:
        """Whether a grader's answer was asked for."""

    @property
    @abstractmethod
    def is_complete(self) -> bool:
        """Whether every answer has been given, arrived or not."""

    @abstractmethod
    async def take_completion(self, result: ExecutionResult) -> None:
        """Take the workflow's answer; never raises."""

    @abstractmethod
    async def take_grade(self, result: ExecutionResult) -> None:
        """Take the grader's answer, asked for or not; never raises."""

    @abstractmethod
    async def take_interrupted(self) -> None:
        """Take again what a cancellation struck on its way."""

    @property
    def report(self) -> TrajectoryReport | None:
        """What the recipient reported of the model calls."""
        return None

    @property
    def ended_by_itself(self) -> Outcome | None:
        """How the rollout ended for the recipient, where that is not what it came to."""
        return None

    @abstractmethod
    def note_archived(self) -> None:
        """The trajectory is written."""


@dataclass(slots=True, eq=False)
class Callbacks(Recipient):
    """A controller whose answers are posted to its callback URLs."""

    mailbox: Mailbox
    delivery: Delivery = field(repr=False)

    @property
    def wants_grade(self) -> bool:
        return self.mailbox.grader is not None

    @property
    def is_complete(self) -> bool:
        return self.mailbox.is_complete

    @property
    def report(self) -> TrajectoryReport | None:
        return self.mailbox.report

    async def take_completion(self, result: ExecutionResult) -> None:
        body = encode_completion(self.mailbox.rollout_id, result)
        await self.delivery.deliver(self.mailbox, self.mailbox.completion, body)

    async def take_grade(self, result: ExecutionResult) -> None:
        letter = self.mailbox.grader
        if letter is not None:
            body = encode_grade(self.mailbox.rollout_id, result)
            await self.delivery.deliver(self.mailbox, letter, body)

    async def take_interrupted(self) -> None:
        await self.delivery.deliver_stranded(self.mailbox)

    def note_archived(self) -> None:
        self.mailbox.report = None
        self.mailbox.is_archived = True


def ungraded(no_result: str | None) -> ExecutionResult:
    """The grader answer of a rollout that was not graded."""
    return ExecutionResult(status=RolloutStatus.FAILURE, phase="grader", no_result=no_result)
