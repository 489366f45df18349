"""How long a run took and what it cost, for people."""

from __future__ import annotations

from collections.abc import Iterator

from osmosis_ai.cli.output import Fact
from osmosis_ai.eval.record import Record
from osmosis_ai.eval.tally import PARTS
from osmosis_ai.eval.timing import Quantiles, Timing

UNKNOWN = "-"


def time_facts(timing: Timing) -> Iterator[Fact]:
    """Quantiles of rollouts, of their parts, and of their model calls."""
    yield from _seconds("Rollout time", timing.rollout, "rollouts")
    for part, found in timing.parts.items():
        yield from _seconds(f"{part.capitalize()} time", found, "rollouts")
    yield from _seconds("Call time", timing.call, "calls")


def cost_facts(timing: Timing) -> Iterator[Fact]:
    """What was tried again and paid, also for tries that do not count."""
    if timing.retries:
        yield Fact("Retries", f"{timing.retries:,}", "model calls that were asked once more")
    if timing.cost_usd is not None:
        over = f"over {timing.priced:,} of {timing.tries:,} tries, those whose price is known"
        yield Fact("Cost", cost(timing.cost_usd), over)


def record_parts(record: Record) -> str:
    """Where the time of one rollout went."""
    seconds = {part: getattr(record, f"{part}_sec") for part in PARTS}
    return ", ".join(f"{part} {value:.3f}" for part, value in seconds.items() if value is not None)


def cost(dollars: float | None) -> str:
    """US dollars, to a hundredth of a cent, and small sums to a millionth of a dollar."""
    if dollars is None:
        return UNKNOWN
    if 0 < dollars < _MILLIONTH:
        return "less than $0.000001"
    return f"${dollars:,.6f}" if 0 < dollars < _CENT else f"${dollars:,.4f}"


_MILLIONTH, _CENT = 1e-6, 0.01


def _seconds(label: str, found: Quantiles | None, what: str) -> Iterator[Fact]:
    if found is not None:
        note = f"half take less; 95% less than {found.p95:.3g} s, the longest {found.longest:.3g} s"
        yield Fact(label, f"{found.p50:.3g} s", f"{note}; over {found.over:,} {what}")
