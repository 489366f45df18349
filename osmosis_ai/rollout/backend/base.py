"""ExecutionBackend: where a rollout runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

from osmosis_ai.rollout.types import ExecutionRequest, ExecutionResult, RolloutStatus

ResultCallback: TypeAlias = Callable[[ExecutionResult], Awaitable[None]]
"""Takes one answer of a rollout; the backend awaits it before it goes on."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """How many rollouts a backend holds; `max` None is unlimited.

    `running` counts slots in use, those of rollouts that are stopping included.
    """

    max: int | None
    running: int
    queued: int
    stopping: int = 0


@dataclass(frozen=True, slots=True)
class RolloutState:
    """Where one rollout is; `stopping` while cancelled user code has not ended yet."""

    status: RolloutStatus
    stopping: bool = False
    age_sec: float = field(default=0.0, compare=False)
    """How long it has been queued, running or grading: whichever it is."""


class CancelDisposition(StrEnum):
    """What a cancel did to one rollout."""

    CANCELLED_QUEUED = "cancelled_queued"
    CANCELLED_RUNNING = "cancelled_running"
    NOT_FOUND = "not_found"


class ExecutionBackend(ABC):
    """Base of every backend; `osmosis_ai.testing.BackendContract` says what one must do.

    A rollout has at most one workflow answer and, where the caller asked for it, one grader
    answer, in this order. Cancelling ends with a `cancelled` workflow answer (unless one was given
    before) and a grader failure without sample.
    """

    @abstractmethod
    async def execute(
        self,
        request: ExecutionRequest,
        on_workflow_complete: ResultCallback,
        on_grader_complete: ResultCallback | None = None,
    ) -> None:
        """Run one rollout; a grader callback asks for grading. Returns when all has ended."""

    @property
    def capture_final_result(self) -> bool:
        """Whether the grader's answer is wanted even where no controller asked for it."""
        return False

    def has_capacity(self) -> bool:
        """Whether one more rollout would be taken, be it into the queue."""
        return True

    def capacity(self) -> Capacity | None:
        """How full the backend is, or None where it does not count."""
        return None

    def rollout_status(self, rollout_id: str) -> RolloutState | None:
        """Where a rollout is, or None where it is not here (any more)."""
        return None

    def rollout_states(self) -> dict[str, RolloutState]:
        """Where every rollout is that is here; empty where the backend does not tell."""
        return {}

    async def cancel_rollouts(
        self,
        *,
        ids: Iterable[str] | None = None,
        prefix: str | None = None,
        all: bool = False,
    ) -> dict[str, CancelDisposition]:
        """Ask rollouts to stop, by exactly one selector; say what that did to each.

        Returns at once: a rollout has stopped when `execute` has returned.
        """
        return {}

    def health(self) -> dict[str, Any]:
        """What `/health` says of this backend."""
        return {"status": "ok"}

    async def shutdown(self) -> None:
        """Release what the backend holds; no rollout runs any more."""
