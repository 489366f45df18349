"""Place: where rollouts live, seen in the same way however they are reached."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from typing import Any

from osmosis_ai.rollout.backend.base import Capacity
from osmosis_ai.rollout.types import ExecutionOutcome, ExecutionRequest, RolloutStatus
from osmosis_ai.testing.stage import within


class Refused(Exception):
    """The place did not take a rollout; `status` is the one of HTTP, and `retry_after` its word."""

    def __init__(self, status: int, retry_after: str | None = None) -> None:
        super().__init__(f"refused with {status}")
        self.status = status
        self.retry_after = retry_after


class Place(ABC):
    """Takes rollouts and says of them what a controller can know."""

    def __init__(self, *, patience_sec: float) -> None:
        self._patience_sec = patience_sec
        self._waiting: dict[str, asyncio.Task[ExecutionOutcome]] = {}

    @abstractmethod
    async def start(self, request: ExecutionRequest) -> None:
        """Have a rollout run, to its grade; Refused where it is not taken."""

    @abstractmethod
    async def status(self, rollout_id: str) -> RolloutStatus:
        """Where a rollout is; UNKNOWN where nobody knows it, or not any more."""

    @abstractmethod
    async def cancel(self, **selector: Any) -> dict[str, str]:
        """Cancel by `ids`, `prefix` or `all`; what that did to each."""

    @abstractmethod
    async def capacity(self) -> Capacity:
        """How full it is."""

    async def drain(self) -> None:
        """Let it come to its end; returns when it has."""
        raise NotImplementedError("this place ends with the test")

    async def outcome(self, rollout_id: str) -> ExecutionOutcome:
        """What came of a rollout that was started; waits for its last answer."""
        waiting = asyncio.shield(self._waiting[rollout_id])
        return await within(self._patience_sec, waiting, what=f"rollout {rollout_id!r} ends")

    async def close(self) -> None:
        """End what a failed test left behind."""
        owed = [task for task in self._waiting.values() if not task.done()]
        for task in owed:
            task.cancel()
        if owed:
            await asyncio.wait(owed, timeout=self._patience_sec)

    def _await(self, rollout_id: str, work: Coroutine[Any, Any, ExecutionOutcome]) -> None:
        """Let the answers of a rollout be waited for in a task of their own."""
        self._waiting[rollout_id] = asyncio.create_task(work)
