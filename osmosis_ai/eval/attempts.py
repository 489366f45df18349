"""What several attempts at the same row tell: chances with k of them, and whether they differ."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from osmosis_ai.eval.estimate import Rewards, estimate_mean, mean, squared_distance


@dataclass(frozen=True, slots=True)
class Chance:
    """A chance with k attempts at a row, over the rows that can tell."""

    k: int
    value: float | None
    rows: int
    """Rows with at least k attempts that count."""
    stderr: float | None = None
    """Standard error over the rows; None with fewer than two."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """How the attempts at one row differ, over the rows that have two which count."""

    rows: int
    variance: float | None
    """Mean of the rows' own variances of the reward."""
    agreeing: int
    """Rows whose attempts all have the same reward: nothing for a policy to learn from."""
    share: float | None
    """Of the rows."""


def estimate_pass_at_k(rows: Iterable[tuple[int, int]], k: int) -> Chance:
    """That at least one of k attempts passes, without bias, from (passed, counted) of each row."""
    return _over_rows(rows, k, lambda passed, counted: 1.0 - _all(counted - passed, counted, k))


def estimate_pass_hat_k(rows: Iterable[tuple[int, int]], k: int) -> Chance:
    """That all of k attempts pass, without bias, from (passed, counted) of each row."""
    return _over_rows(rows, k, lambda passed, counted: _all(passed, counted, k))


def measure_agreement(rewards: Rewards) -> Agreement:
    """How alike the attempts at a row are."""
    variances, agreeing = array("d"), 0
    for row in rewards.by_row():
        if len(row) < 2:
            continue
        alike = min(row) == max(row)
        agreeing += alike
        variances.append(0.0 if alike else _variance(row))
    variance, rows = mean(variances), len(variances)
    finite = variance is not None and math.isfinite(variance)
    return Agreement(
        rows, variance if finite else None, agreeing, agreeing / rows if rows else None
    )


def _variance(row: Iterable[float]) -> float:
    values = list(row)
    return squared_distance(values, mean(values) or 0.0) / (len(values) - 1)


def _all(good: int, counted: int, k: int) -> float:
    """The share of the ways to draw k of the attempts that draw good ones alone."""
    return math.comb(good, k) / math.comb(counted, k)


def _over_rows(
    rows: Iterable[tuple[int, int]], k: int, chance: Callable[[int, int], float]
) -> Chance:
    chances = Rewards()
    for passed, counted in rows:
        if counted >= k:
            chances.add_row([chance(passed, counted)])
    found = estimate_mean(chances)
    return Chance(k, found.value, found.rows, found.stderr)
