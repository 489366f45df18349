"""How rewards are spread: quantiles, and how many lie where."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from osmosis_ai.eval.estimate import mean, squared_distance

BINS = 10
"""Parts of the histogram; so many different values or fewer have a part each."""

PERCENTS = (5, 25, 50, 75, 95)


@dataclass(frozen=True, slots=True)
class Bin:
    """How many values lie from `low` on and below `high`; the last part has its `high` too."""

    low: float
    high: float
    """The same as `low` where the part is a single value."""
    count: int


@dataclass(frozen=True, slots=True)
class Distribution:
    """Where the rewards that count lie."""

    minimum: float
    maximum: float
    std: float | None
    """Standard deviation of these rewards, not of what they were drawn from."""
    quantiles: dict[str, float]
    """p5, p25, p50 (the median), p75 and p95, interpolated between neighbours."""
    histogram: tuple[Bin, ...]


def describe_distribution(values: Sequence[float]) -> Distribution | None:
    """None where there are no values."""
    centre = mean(values)
    if centre is None:
        return None
    ordered = sorted(values)
    spread = math.sqrt(squared_distance(ordered, centre) / len(ordered))
    return Distribution(
        minimum=ordered[0],
        maximum=ordered[-1],
        std=spread if math.isfinite(spread) else None,
        quantiles={f"p{percent}": quantile(ordered, percent / 100) for percent in PERCENTS},
        histogram=_histogram(ordered),
    )


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value that this share of sorted values lies below, between the two nearest of them."""
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    low, high = ordered[below], ordered[min(below + 1, len(ordered) - 1)]
    # Not low + (high - low) * part: a difference of large numbers has no place in a float.
    part = place - below
    return low if low == high else low * (1 - part) + high * part


def _histogram(ordered: Sequence[float]) -> tuple[Bin, ...]:
    counts = Counter[float]()
    for value in ordered:
        counts[value] += 1
        if len(counts) > BINS:
            return _parts(ordered)
    return tuple(Bin(value, value, count) for value, count in counts.items())


def _parts(ordered: Sequence[float]) -> tuple[Bin, ...]:
    low, high = ordered[0], ordered[-1]
    edges = [low * (1 - part / BINS) + high * (part / BINS) for part in range(BINS)]
    # What lies on an edge belongs to the part above it.
    found = [bisect_left(ordered, edge) for edge in edges[1:]]
    starts, ends = [0, *found], [*found, len(ordered)]
    tops = [*edges[1:], high]
    return tuple(
        Bin(bottom, top, end - start)
        for bottom, top, start, end in zip(edges, tops, starts, ends, strict=True)
    )
