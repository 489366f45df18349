"""Means, shares and their intervals: equal to other people's, and right as often as they say."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from osmosis_ai.eval.estimate import (
    LEAST_ROWS,
    Estimate,
    Rewards,
    estimate_mean,
    estimate_share,
    wilson_interval,
)
from osmosis_ai.eval.student import NORMAL_REACH, student_reach

HUGE = 1.7e308


def rewards_of(*rows: Sequence[float]) -> Rewards:
    rewards = Rewards()
    for row in rows:
        rewards.add_row(row)
    return rewards


def interval(estimate: Estimate) -> tuple[float, float]:
    assert estimate.low is not None
    assert estimate.high is not None
    return estimate.low, estimate.high


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 9, 10, 30, 99, 100, 101, 250, 10_000, 10**7])
def test_the_reach_is_the_quantile_of_students_t(freedom: int) -> None:
    assert student_reach(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=1e-9)


def test_the_reach_of_many_rows_is_that_of_the_normal_distribution() -> None:
    assert pytest.approx(stats.norm.ppf(0.975), rel=1e-15) == NORMAL_REACH
    assert student_reach(10**9) == pytest.approx(NORMAL_REACH, rel=1e-8)


def test_nothing_has_no_mean() -> None:
    """No result is never 0."""
    assert estimate_mean(rewards_of()) == estimate_share(rewards_of([])) == Estimate(None, 0)


def test_one_row_tells_nothing_about_other_rows() -> None:
    assert estimate_mean(rewards_of([0.0, 1.0])) == Estimate(0.5, 2, 1)
    assert estimate_share(rewards_of([0.0, 1.0])) == Estimate(0.5, 2, 1)


@pytest.mark.parametrize(("rows", "told"), [(LEAST_ROWS - 1, False), (LEAST_ROWS, True)])
def test_a_mean_of_few_rows_has_an_error_and_no_interval(rows: int, told: bool) -> None:
    """Two rows would have an interval from -5.9 to 6.9 for rewards between 0 and 1."""
    found = estimate_mean(rewards_of(*([float(row % 2)] for row in range(rows))))
    assert found.stderr
    assert (found.low is not None, found.high is not None) == (told, told)


def test_one_attempt_at_each_row_has_the_textbook_interval() -> None:
    values = np.random.default_rng(1).normal(size=12)
    found = estimate_mean(rewards_of(*([float(value)] for value in values)))
    assert found.stderr == pytest.approx(stats.sem(values))
    expected = stats.t.interval(0.95, len(values) - 1, values.mean(), stats.sem(values))
    assert interval(found) == pytest.approx(expected)


def test_as_many_attempts_at_each_row_are_their_mean() -> None:
    """With equal clusters the robust error is that of the rows' means."""
    values = np.random.default_rng(2).normal(size=(9, 4)) + np.arange(9)[:, None]
    found = estimate_mean(rewards_of(*values.tolist()))
    assert (found.over, found.rows) == (36, 9)
    assert found.stderr == pytest.approx(stats.sem(values.mean(axis=1)))
    assert found.stderr > 1.5 * stats.sem(values.ravel())


def test_unequal_rows_have_the_cluster_robust_error() -> None:
    """The sandwich of a regression on a constant, (X'X)^-1 (sum of X_g' u_g u_g' X_g) (X'X)^-1,

    times rows / (rows - 1), as statsmodels corrects it.
    """
    rows = [[0.0, 1.0, 1.0], [1.0], [0.5, 0.0], [0.25] * 5]
    values = np.concatenate([np.array(row) for row in rows])
    design = np.ones((len(values), 1))
    bread = np.linalg.inv(design.T @ design)
    off = [np.array(row) - values.mean() for row in rows]
    scores = [np.ones((1, len(one))) @ one[:, None] for one in off]
    meat = sum((score @ score.T for score in scores), start=np.zeros((1, 1)))
    expected = math.sqrt((bread @ meat @ bread)[0, 0] * len(rows) / (len(rows) - 1))
    assert estimate_mean(rewards_of(*rows)).stderr == pytest.approx(expected)


def test_rows_without_rewards_are_no_rows() -> None:
    assert estimate_mean(rewards_of([1.0], [], [0.0])).rows == 2


def test_equal_rewards_have_no_error() -> None:
    """The mean of tenths is not a tenth to the last bit, and must not look like spread."""
    assert estimate_mean(rewards_of(*[[0.1]] * 7)) == Estimate(0.1, 7, 7, 0.0, 0.1, 0.1)


@pytest.mark.parametrize(
    "rows",
    [
        [[HUGE]] * 3,
        [[HUGE], [-HUGE]],
        [[HUGE, HUGE], [HUGE]],
        [[1e200], [-1e200], [3.0]],
        [[1.2e154], [-1.2e154]] * 3,
    ],
)
def test_rewards_too_large_for_their_squares_cost_the_error_alone(rows: list[list[float]]) -> None:
    """A finite reward is a result, and every number of a summary is JSON."""
    found = estimate_mean(rewards_of(*rows))
    assert found.value is not None
    for number in (found.value, found.stderr, found.low, found.high):
        assert number is None or math.isfinite(number)


@pytest.mark.parametrize(("passed", "over"), [(0, 1), (1, 1), (0, 10), (10, 10), (3, 10), (65, 80)])
def test_one_attempt_at_each_row_has_wilsons_interval(passed: int, over: int) -> None:
    passes = rewards_of(*[[1.0]] * passed, *[[0.0]] * (over - passed))
    expected = stats.binomtest(passed, over).proportion_ci(0.95, method="wilson")
    assert interval(estimate_share(passes)) == pytest.approx((expected.low, expected.high))


def test_attempts_that_always_agree_count_as_one() -> None:
    """Eight copies of each row tell what the rows tell."""
    rows = [1.0, 1.0, 0.0, 1.0, 0.0, 1.0]
    low, high = interval(estimate_share(rewards_of(*([value] * 8 for value in rows))))
    share, reach = 4 / 6, student_reach(5)
    # The error has rows - 1 in it, so that five rows are what is left.
    assert (low, high) == pytest.approx(wilson_interval(share, 5, reach=reach))


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_rows_that_all_agree_with_each_other_count_as_rows(value: float) -> None:
    found = estimate_share(rewards_of(*[[value] * 4] * 10))
    assert interval(found) == pytest.approx(wilson_interval(value, 10, reach=student_reach(9)))
    assert value in interval(found)


def test_attempts_more_even_than_chance_count_as_no_more_than_they_are() -> None:
    found = estimate_share(rewards_of(*[[0.0, 1.0]] * 10))
    assert interval(found) == pytest.approx(wilson_interval(0.5, 20, reach=student_reach(9)))


@given(st.lists(st.lists(st.booleans(), max_size=4), max_size=12))
def test_the_interval_of_a_share_holds_it_and_stays_within_0_and_1(rows: list[list[bool]]) -> None:
    found = estimate_share(rewards_of(*([float(one) for one in row] for row in rows)))
    if found.low is not None and found.high is not None and found.value is not None:
        assert 0 <= found.low <= found.value <= found.high <= 1


@pytest.mark.parametrize(
    ("rows", "n", "alike"),
    [(40, 1, 1.0), (40, 4, 1.0), (150, 8, 0.3), (20, 4, 5.0)],
)
def test_the_intervals_hold_the_truth_as_often_as_they_say(rows: int, n: int, alike: float) -> None:
    """Rows differ in how hard they are, so attempts at one of them are alike.

    1,000 evaluations with a known truth: of 95 % intervals between 93 and 98 % hold it. Intervals
    that took attempts as independent would hold it far less often.
    """
    generator = np.random.default_rng(rows * n)
    truth, held_mean, held_share, naive = 0.7, 0, 0, 0
    evaluations = 1000
    for _ in range(evaluations):
        chances = generator.beta(truth * alike, (1 - truth) * alike, size=rows)
        passes = generator.random((rows, n)) < chances[:, None]
        rewards = rewards_of(*passes.astype(float).tolist())
        low, high = interval(estimate_mean(rewards))
        held_mean += low <= truth <= high
        low, high = interval(estimate_share(rewards))
        held_share += low <= truth <= high
        low, high = wilson_interval(float(passes.mean()), rows * n, reach=NORMAL_REACH)
        naive += low <= truth <= high
    assert 0.92 < held_mean / evaluations < 0.98
    assert 0.93 < held_share / evaluations < 0.985
    assert n == 1 or naive / evaluations < 0.92
