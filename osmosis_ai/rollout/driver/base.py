"""RolloutDriver: how a rollout is reached and brought to its end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from osmosis_ai.rollout.types import ExecutionOutcome, ExecutionRequest

DEADLINE_SLACK_SEC = 60.0
"""What a driver grants beyond the two deadlines of a request."""

FALLBACK_DEADLINE_SEC = 3600.0
"""How long a driver waits where a request does not set both deadlines."""

Deadline: TypeAlias = Callable[[ExecutionRequest], float]
"""Says after how many seconds from dispatch a driver cancels a rollout; `deadline_sec` is one."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Which model answers the policy calls of a run.

    `path` is `scripted:module:attr`, or with `base_url` the model name sent to that
    OpenAI-compatible server, or a LiteLLM name.
    """

    path: str
    base_url: str | None = None
    api_key: str | None = field(default=None, repr=False)
    params: Mapping[str, Any] = field(default_factory=dict)
    """Fields set on every request, over what the rollout sent."""
    max_retries: int = 0


@dataclass(frozen=True, slots=True)
class RolloutItem:
    """Which item of an evaluation a rollout is for; a scripted model's reply depends on it."""

    row: int
    attempt: int
    seed: int


class RolloutDriver(ABC):
    """Runs rollouts to their outcome; a failed rollout is a value, never an exception.

    Raises BackendError or ProtocolError only where no further rollout can succeed: a dead
    server, a refused key.
    """

    @abstractmethod
    async def run(
        self, request: ExecutionRequest, *, item: RolloutItem | None = None
    ) -> ExecutionOutcome:
        """Run one rollout; enforces the deadline of the request and cancels past it."""

    async def probe(self) -> None:
        """Ask the model one thing; raises ModelError where it does not answer as it should."""

    @property
    @abstractmethod
    def max_in_flight(self) -> int | None:
        """The most rollouts worth dispatching at once; None is unlimited."""

    @property
    @abstractmethod
    def description(self) -> str:
        """One line for the run header: which driver, and what it drives."""


def deadline_sec(request: ExecutionRequest) -> float:
    """Seconds from dispatch after which a driver cancels a rollout."""
    agent, grader = request.agent_timeout_sec, request.grader_timeout_sec
    if agent is None or grader is None or agent <= 0 or grader <= 0:
        return FALLBACK_DEADLINE_SEC
    return agent + grader + DEADLINE_SLACK_SEC
