"""Numbers from records: every one with its denominator, and no order that changes a bit."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from osmosis_ai.eval.metrics import Estimate, PassAtK, Usage, estimate_pass_at_k, summarize
from osmosis_ai.eval.outcome import Outcome
from osmosis_ai.eval.record import Record


def record(row: int, attempt: int, reward: float | None, **fields: object) -> Record:
    outcome = Outcome.SCORED if reward is not None else Outcome.NO_RESULT
    base = Record(
        row=row,
        attempt=attempt,
        try_index=0,
        item=f"{row}",
        rollout_id=f"{row}-{attempt}",
        outcome=outcome,
        reward=reward,
    )
    return replace(base, **fields)  # type: ignore[arg-type]


def ended(row: int, outcome: Outcome, attempt: int = 0) -> Record:
    return record(row, attempt, None, outcome=outcome)


def test_a_run_without_records_has_no_numbers() -> None:
    """No result is never 0."""
    summary = summarize([], rows=3, n=2)
    assert (summary.items, summary.finished, summary.pending) == (6, 0, 6)
    assert summary.mean == summary.pass_rate == Estimate(None, 0)
    assert summary.pass_at_k == (PassAtK(1, None, 0), PassAtK(2, None, 0))
    assert set(summary.outcomes) == {outcome.value for outcome in Outcome}
    assert set(summary.outcomes.values()) == {0}


def test_mean_and_pass_rate_are_over_what_was_scored() -> None:
    records = [
        record(0, 0, 1.0),
        record(1, 0, 0.5),
        *(ended(2 + i, outcome) for i, outcome in enumerate(Outcome) if outcome != "scored"),
    ]
    summary = summarize(records, rows=8, n=1, pass_threshold=0.5)
    assert summary.mean == Estimate(0.75, 2)
    assert (summary.passed, summary.pass_rate) == (2, Estimate(1.0, 2))
    assert summary.outcomes == {
        "scored": 2,
        "removed": 1,
        "ungraded": 1,
        "workflow_failed": 1,
        "grader_failed": 1,
        "no_result": 1,
    }
    assert (summary.finished, summary.pending) == (7, 1)


def test_only_a_failed_workflow_can_be_given_a_value() -> None:
    records = [record(0, 0, 1.0), *(ended(1, o, i) for i, o in enumerate(Outcome) if o != "scored")]
    summary = summarize(records, rows=2, n=8, workflow_failed_reward=0.0)
    assert summary.mean == Estimate(0.5, 2)
    assert summary.pass_rate == Estimate(0.5, 2)
    assert summary.workflow_failed_reward == 0.0


def test_the_last_try_counts_and_the_others_are_told() -> None:
    records = [
        record(0, 0, None, calls=5, failed_calls=5),
        record(1, 0, 0.0, calls=1, total_tokens=10),
        record(0, 0, 1.0, try_index=1, calls=2, total_tokens=7),
    ]
    summary = summarize(records, rows=2, n=1)
    assert summary.mean == Estimate(0.5, 2)
    assert (summary.finished, summary.superseded) == (2, 1)
    assert summary.outcomes["no_result"] == 0
    assert summary.usage == Usage(calls=3, total_tokens=17, over=2)


def test_usage_says_over_how_many_rollouts_it_was_seen() -> None:
    records = [record(0, 0, 1.0, calls=0, prompt_tokens=0), record(1, 0, 1.0)]
    assert summarize(records, rows=2, n=1).usage == Usage(over=1)


def test_pass_at_k_is_over_rows_with_enough_attempts() -> None:
    records = [
        *(record(0, attempt, reward) for attempt, reward in enumerate([1.0, 0.0, 0.0, 0.0])),
        *(record(1, attempt, reward) for attempt, reward in enumerate([0.0, 0.0])),
        record(1, 2, None),
        record(2, 0, 1.0),
    ]
    summary = summarize(records, rows=3, n=5)
    assert summary.pass_at_k == (
        PassAtK(1, pytest.approx((0.25 + 0 + 1) / 3), 3),
        PassAtK(2, pytest.approx((0.5 + 0) / 2), 2),
        PassAtK(4, 1.0, 1),
    )


def test_one_attempt_has_no_pass_at_k() -> None:
    """It would be the pass rate by another name."""
    assert summarize([record(0, 0, 1.0)], rows=1, n=1).pass_at_k == ()


@given(
    attempts=st.lists(st.booleans(), min_size=1, max_size=9),
    k=st.integers(min_value=1, max_value=9),
)
def test_pass_at_k_is_the_share_of_samples_of_k_that_pass(attempts: list[bool], k: int) -> None:
    """Checked against counting every way to draw k of the attempts."""
    found = estimate_pass_at_k([(sum(attempts), len(attempts))], k)
    if len(attempts) < k:
        assert found == PassAtK(k, None, 0)
        return
    draws = [any(draw) for draw in combinations(attempts, k)]
    assert found.value == pytest.approx(sum(draws) / len(draws))


def test_the_order_of_records_changes_no_bit() -> None:
    """So a run at 64 in flight, or resumed, has the summary of one that ran row by row."""
    luck = random.Random(7)
    records = [record(row, attempt, luck.random()) for row in range(50) for attempt in range(3)]
    expected = summarize(records, rows=50, n=3, pass_threshold=0.5)
    for _ in range(5):
        luck.shuffle(records)
        assert summarize(records, rows=50, n=3, pass_threshold=0.5) == expected
    assert expected.mean.value == math.fsum(r.reward or 0.0 for r in records) / 150


def test_rows_may_be_far_apart() -> None:
    summary = summarize([record(9_999, 1, 1.0), record(3, 0, 0.0)], rows=2, n=2)
    assert (summary.mean, summary.finished) == (Estimate(0.5, 2), 2)


def test_the_summary_is_plain_json_with_its_version() -> None:
    document = summarize([record(0, 0, 1.0)], rows=2, n=2).to_json()
    assert document["schema_version"] == 1
    assert document["mean"] == {"value": 1.0, "over": 1}
    assert document["pass_at_k"][0] == {"k": 1, "value": 1.0, "rows": 1}
    assert document["pending"] == 3
