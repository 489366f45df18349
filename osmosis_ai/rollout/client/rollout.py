"""Rollout: one that was submitted, to be awaited or cancelled."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Generator
from typing import Any

from osmosis_ai.errors import OsmosisError
from osmosis_ai.rollout.flight.outcome import CANCELLED, ungraded, without_result
from osmosis_ai.rollout.raised import summarize_error
from osmosis_ai.rollout.types import (
    ExecutionOutcome,
    ExecutionRequest,
    RolloutStatus,
)

logger = logging.getLogger(__name__)


class Rollout:
    """A rollout under way; `await rollout` gives its ExecutionOutcome, as often as you like.

    Whoever stops waiting stops nothing: only `cancel` does, and the end of the client's block.
    """

    def __init__(
        self,
        request: ExecutionRequest,
        *,
        item: str,
        attempt: int,
        work: Callable[[Rollout], Coroutine[Any, Any, ExecutionOutcome]],
    ) -> None:
        self.request = request
        """What is asked for; its id is another one after a server was restarted in its middle."""
        self.item = item
        """What it is an attempt at."""
        self.attempt = attempt
        """Its index in its group."""
        self._is_told = False
        self._work = asyncio.create_task(work(self))
        self.task = asyncio.create_task(self._settle())
        """Ends with the outcome and never with an exception."""

    @property
    def id(self) -> str:
        """Its name on every server."""
        return self.request.id

    @property
    def is_done(self) -> bool:
        """Whether its outcome is there."""
        return self.task.done()

    def __await__(self) -> Generator[Any, None, ExecutionOutcome]:
        return asyncio.shield(self.task).__await__()

    async def cancel(self) -> ExecutionOutcome:
        """Tell it to stop, and return when it has, or when its server was given time enough.

        One that had ended keeps its outcome; any other has none that counts.
        """
        # Once: a second time would interrupt the waiting for its end.
        if not self._is_told:
            self._is_told = True
            self._work.cancel()
        return await self

    def __repr__(self) -> str:
        return f"Rollout({self.id!r}, item={self.item!r}, attempt={self.attempt})"

    async def _settle(self) -> ExecutionOutcome:
        """The outcome, or the value that stands for none."""
        await asyncio.wait({self._work})
        if self._work.cancelled():
            return _nothing(CANCELLED, status=RolloutStatus.CANCELLED)
        error = self._work.exception()
        if error is None:
            return self._work.result()
        if isinstance(error, OsmosisError):
            return _nothing(str(error))
        logger.error("rollout %s: the client failed", self.id, exc_info=error)
        return _nothing(f"the client failed: {summarize_error(error)}")


def _nothing(why: str, *, status: RolloutStatus = RolloutStatus.FAILURE) -> ExecutionOutcome:
    missing = without_result("workflow", why).model_copy(update={"status": status})
    return ExecutionOutcome(workflow=missing, grader=ungraded())
