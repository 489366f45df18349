"""DirectPlace: a backend without anything in between."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from osmosis_ai.rollout.backend.base import Capacity, ExecutionBackend
from osmosis_ai.rollout.context import RolloutContext
from osmosis_ai.rollout.types import (
    ExecutionOutcome,
    ExecutionRequest,
    ExecutionResult,
    RolloutStatus,
)
from osmosis_ai.testing.lifecycle.place import Place


class DirectPlace(Place):
    """Calls `backend` as a driver in the same process does."""

    def __init__(self, backend: ExecutionBackend, *, root: Path, patience_sec: float) -> None:
        super().__init__(patience_sec=patience_sec)
        self._backend = backend
        self._root = root

    async def start(self, request: ExecutionRequest) -> None:
        self._await(request.id, self._run(request))
        await asyncio.sleep(0)  # the task's first step brings the rollout to the backend

    async def status(self, rollout_id: str) -> RolloutStatus:
        state = self._backend.rollout_status(rollout_id)
        return RolloutStatus.UNKNOWN if state is None else state.status

    async def cancel(self, **selector: Any) -> dict[str, str]:
        said = await self._backend.cancel_rollouts(**selector)
        return {rollout_id: str(disposition) for rollout_id, disposition in said.items()}

    async def capacity(self) -> Capacity:
        capacity = self._backend.capacity()
        assert capacity is not None, "capacity() says how full the backend is, never None"
        return capacity

    async def close(self) -> None:
        await super().close()
        await self._backend.shutdown()

    async def _run(self, request: ExecutionRequest) -> ExecutionOutcome:
        answers: list[ExecutionResult] = []

        async def take(result: ExecutionResult) -> None:
            answers.append(result)

        context = RolloutContext(
            chat_completions_url="http://127.0.0.1:9/v1",
            rollout_id=request.id,
            artifact_root=self._root,
        )
        with context:
            await self._backend.execute(request, take, take)
        workflow, grader = answers
        return ExecutionOutcome(workflow=workflow, grader=grader)
