"""What the records of a run say: pure functions of them, every number with its denominator."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from osmosis_ai.eval.outcome import Outcome
from osmosis_ai.eval.record import SCHEMA_VERSION, Record


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number and what it is out of; None where that is nothing."""

    value: float | None
    over: int


@dataclass(frozen=True, slots=True)
class PassAtK:
    """The chance that at least one of k attempts passes, over the rows that can tell."""

    k: int
    value: float | None
    rows: int
    """Rows with at least k attempts that count."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Totals over the tries that count, and over how many of them the driver saw model calls."""

    calls: int = 0
    failed_calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    over: int = 0


@dataclass(frozen=True, slots=True)
class Summary:
    """What a run measured: determined by rows, replies and settings, not by when or how fast."""

    rows: int
    """Rows the run takes."""
    n: int
    items: int
    """Rows times n."""
    finished: int
    """Items that have a record."""
    outcomes: dict[str, int]
    """How many items ended in each of the six outcomes."""
    pass_threshold: float
    workflow_failed_reward: float | None
    mean: Estimate
    """Of the rewards that count: of scored items, and of failed workflows where they are valued."""
    passed: int
    pass_rate: Estimate
    pass_at_k: tuple[PassAtK, ...]
    """For k = 1, 2, 4, … up to n; empty where n is 1."""
    usage: Usage
    superseded: int
    """Records that a later try at the same item replaced."""

    @property
    def pending(self) -> int:
        """Items without a record."""
        return self.items - self.finished

    def to_json(self) -> dict[str, Any]:
        """The summary as `summary.json` holds it."""
        return {"schema_version": SCHEMA_VERSION, **asdict(self), "pending": self.pending}


def summarize(
    records: Iterable[Record],
    *,
    rows: int,
    n: int,
    pass_threshold: float = 1.0,
    workflow_failed_reward: float | None = None,
) -> Summary:
    """Count, average and estimate; the order of the records decides only which try was last.

    An item without a reward is in no mean. Only a failed workflow can be given a value.
    """
    table = _Table(n, workflow_failed_reward)
    for record in records:
        table.add(record)
    passed = sum(good for good, _ in table.passes(pass_threshold))
    mean = _mean(table.rewards())
    return Summary(
        rows=rows,
        n=n,
        items=rows * n,
        finished=table.finished,
        outcomes=table.outcome_counts(),
        pass_threshold=pass_threshold,
        workflow_failed_reward=workflow_failed_reward,
        mean=mean,
        passed=passed,
        pass_rate=_ratio(passed, mean.over),
        pass_at_k=tuple(
            estimate_pass_at_k(table.passes(pass_threshold), k) for k in _powers_of_two(n)
        ),
        usage=table.usage(),
        superseded=table.superseded,
    )


def estimate_pass_at_k(rows: Iterable[tuple[int, int]], k: int) -> PassAtK:
    """The unbiased estimate from (passed, counted) of each row, over rows with k counted."""
    chances = (
        1.0 - math.comb(counted - passed, k) / math.comb(counted, k)
        for passed, counted in rows
        if counted >= k
    )
    mean = _mean(chances)
    return PassAtK(k, mean.value, mean.over)


def _powers_of_two(n: int) -> list[int]:
    return [2**power for power in range(n.bit_length())] if n > 1 else []


def _mean(values: Iterator[float]) -> Estimate:
    kept = array("d", values)
    # fsum rounds once, so the mean is the same to the last bit whatever the order.
    return Estimate(math.fsum(kept) / len(kept) if kept else None, len(kept))


def _ratio(part: int, whole: int) -> Estimate:
    return Estimate(part / whole if whole else None, whole)


_OUTCOMES = tuple(Outcome)
_CODES = {outcome: code for code, outcome in enumerate(_OUTCOMES, 1)}
_USAGE = ("calls", "failed_calls", "prompt_tokens", "completion_tokens", "total_tokens")


@dataclass(slots=True)
class _Table:
    """The last record of each item, some bytes each, in the order of row and attempt."""

    n: int
    workflow_failed_reward: float | None
    codes: bytearray = field(default_factory=bytearray)
    """0 for an item without a record, else its outcome's place."""
    values: array[float] = field(default_factory=lambda: array("d"))
    """The reward that counts; NaN where there is none."""
    totals: list[array[int]] = field(default_factory=lambda: [array("q") for _ in _USAGE])
    """For each field of usage a column; -1 for what was not seen."""
    superseded: int = 0

    def add(self, record: Record) -> None:
        place = record.row * self.n + record.attempt
        self._grow(place + 1)
        self.superseded += self.codes[place] != 0
        self.codes[place] = _CODES[record.outcome]
        value = self._value(record)
        self.values[place] = math.nan if value is None else value
        for column, name in zip(self.totals, _USAGE, strict=True):
            seen: int | None = getattr(record, name)
            column[place] = -1 if seen is None else seen

    @property
    def finished(self) -> int:
        return len(self.codes) - self.codes.count(0)

    def outcome_counts(self) -> dict[str, int]:
        return {outcome.value: self.codes.count(_CODES[outcome]) for outcome in _OUTCOMES}

    def rewards(self) -> Iterator[float]:
        return (value for value in self.values if not math.isnan(value))

    def passes(self, threshold: float) -> Iterator[tuple[int, int]]:
        """For each row, how many of its attempts pass, and how many count."""
        for start in range(0, len(self.values), self.n):
            attempts = self.values[start : start + self.n]
            counted = sum(not math.isnan(value) for value in attempts)
            # NaN reaches no threshold.
            yield sum(value >= threshold for value in attempts), counted

    def usage(self) -> Usage:
        sums = {
            name: sum(value for value in column if value > 0)
            for name, column in zip(_USAGE, self.totals, strict=True)
        }
        return Usage(**sums, over=sum(calls >= 0 for calls in self.totals[0]))

    def _value(self, record: Record) -> float | None:
        if record.outcome is Outcome.WORKFLOW_FAILED:
            return self.workflow_failed_reward
        return record.reward

    def _grow(self, size: int) -> None:
        more = size - len(self.codes)
        if more > 0:
            self.codes.extend(bytes(more))
            self.values.extend([math.nan] * more)
            for column in self.totals:
                column.extend([-1] * more)
