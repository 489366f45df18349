"""What became of the rollouts that are over, for a while and so many of them."""

from __future__ import annotations

import time
from collections.abc import Callable

from osmosis_ai.rollout.server.recipient import Ended

RETENTION_SEC = 900.0
MAX_ROLLOUTS = 10_000


class History:
    """Ended rollouts by id, the oldest first to be forgotten."""

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
        self._ended: dict[str, tuple[float, Ended]] = {}

    def add(self, rollout_id: str, ended: Ended) -> None:
        """Remember how a rollout ended."""
        self._ended[rollout_id] = (self._clock(), ended)
        self._forget()

    def get(self, rollout_id: str) -> Ended | None:
        """How a rollout ended, or None where nobody knows (any more)."""
        self._forget()
        entry = self._ended.get(rollout_id)
        return None if entry is None else entry[1]

    def _forget(self) -> None:
        oldest_kept = self._clock() - self._retention_sec
        while self._ended:
            rollout_id, (ended_at, _) = next(iter(self._ended.items()))
            if ended_at >= oldest_kept and len(self._ended) <= self._max_rollouts:
                return
            del self._ended[rollout_id]
