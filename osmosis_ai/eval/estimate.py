"""A mean and a share with how far they can be off, rows being what was drawn by chance."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from osmosis_ai.eval.student import NORMAL_REACH, student_reach

LEAST_ROWS = 5
"""Fewer give a mean no interval: it would rest on their being normal, which so few cannot show."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number, what it is out of, and how far it can be off; None where that cannot be told."""

    value: float | None
    over: int
    """Rollouts that count."""
    rows: int = 0
    """Rows they belong to."""
    stderr: float | None = None
    """Standard error, clustered by row; None with fewer than two rows."""
    low: float | None = None
    """Lower end of the 95 % interval; None where rows are too few for one."""
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Rewards:
    """The rewards that count, row after row, eight bytes each."""

    values: array[float] = field(default_factory=lambda: array("d"))
    counts: array[int] = field(default_factory=lambda: array("i"))
    """How many of the values each row has; rows without any are left out."""

    def add_row(self, rewards: Iterable[float]) -> None:
        """Take in the rewards of one more row."""
        before = len(self.values)
        self.values.extend(rewards)
        if len(self.values) > before:
            self.counts.append(len(self.values) - before)

    def by_row(self) -> Iterator[Sequence[float]]:
        """The rewards of each row."""
        start = 0
        for count in self.counts:
            yield self.values[start : start + count]
            start += count

    def passing(self, threshold: float) -> Rewards:
        """1 for each that reaches the threshold, else 0."""
        return Rewards(array("d", (value >= threshold for value in self.values)), self.counts)


def estimate_mean(rewards: Rewards) -> Estimate:
    """The mean over rollouts; attempts at one row are alike, so rows alone count as chance."""
    over, rows = len(rewards.values), len(rewards.counts)
    value = mean(rewards.values)
    error = None if value is None else _clustered_error(rewards, value)
    if value is None or error is None or rows < LEAST_ROWS:
        return Estimate(value, over, rows, error)
    reach = student_reach(rows - 1) * error
    return Estimate(value, over, rows, error, _finite(value - reach), _finite(value + reach))


def estimate_share(passes: Rewards) -> Estimate:
    """The mean of zeros and ones, with an interval that stays between 0 and 1.

    Wilson's where each row has one attempt. Otherwise Wilson's too, for the number of independent
    rollouts that would have this standard error, and as wide as so few rows ask for.
    """
    found = estimate_mean(passes)
    share = found.value
    if share is None or (found.rows < 2 and found.over > 1):
        return found
    if found.over == found.rows:
        low, high = wilson_interval(share, found.over, reach=NORMAL_REACH)
    else:
        reach = student_reach(found.rows - 1)
        low, high = wilson_interval(share, _independent(found, share), reach=reach)
    return Estimate(share, found.over, found.rows, found.stderr, low, high)


def wilson_interval(share: float, over: float, *, reach: float) -> tuple[float, float]:
    """The shares that would not be rejected by what was seen, `reach` standard errors away."""
    shrink = reach * reach / over
    centre = (share + shrink / 2) / (1 + shrink)
    half = reach * math.sqrt((share * (1 - share) + shrink / 4) / over) / (1 + shrink)
    # The ends of a share of 0 or 1 are these to the last bit.
    low = 0.0 if share == 0 else max(0.0, centre - half)
    return low, 1.0 if share == 1 else min(1.0, centre + half)


def mean(values: Sequence[float]) -> float | None:
    """None where there are no values."""
    if not values:
        return None
    try:
        # fsum rounds once, so the mean is the same to the last bit whatever the order.
        return math.fsum(values) / len(values)
    except OverflowError:
        return math.fsum(value / len(values) for value in values)


def squared_distance(values: Iterable[float], centre: float) -> float:
    """The sum of squares around a centre; infinite where no number is large enough."""
    try:
        return math.fsum((value - centre) * (value - centre) for value in values)
    except OverflowError:
        return math.inf


def _independent(found: Estimate, share: float) -> float:
    """How many rollouts of rows of their own would tell as much."""
    if share in (0, 1):
        return found.rows  # nothing tells how alike the attempts at a row are: wholly, perhaps
    if not found.stderr:
        return found.over
    return min(share * (1 - share) / found.stderr**2, found.over)


def _clustered_error(rewards: Rewards, centre: float) -> float | None:
    rows = len(rewards.counts)
    if rows < 2:
        return None
    try:
        squares = math.fsum(off * off for off in _distances(rewards, centre))
    except OverflowError:
        return None
    return _finite(math.sqrt(squares * rows / (rows - 1)) / len(rewards.values))


def _distances(rewards: Rewards, centre: float) -> Iterator[float]:
    """How far each row is from the centre, its rewards taken together."""
    if len(rewards.counts) == len(rewards.values):
        return (value - centre for value in rewards.values)
    return (math.fsum(value - centre for value in row) for row in rewards.by_row())


def _finite(number: float) -> float | None:
    """None for what JSON cannot hold."""
    return number if math.isfinite(number) else None
