"""Backends that misbehave, one way each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from osmosis_ai.rollout.backend.base import (
    CancelDisposition,
    Capacity,
    ExecutionBackend,
    ResultCallback,
)
from osmosis_ai.rollout.types import (
    ExecutionRequest,
    ExecutionResult,
    RolloutSample,
    RolloutStatus,
)

Play: TypeAlias = Callable[[ResultCallback, ResultCallback], Awaitable[None]]
"""What a backend does with the two callbacks of a rollout."""


class PlayingBackend(ExecutionBackend):
    """Runs a function instead of a rollout; does not know how to cancel."""

    def __init__(self, play: Play, *, limit: int | None = None) -> None:
        self._play = play
        self._limit = limit

    async def execute(
        self,
        request: ExecutionRequest,
        on_workflow_complete: ResultCallback,
        on_grader_complete: ResultCallback | None = None,
    ) -> None:
        assert on_grader_complete is not None
        await self._play(on_workflow_complete, on_grader_complete)

    def capacity(self) -> Capacity | None:
        return None if self._limit is None else Capacity(max=self._limit, running=0, queued=0)


class ClaimingBackend(PlayingBackend):
    """Says that it cancels, and does not."""

    async def cancel_rollouts(
        self, *, ids: object = None, prefix: str | None = None, all: bool = False
    ) -> dict[str, CancelDisposition]:
        assert isinstance(ids, list)
        return dict.fromkeys(ids, CancelDisposition.CANCELLED_RUNNING)


def succeeded(reward: float | None = None) -> ExecutionResult:
    """A success with a sample."""
    sample = RolloutSample(messages=[{"role": "assistant", "content": "42"}], reward=reward)
    return ExecutionResult(status=RolloutStatus.SUCCESS, sample=sample)
