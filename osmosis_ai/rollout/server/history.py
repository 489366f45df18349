"""What became of the rollouts that are over, for a while and so many of them."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from osmosis_ai.rollout.server.delivery import Mailbox
from osmosis_ai.rollout.server.job import Job, Outcome

RETENTION_SEC = 900.0
MAX_ROLLOUTS = 10_000


@dataclass(frozen=True, slots=True)
class Ended:
    """One rollout that is over; its mailbox keeps what did not arrive."""

    digest: bytes
    mailbox: Mailbox
    outcome: Outcome
    ended_at: float


class History:
    """Ended rollouts by id; the oldest are the first to be forgotten."""

    def __init__(
        self,
        *,
        retention_sec: float = RETENTION_SEC,
        max_rollouts: int = MAX_ROLLOUTS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._retention_sec = retention_sec
        self._max_rollouts = max_rollouts
        self._clock = clock
        # No plain dict: finding its first entry takes ever longer where the first is removed.
        self.ended: OrderedDict[str, Ended] = OrderedDict()

    def add(self, job: Job) -> None:
        """Remember how a rollout ended."""
        ended = Ended(job.digest, job.mailbox, job.outcome, self._clock())
        self.ended[job.request.id] = ended
        self.ended.move_to_end(job.request.id)
        while len(self.ended) > self._max_rollouts or self._is_old(next(iter(self.ended.values()))):
            self.ended.popitem(last=False)

    def get(self, rollout_id: str) -> Ended | None:
        """How a rollout ended, or None where nobody knows (any more)."""
        ended = self.ended.get(rollout_id)
        return None if ended is None or self._is_old(ended) else ended

    def _is_old(self, ended: Ended) -> bool:
        return self._clock() - ended.ended_at > self._retention_sec
