"""A grader judges one sample, and can say that there is nothing to judge by."""

from __future__ import annotations

from typing import Any

import pytest

from osmosis_ai.rollout.context import GraderContext
from osmosis_ai.rollout.grader import Grader, NoResult
from osmosis_ai.rollout.types import GraderConfig
from tests.rollout.programs import RewardOne


def test_a_grader_keeps_its_config() -> None:
    config = GraderConfig(name="x")
    assert RewardOne().config is None
    assert RewardOne(config).config is config


def test_a_grader_must_define_grade() -> None:
    class Nothing(Grader):
        pass

    with pytest.raises(TypeError, match="abstract"):
        Nothing()


async def test_the_base_class_grades_nothing() -> None:
    class CallsBase(Grader):
        async def grade(self, ctx: GraderContext) -> Any:
            return await super().grade(ctx)

    with pytest.raises(NotImplementedError):
        await CallsBase().grade(GraderContext())


def test_no_result_is_no_kind_of_value_error() -> None:
    """It must not be caught by a grader's own handling of bad values, and says why."""
    assert not issubclass(NoResult, ValueError)
    assert str(NoResult("the judge is down")) == "the judge is down"
