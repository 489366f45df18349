"""Budgets: how much of its model a rollout, and a whole run, may take."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spending:
    """What model calls took so far."""

    calls: int = 0
    tokens: int = 0
    cost_usd: float = 0.0
    """As far as prices are known."""

    def plus(self, more: Spending) -> Spending:
        """Both together."""
        return Spending(
            self.calls + more.calls, self.tokens + more.tokens, self.cost_usd + more.cost_usd
        )


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """The most there may be of each; None is unlimited.

    No call begins when a limit is reached. The call that reaches one is answered all the same.
    """

    max_model_calls: int | None = None
    max_tokens: int | None = None
    """Of prompts and completions together."""
    max_cost: float | None = None
    """US dollars."""

    def find_reached(self, spent: Spending) -> str | None:
        """The limit that lets no further call begin, as `name = value`; None where all do."""
        if self.max_model_calls is not None and spent.calls >= self.max_model_calls:
            return f"max_model_calls = {self.max_model_calls}"
        if self.max_tokens is not None and spent.tokens >= self.max_tokens:
            return f"max_tokens = {self.max_tokens}"
        if self.max_cost is not None and spent.cost_usd >= self.max_cost:
            return f"max_cost = {self.max_cost:g}"
        return None


@dataclass(frozen=True, slots=True)
class Budget:
    """The limits of each rollout and of a run, and what the run has spent before."""

    rollout: ModelLimits = ModelLimits()
    run: ModelLimits = ModelLimits()
    spent: Spending = Spending()


class RunMeter:
    """Counts the model calls of a run; lives in the listener's thread."""

    def __init__(self, budget: Budget) -> None:
        self.limits = budget.run
        self.rollout_limits = budget.rollout
        self.spent = budget.spent


class RolloutMeter:
    """Counts the model calls of one rollout, and those of its run with them."""

    def __init__(self, run: RunMeter) -> None:
        self._run = run
        self._spent = Spending()
        self.reached: str | None = None
        """The rollout's own limit that a call was refused for."""
        self.run_reached: str | None = None
        """The run's limit that a call was refused for."""

    def begin_call(self) -> str | None:
        """Count one more call; or say why there is none any more."""
        self.reached = self._run.rollout_limits.find_reached(self._spent)
        if self.reached is not None:
            return f"the rollout's budget is used up: {self.reached}"
        reached = self._run.limits.find_reached(self._run.spent)
        if reached is not None:
            self.run_reached = f"run_{reached}"
            return f"the run's budget is used up: {self.run_reached}"
        self._add(Spending(calls=1))
        return None

    def add_answer(self, *, tokens: int, cost_usd: float | None) -> None:
        """Count what an answer took."""
        self._add(Spending(tokens=tokens, cost_usd=cost_usd or 0.0))

    def _add(self, more: Spending) -> None:
        self._spent = self._spent.plus(more)
        self._run.spent = self._run.spent.plus(more)
