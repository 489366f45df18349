"""Vitals: what shows whether a server gets on, and not only that it is alive."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from osmosis_ai.rollout.backend.base import ExecutionBackend, RolloutState
from osmosis_ai.rollout.server.delivery import Delivery
from osmosis_ai.rollout.types import RolloutStatus

logger = logging.getLogger(__name__)

LOOK_EVERY_SEC = 1.0
LAG_MEMORY_SEC = 60.0
"""How long a late turn of the event loop is remembered."""


class Vitals:
    """The ages of what a server has in hand, and how late its event loop is.

    A rollout that has been queued, running or grading for `stall_sec` is named in the log, once.
    """

    def __init__(
        self,
        backend: ExecutionBackend,
        delivery: Delivery,
        *,
        stall_sec: float | None = None,
        look_every_sec: float = LOOK_EVERY_SEC,
    ) -> None:
        self._backend = backend
        self._delivery = delivery
        self._stall_sec = stall_sec
        self._named: set[tuple[str, RolloutStatus]] = set()
        self._look_every_sec = look_every_sec
        self._lags: deque[float] = deque([0.0], maxlen=round(LAG_MEMORY_SEC / look_every_sec))

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Look again and again until the block ends."""
        task = asyncio.get_running_loop().create_task(self._watch())
        try:
            yield
        finally:
            task.cancel()

    def look(self, *, late_sec: float) -> None:
        """Take down how late this look is, and name what makes no progress."""
        self._lags.append(max(0.0, late_sec))
        if self._stall_sec is not None:
            self._name_stalled(self._backend.rollout_states(), self._stall_sec)

    def report(self) -> dict[str, float | None]:
        """What `/health` says: seconds, None where there is nothing of the kind."""
        states = self._backend.rollout_states().values()
        queued = [state.age_sec for state in states if state.status is RolloutStatus.QUEUED]
        running = [state.age_sec for state in states if state.status is not RolloutStatus.QUEUED]
        return {
            "oldest_queued_sec": max(queued, default=None),
            "oldest_running_sec": max(running, default=None),
            "oldest_undelivered_sec": self._delivery.oldest_sec,
            "loop_lag_sec": max(self._lags),
        }

    async def _watch(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            due = clock() + self._look_every_sec
            await asyncio.sleep(self._look_every_sec)
            self.look(late_sec=clock() - due)

    def _name_stalled(self, states: Mapping[str, RolloutState], stall_sec: float) -> None:
        stalled = {
            (rollout_id, state.status): state.age_sec
            for rollout_id, state in states.items()
            if state.age_sec >= stall_sec
        }
        for (rollout_id, status), age_sec in stalled.items():
            if (rollout_id, status) not in self._named:
                logger.warning(
                    "rollout %s: %s for %.0f s and no further", rollout_id, status, age_sec
                )
        self._named = set(stalled)
