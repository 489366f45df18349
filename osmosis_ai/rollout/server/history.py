"""What became of the rollouts that are over, for a while and so many of them."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

from osmosis_ai.rollout.server.job import Job
from osmosis_ai.rollout.server.lease import Lease
from osmosis_ai.rollout.server.mailbox import Mailbox
from osmosis_ai.rollout.server.recipient import Callbacks, Outcome
from osmosis_ai.rollout.types import RolloutStatus

RETENTION_SEC = 900.0
MAX_ROLLOUTS = 10_000


class Ended(NamedTuple):
    """One rollout that is over."""

    digest: str
    ended_at: float
    status: str
    reward: float | None
    err_message: str | None
    was_asked_for_grade: bool
    mailbox: Mailbox | None = None
    """What did not arrive and is not in a journal; None where there is no such thing."""
    lease: Lease | None = None
    """What opens the result of a rollout that is polled."""
    is_forgotten: bool = False
    """Whether nothing is kept of it but that it was."""

    @property
    def outcome(self) -> Outcome:
        """How the rollout ended."""
        return Outcome(RolloutStatus(self.status), self.reward, self.err_message)


class History:
    """Ended rollouts by id; the oldest are the first to be forgotten."""

    def __init__(
        self,
        *,
        retention_sec: float = RETENTION_SEC,
        max_rollouts: int = MAX_ROLLOUTS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.retention_sec = retention_sec
        self._max_rollouts = max_rollouts
        self._clock = clock
        # No plain dict: finding its first entry takes ever longer where the first is removed. And
        # plain tuples of plain values: the garbage collector looks at all else that is kept, and
        # with thousands of rollouts in here that was a tenth of a server's time.
        self._ended: OrderedDict[str, tuple[Any, ...]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._ended)

    def add(self, job: Job) -> None:
        """Remember how a rollout ended."""
        status, reward, err_message = job.outcome
        recipient = job.recipient
        ended = Ended(
            job.digest,
            self._clock(),
            status.value,
            reward,
            err_message,
            recipient.wants_grade,
            _unwritten(recipient.mailbox) if isinstance(recipient, Callbacks) else None,
            recipient if isinstance(recipient, Lease) else None,
        )
        self.put(job.request.id, ended)
        self._ended.move_to_end(job.request.id)
        while len(self._ended) > self._max_rollouts or self._is_old(self._oldest()):
            self._ended.popitem(last=False)

    def put(self, rollout_id: str, ended: Ended) -> None:
        """Correct what is remembered of a rollout."""
        self._ended[rollout_id] = tuple(ended)

    def get(self, rollout_id: str) -> Ended | None:
        """How a rollout ended, or None where nobody knows (any more)."""
        entry = self._ended.get(rollout_id)
        return None if entry is None or self._is_old(entry) else Ended(*entry)

    def _oldest(self) -> tuple[Any, ...]:
        return next(iter(self._ended.values()))

    def _is_old(self, entry: tuple[Any, ...]) -> bool:
        ended_at: float = entry[_ENDED_AT]
        return self._clock() - ended_at > self.retention_sec


_ENDED_AT = Ended._fields.index("ended_at")


def _unwritten(mailbox: Mailbox) -> Mailbox | None:
    is_kept = any(letter.body is not None and not letter.is_written for letter in mailbox)
    return mailbox if is_kept else None
