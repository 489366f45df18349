"""Grader: the reward a user writes, and the way to say that there is none to give."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from osmosis_ai.rollout.context import GraderContext
from osmosis_ai.rollout.types import GraderConfig


class NoResult(Exception):
    """Raise it where a rollout cannot be judged for reasons outside the agent.

    The rollout then counts as `no_result` instead of failed: a judge that does not answer, a
    sandbox that is gone. `str()` of it says why.
    """


class Grader(ABC):
    """Base of every grader: subclass it and write `async def grade(self, ctx)`.

    One instance judges one execution.
    """

    def __init__(self, config: GraderConfig | None = None) -> None:
        self.config = config

    @abstractmethod
    async def grade(self, ctx: GraderContext) -> Any:
        """Judge `ctx.sample` and give it a reward with `ctx.set_reward`.

        The return value is ignored. Leave a reward, or set `ctx.sample.remove_sample = True` to
        discard the sample; anything else fails the grade.
        """
        raise NotImplementedError
