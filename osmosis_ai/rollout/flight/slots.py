"""Slots: so many rollouts at once, each slot free when its rollout has really ended."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Hashable

from osmosis_ai.errors import BackendError


class Slots:
    """Hands out slots, first come first served; None is unlimited.

    A rollout that does not stop keeps its slot. When all slots are held by such rollouts, taking
    one raises BackendError instead of waiting for ever.
    """

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._taken = 0
        self._stuck: set[Hashable] = set()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._shut: Exception | None = None

    async def take(self) -> None:
        """Wait for a free slot; raises BackendError where there is no hope for one."""
        if self._is_hopeless:
            raise self._hopeless()
        if self._limit is None or self._taken < self._limit:
            self._taken += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self.release()  # the slot was handed over in the same moment
            raise

    def release(self, holder: Hashable = None) -> None:
        """Hand the slot to the next in line, or free it."""
        self._stuck.discard(holder)
        has_room = self._limit is None or self._taken <= self._limit
        while self._waiting and has_room:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._taken -= 1

    def resize(self, limit: int | None) -> None:
        """Have so many slots from now on; those in use stay so until they are released."""
        self._limit = limit
        while self._waiting and (limit is None or self._taken < limit):
            turn = self._waiting.popleft()
            if not turn.done():
                self._taken += 1
                turn.set_result(None)
        self._tell_if_hopeless()

    def mark_stuck(self, holder: Hashable) -> None:
        """Say that a holder was asked to stop and did not."""
        self._stuck.add(holder)
        self._tell_if_hopeless()

    def shut(self, error: Exception) -> None:
        """Hand out no slot any more, and say why."""
        self._shut = error
        self._tell_if_hopeless()

    def _tell_if_hopeless(self) -> None:
        while self._waiting and self._is_hopeless:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_exception(self._hopeless())

    @property
    def _is_hopeless(self) -> bool:
        all_stuck = self._limit is not None and len(self._stuck) >= self._limit
        return all_stuck or self._shut is not None

    def _hopeless(self) -> BackendError:
        if self._shut is not None:
            return BackendError(str(self._shut))
        return BackendError(
            f"all {self._limit} slots are held by rollouts that were told to stop and did not: "
            "look in the workflow or grader for code that swallows CancelledError or never returns"
        )
