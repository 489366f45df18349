"""Rollouts without progress: being alive is not getting on, and a person wants to know of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator

from osmosis_ai.rollout.controller.endpoint import RolloutEndpoint

logger = logging.getLogger(__name__)

_LOOKS = 10
"""How often within the time that makes a stall."""


class StallWatch:
    """Names each rollout once that went so long without a model call, a chunk or an answer."""

    def __init__(self, stall_sec: float) -> None:
        self._stall_sec = stall_sec
        self._told: set[RolloutEndpoint] = set()

    def look(self, endpoints: Collection[RolloutEndpoint]) -> Iterator[str]:
        """A sentence for each that has stalled since the last look."""
        self._told.intersection_update(endpoints)
        for endpoint in endpoints:
            if endpoint.idle_sec >= self._stall_sec and endpoint not in self._told:
                self._told.add(endpoint)
                yield _describe(endpoint)


async def watch_stalls(
    endpoints: Callable[[], Collection[RolloutEndpoint]], *, stall_sec: float
) -> None:
    """Log what stalls among the open rollouts, until cancelled."""
    watch = StallWatch(stall_sec)
    while True:
        await asyncio.sleep(stall_sec / _LOOKS)
        for sentence in watch.look(endpoints()):
            logger.warning(sentence)


def _describe(endpoint: RolloutEndpoint) -> str:
    calls = endpoint.usage().calls
    where = f"in its model call {calls}" if endpoint.is_calling else f"after {calls} model calls"
    return (
        f"rollout {endpoint.rollout_id} (row {endpoint.row}, attempt {endpoint.attempt}) has made "
        f"no progress for {endpoint.idle_sec:.0f} s, {where}"
    )
