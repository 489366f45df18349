"""Clause 3.5: a reward is a finite float, or there is none."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.rollout.types import RolloutErrorCategory, RolloutStatus
from osmosis_ai.testing.contract.base import BackendClauses
from osmosis_ai.testing.contract_workflows import JudgeConfig

GOOD_REWARDS: dict[str, tuple[Any, float]] = {
    "float": (0.25, 0.25),
    "integer": (-3, -3.0),
    "boolean": (True, 1.0),
    "text": (" 0.5 ", 0.5),
    "decimal": (Decimal("0.125"), 0.125),
    "fraction": (Fraction(1, 4), 0.25),
    "zero": (0, 0.0),
}

BAD_REWARDS: dict[str, Any] = {
    "nan": float("nan"),
    "infinity": float("inf"),
    "nan as text": "nan",
    "words": "good",
    "list": [1.0],
    "dict": {},
}


class RewardClauses(BackendClauses):
    """What coerces to a finite float is a reward; everything else fails the grade."""

    @pytest.mark.parametrize("act", ["set_reward", "assign"])
    @pytest.mark.parametrize("kind", GOOD_REWARDS)
    async def test_3_5_a_number_becomes_a_float(self, tmp_path: Path, kind: str, act: str) -> None:
        """However the grader wrote it, the answer holds a plain float."""
        given, expected = GOOD_REWARDS[kind]
        async with self.bench(tmp_path, grader_config=JudgeConfig(act=act, reward=given)) as bench:
            _, grade = await bench.grade(bench.request())
        assert grade.status is RolloutStatus.SUCCESS, grade.err_message
        assert grade.sample is not None
        assert type(grade.sample.reward) is float
        assert grade.sample.reward == expected

    @pytest.mark.parametrize("kind", ["float64", "float32", "0-d array"])
    async def test_3_5_a_numpy_scalar_becomes_a_float(self, tmp_path: Path, kind: str) -> None:
        """Metrics libraries give these, and JSON does not take them."""
        numpy = pytest.importorskip("numpy", reason="NumPy is not installed")
        made = {"float64": numpy.float64, "float32": numpy.float32, "0-d array": numpy.array}
        config = JudgeConfig(reward=made[kind](0.5))
        async with self.bench(tmp_path, grader_config=config) as bench:
            _, grade = await bench.grade(bench.request())
        assert grade.status is RolloutStatus.SUCCESS, grade.err_message
        assert grade.sample is not None
        assert type(grade.sample.reward) is float
        assert grade.sample.reward == 0.5

    @pytest.mark.parametrize("act", ["set_reward", "assign"])
    @pytest.mark.parametrize("kind", BAD_REWARDS)
    async def test_3_5_what_is_no_finite_number_fails_the_grade(
        self, tmp_path: Path, kind: str, act: str
    ) -> None:
        """It is refused where it is given, and never becomes a number on the way."""
        config = JudgeConfig(act=act, reward=BAD_REWARDS[kind])
        async with self.bench(tmp_path, grader_config=config) as bench:
            _, grade = await bench.grade(bench.request())
        assert grade.status is RolloutStatus.FAILURE
        assert grade.err_category is RolloutErrorCategory.VALIDATION_ERROR
        assert grade.sample is not None
        assert grade.sample.reward is None

    @pytest.mark.parametrize("act", ["nothing", "remove"])
    async def test_3_5_a_missing_reward_is_never_zero(self, tmp_path: Path, act: str) -> None:
        """No result is not 0: a mean over made-up zeros is wrong without a sign of it."""
        async with self.bench(tmp_path, grader_config=JudgeConfig(act=act)) as bench:
            workflow, grade = await bench.grade(bench.request())
        for answer in (workflow, grade):
            assert answer.sample is not None
            assert answer.sample.reward is None, f"the reward became {answer.sample.reward}"

    @pytest.mark.parametrize(
        ("act", "status"),
        [
            ("reward_and_raise", RolloutStatus.FAILURE),
            ("reward_and_remove", RolloutStatus.SUCCESS),
        ],
    )
    async def test_3_5_the_answer_keeps_the_reward_the_grader_gave(
        self, tmp_path: Path, act: str, status: RolloutStatus
    ) -> None:
        """Whether it counts is decided on the wire; the archive is made of this answer."""
        async with self.bench(tmp_path, grader_config=JudgeConfig(act=act, reward=0.75)) as bench:
            _, grade = await bench.grade(bench.request())
        assert grade.status is status
        assert grade.sample is not None
        assert grade.sample.reward == 0.75
