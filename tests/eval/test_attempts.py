"""Chances with k attempts, counted against every way to draw them."""

from __future__ import annotations

from itertools import combinations
from math import isfinite

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from osmosis_ai.eval.attempts import (
    Agreement,
    Chance,
    estimate_pass_at_k,
    estimate_pass_hat_k,
    measure_agreement,
)
from osmosis_ai.eval.estimate import Rewards


@given(
    attempts=st.lists(st.booleans(), min_size=1, max_size=9),
    k=st.integers(min_value=1, max_value=9),
)
def test_both_are_shares_of_the_ways_to_draw_k_attempts(attempts: list[bool], k: int) -> None:
    row = [(sum(attempts), len(attempts))]
    some, every = estimate_pass_at_k(row, k), estimate_pass_hat_k(row, k)
    if len(attempts) < k:
        assert some == every == Chance(k, None, 0)
        return
    draws = list(combinations(attempts, k))
    assert some.value == pytest.approx(sum(map(any, draws)) / len(draws))
    assert every.value == pytest.approx(sum(map(all, draws)) / len(draws))


def test_they_are_hypergeometric_over_rows() -> None:
    rows = [(3, 8), (0, 8), (8, 8), (5, 6)]
    none = [stats.hypergeom.pmf(0, counted, passed, 4) for passed, counted in rows]
    every = [stats.hypergeom.pmf(4, counted, passed, 4) for passed, counted in rows]
    found = estimate_pass_at_k(rows, 4)
    assert found.value == pytest.approx(1 - np.mean(none))
    assert found.stderr == pytest.approx(stats.sem(none))
    assert estimate_pass_hat_k(rows, 4).value == pytest.approx(np.mean(every))


def test_they_have_no_bias() -> None:
    """1 - (1 - p)^k with p from so few attempts would be too low: it is the usual mistake."""
    generator, chance, n, k = np.random.default_rng(3), 0.3, 4, 3
    passed = generator.binomial(n, chance, size=20_000)
    rows = [(int(count), n) for count in passed]
    some, every = estimate_pass_at_k(rows, k), estimate_pass_hat_k(rows, k)
    assert some.value == pytest.approx(1 - (1 - chance) ** k, abs=0.006)
    assert every.value == pytest.approx(chance**k, abs=0.006)
    assert np.mean(1 - (1 - passed / n) ** k) < 1 - (1 - chance) ** k - 0.05


def test_agreement_counts_rows_that_can_disagree() -> None:
    rewards = Rewards()
    rows = [[0.1, 0.1, 0.1], [0.0, 1.0, 0.5], [0.3]]
    for row in rows:
        rewards.add_row(row)
    expected = np.var(rows[1], ddof=1) / 2
    assert measure_agreement(rewards) == Agreement(2, pytest.approx(expected), 1, 0.5)


def test_a_variance_too_large_for_a_number_is_none() -> None:
    rewards = Rewards()
    rewards.add_row([1.7e308, -1.7e308])
    found = measure_agreement(rewards)
    assert (found.rows, found.variance, found.agreeing) == (1, None, 0)
    assert isfinite(found.share or 0.0)
