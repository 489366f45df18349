"""RolloutDriver: how a rollout is reached and brought to its end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from osmosis_ai.rollout.controller.budget import Budget, ModelLimits, Spending
from osmosis_ai.rollout.controller.model.base import ModelPrice
from osmosis_ai.rollout.flight.item import (
    DEADLINE_SLACK_SEC,
    FALLBACK_DEADLINE_SEC,
    Deadline,
    RolloutItem,
    deadline_sec,
    rollout_id_for,
    seed_for,
)
from osmosis_ai.rollout.types import ExecutionOutcome, ExecutionRequest

__all__ = [
    "DEADLINE_SLACK_SEC",
    "FALLBACK_DEADLINE_SEC",
    "Budget",
    "Deadline",
    "ModelLimits",
    "ModelPrice",
    "ModelSpec",
    "RolloutDriver",
    "RolloutItem",
    "Spending",
    "deadline_sec",
    "rollout_id_for",
    "seed_for",
]


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
    price: ModelPrice | None = None
    """Where it is not LiteLLM's to know, or another."""


class RolloutDriver(ABC):
    """Runs rollouts to their outcome; a failed rollout is a value, never an exception.

    Raises BackendError or ProtocolError only where no further rollout can succeed: a dead
    server, a refused key. Raises BudgetError for one that asked for more than its run may take.
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
