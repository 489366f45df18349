"""What the records of a run say: pure functions of them, every number with its denominator."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from osmosis_ai.eval.attempts import (
    Agreement,
    Chance,
    estimate_pass_at_k,
    estimate_pass_hat_k,
    measure_agreement,
)
from osmosis_ai.eval.distribution import Distribution, describe_distribution
from osmosis_ai.eval.estimate import Estimate, estimate_mean, estimate_share
from osmosis_ai.eval.outcome import Outcome
from osmosis_ai.eval.record import SCHEMA_VERSION, Record
from osmosis_ai.eval.student import CONFIDENCE
from osmosis_ai.eval.tally import Complaint, Tally, tally

SHOWN_ERRORS = 10
"""Kinds of errors in a summary; the rest is counted."""


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
class ErrorCount:
    """How many items ended with the same complaint."""

    outcome: str
    category: str
    message: str
    """One line; `*` stands for what names one rollout alone."""
    count: int
    example: str = field(default="", compare=False)
    """One of them as it was told. Which one is a matter of time: it is in no file."""


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
    pass_at_k: tuple[Chance, ...]
    """That one of k attempts passes, for k = 1, 2, 4, … up to n; empty where n is 1."""
    pass_hat_k: tuple[Chance, ...]
    """That all of k attempts pass."""
    distribution: Distribution | None
    """None where no reward counts."""
    agreement: Agreement | None
    """Of the attempts at one row; None where n is 1."""
    errors: tuple[ErrorCount, ...]
    """The most frequent ones."""
    error_kinds: int
    """How many different ones there are."""
    usage: Usage
    superseded: int
    """Records that a later try at the same item replaced."""

    @property
    def pending(self) -> int:
        """Items without a record."""
        return self.items - self.finished

    @property
    def scored_share(self) -> float:
        """Of all items; those that are pending have no score either."""
        return self.outcomes[Outcome.SCORED] / self.items if self.items else 0.0

    def to_json(self) -> dict[str, Any]:
        """The summary as `summary.json` holds it."""
        versions = {"schema_version": SCHEMA_VERSION, "confidence": CONFIDENCE}
        content = asdict(self)
        for error in content["errors"]:
            del error["example"]
        return versions | content | {"pending": self.pending}


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
    table = tally(records, n=n, workflow_failed_reward=workflow_failed_reward)
    return summarize_tally(table, rows=rows, pass_threshold=pass_threshold)


def summarize_tally(table: Tally, *, rows: int, pass_threshold: float) -> Summary:
    """The same of records that were taken in already."""
    rewards, n = table.rewards(), table.n
    # First, while little else is there: it sorts a copy.
    distribution = describe_distribution(rewards.values)
    passes = rewards.passing(pass_threshold)
    by_row = [(int(sum(row)), len(row)) for row in passes.by_row()] if n > 1 else []
    ks = _powers_of_two(n)
    complaints = table.complaints()
    return Summary(
        rows=rows,
        n=n,
        items=rows * n,
        finished=table.finished,
        outcomes=table.outcome_counts(),
        pass_threshold=pass_threshold,
        workflow_failed_reward=table.workflow_failed_reward,
        mean=estimate_mean(rewards),
        passed=int(sum(passes.values)),
        pass_rate=estimate_share(passes),
        pass_at_k=tuple(estimate_pass_at_k(by_row, k) for k in ks),
        pass_hat_k=tuple(estimate_pass_hat_k(by_row, k) for k in ks),
        distribution=distribution,
        agreement=measure_agreement(rewards) if n > 1 else None,
        errors=tuple(_error_count(table, *one) for one in complaints[:SHOWN_ERRORS]),
        error_kinds=len(complaints),
        usage=Usage(**table.usage()),
        superseded=table.superseded,
    )


def find_doubts(summary: Summary) -> list[str]:
    """What a person should think about before believing the numbers; mostly nothing."""
    scored = summary.outcomes[Outcome.SCORED]
    if summary.finished and not scored:
        counts = ", ".join(f"{count:,} {name}" for name, count in summary.outcomes.items() if count)
        return [f"0 of {summary.finished:,} rollouts are scored: {counts}"]
    spread = summary.distribution
    if spread is None or summary.mean.over < 2 or spread.minimum != spread.maximum:
        return []
    return [f"all {summary.mean.over:,} rewards are {spread.minimum:g}; is the grader right?"]


def _error_count(table: Tally, complaint: Complaint, count: int) -> ErrorCount:
    outcome, category, message = complaint
    return ErrorCount(outcome.value, category, message, count, table.example(complaint))


def _powers_of_two(n: int) -> list[int]:
    return [2**power for power in range(n.bit_length())] if n > 1 else []
