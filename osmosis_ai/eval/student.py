"""How many standard errors a 95 % interval reaches, for few rows and for many."""

from __future__ import annotations

import math
from functools import cache

CONFIDENCE = 0.95
"""Of every interval there is."""

NORMAL_REACH = 1.959963984540054
"""Standard errors to each side where the error itself is known."""


@cache
def student_reach(freedom: int) -> float:
    """Standard errors to each side where the error was estimated with so many degrees of freedom.

    The quantile of Student's t at 0.975, to nine digits.
    """
    return _expanded(freedom) if freedom > _EXACT_UP_TO else _bisected(freedom)


_EXACT_UP_TO = 100


def _bisected(freedom: int) -> float:
    low, high = 0.0, 16.0
    while (middle := (low + high) / 2) not in (low, high):
        if _share_within(middle, freedom) < CONFIDENCE:
            low = middle
        else:
            high = middle
    return middle


def _share_within(reach: float, freedom: int) -> float:
    """The chance of falling within the reach: the finite sum that whole numbers have."""
    angle = math.atan(reach / math.sqrt(freedom))
    sine, square = math.sin(angle), math.cos(angle) ** 2
    odd = freedom % 2
    term = math.cos(angle) if odd else 1.0
    total = 0.0
    for step in range(freedom // 2):
        total += term
        even = 2 * step + 1 + odd
        term *= square * even / (even + 1)
    return (angle + sine * total) * 2 / math.pi if odd else sine * total


def _expanded(freedom: int) -> float:
    """Cornish and Fisher's series around the normal distribution."""
    z = NORMAL_REACH
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return math.fsum(term / freedom**power for power, term in enumerate(terms))
