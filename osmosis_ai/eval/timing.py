"""How long rollouts and their parts took, and what they cost: of one day, and no result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from osmosis_ai.eval.distribution import quantile
from osmosis_ai.eval.tally import PARTS, Tally


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Of some durations in seconds."""

    over: int
    p50: float
    p90: float
    p95: float
    p99: float
    longest: float

    def to_json(self) -> dict[str, float]:
        """As `timing.json` holds them."""
        named = {f"p{percent}": getattr(self, f"p{percent}") for percent in _PERCENTS}
        return {"over": self.over, **named, "max": self.longest}


@dataclass(frozen=True, slots=True)
class Timing:
    """Each None where nothing was measured."""

    rollout: Quantiles | None
    """Of the tries that count."""
    parts: dict[str, Quantiles | None]
    """The same in parts: waiting, model, tools, grading."""
    call: Quantiles | None
    """Model calls of every try."""
    retries: int | None
    """Goes at model calls after their first, in every try."""
    cost_usd: float | None
    """Of every try whose price is known."""
    priced: int
    """How many these are."""
    tries: int

    def to_json(self) -> dict[str, Any]:
        """As `timing.json` holds it."""
        cost = None if self.cost_usd is None else {"total": self.cost_usd, "over": self.priced}
        return {
            "rollout_sec": _json(self.rollout),
            "parts_sec": {name: _json(found) for name, found in self.parts.items()},
            "call_sec": _json(self.call),
            "retries": self.retries,
            "cost_usd": cost,
            "tries": self.tries,
        }


def measure_timing(table: Tally) -> Timing:
    """Quantiles and sums of the records that were taken in."""
    return Timing(
        rollout=find_quantiles(table.seconds("duration_sec")),
        parts={part: find_quantiles(table.seconds(f"{part}_sec")) for part in PARTS},
        call=find_quantiles(table.call_sec),
        retries=table.retries,
        cost_usd=table.cost_usd if table.priced else None,
        priced=table.priced,
        tries=table.finished + table.superseded,
    )


_PERCENTS = (50, 90, 95, 99)


def find_quantiles(seconds: Sequence[float]) -> Quantiles | None:
    """Quantiles of durations; None without any."""
    if not seconds:
        return None
    ordered = sorted(seconds)
    found = (quantile(ordered, percent / 100) for percent in _PERCENTS)
    p50, p90, p95, p99, longest = (round(seconds, 6) for seconds in (*found, ordered[-1]))
    return Quantiles(len(ordered), p50, p90, p95, p99, longest)


def _json(found: Quantiles | None) -> dict[str, float] | None:
    return None if found is None else found.to_json()
