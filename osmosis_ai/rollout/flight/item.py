"""What a rollout is for, what it is called, and how much time it has."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from osmosis_ai.rollout.types import ExecutionRequest

DEADLINE_SLACK_SEC = 60.0
"""What a driver grants beyond the two deadlines of a request."""

FALLBACK_DEADLINE_SEC = 3600.0
"""How long a driver waits where a request does not set both deadlines."""

Deadline: TypeAlias = Callable[[ExecutionRequest], float]
"""Says after how many seconds from dispatch a driver cancels a rollout; `deadline_sec` is one."""


@dataclass(frozen=True, slots=True)
class RolloutItem:
    """Which item of an evaluation a rollout is for; a scripted model's reply depends on it."""

    row: int
    attempt: int
    seed: int


def deadline_sec(request: ExecutionRequest) -> float:
    """Seconds from dispatch after which a driver cancels a rollout."""
    agent, grader = request.agent_timeout_sec, request.grader_timeout_sec
    if agent is None or grader is None or agent <= 0 or grader <= 0:
        return FALLBACK_DEADLINE_SEC
    return agent + grader + DEADLINE_SLACK_SEC


def rollout_id_for(*, run_id: str, item: str, attempt: int, try_index: int) -> str:
    """The name of one rollout: a restarted controller finds what it started before."""
    return digest(f"{run_id}/{item}/{attempt}/{try_index}")[:32]


def seed_for(*, attempt: int, item: str) -> int:
    """Follows from the content alone, not from the run."""
    return int(digest(f"{item}/{attempt}")[:8], 16)


def digest(text: str) -> str:
    """The same for the same text, in every process."""
    return hashlib.sha256(text.encode()).hexdigest()
