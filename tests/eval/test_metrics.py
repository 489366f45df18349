"""Numbers from records: every one with its denominator, and no order that changes a bit."""

from __future__ import annotations

import math
import random
import tracemalloc
from dataclasses import replace

import pytest
from scipy.stats import sem

from osmosis_ai.eval.attempts import Agreement, Chance
from osmosis_ai.eval.distribution import Bin
from osmosis_ai.eval.estimate import Estimate
from osmosis_ai.eval.metrics import (
    SHOWN_ERRORS,
    ErrorCount,
    Usage,
    find_doubts,
    summarize,
)
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


def out_of(estimate: Estimate) -> tuple[float | None, int]:
    return estimate.value, estimate.over


def ended(row: int, outcome: Outcome, attempt: int = 0) -> Record:
    return record(row, attempt, None, outcome=outcome)


def test_a_run_without_records_has_no_numbers() -> None:
    """No result is never 0."""
    summary = summarize([], rows=3, n=2)
    assert (summary.items, summary.finished, summary.pending) == (6, 0, 6)
    assert summary.mean == summary.pass_rate == Estimate(None, 0)
    assert summary.pass_at_k == (Chance(1, None, 0), Chance(2, None, 0))
    assert set(summary.outcomes) == {outcome.value for outcome in Outcome}
    assert set(summary.outcomes.values()) == {0}


def test_mean_and_pass_rate_are_over_what_was_scored() -> None:
    records = [
        record(0, 0, 1.0),
        record(1, 0, 0.5),
        *(ended(2 + i, outcome) for i, outcome in enumerate(Outcome) if outcome != "scored"),
    ]
    summary = summarize(records, rows=8, n=1, pass_threshold=0.5)
    assert out_of(summary.mean) == (0.75, 2)
    assert (summary.passed, out_of(summary.pass_rate)) == (2, (1.0, 2))
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
    assert out_of(summary.mean) == (0.5, 2)
    assert out_of(summary.pass_rate) == (0.5, 2)
    assert summary.workflow_failed_reward == 0.0


def test_the_last_try_counts_and_the_others_are_told() -> None:
    records = [
        record(0, 0, None, calls=5, failed_calls=5),
        record(1, 0, 0.0, calls=1, total_tokens=10),
        record(0, 0, 1.0, try_index=1, calls=2, total_tokens=7),
    ]
    summary = summarize(records, rows=2, n=1)
    assert out_of(summary.mean) == (0.5, 2)
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
        Chance(1, pytest.approx((0.25 + 0 + 1) / 3), 3, pytest.approx(sem([0.25, 0, 1]))),
        Chance(2, pytest.approx((0.5 + 0) / 2), 2, pytest.approx(sem([0.5, 0]))),
        Chance(4, 1.0, 1),
    )
    assert [point.value for point in summary.pass_hat_k] == [pytest.approx(1.25 / 3), 0.0, 0.0]


def test_one_attempt_has_no_pass_at_k() -> None:
    """It would be the pass rate by another name."""
    summary = summarize([record(0, 0, 1.0)], rows=1, n=1)
    assert (summary.pass_at_k, summary.pass_hat_k, summary.agreement) == ((), (), None)


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
    assert (out_of(summary.mean), summary.finished) == ((0.5, 2), 2)


def test_the_summary_is_plain_json_with_its_version() -> None:
    document = summarize([record(0, 0, 1.0)], rows=2, n=2).to_json()
    assert document["schema_version"] == 1
    assert document["confidence"] == 0.95
    assert document["mean"] == {
        "value": 1.0,
        "over": 1,
        "rows": 1,
        "stderr": None,
        "low": None,
        "high": None,
    }
    assert document["pass_at_k"][0] == {"k": 1, "value": 1.0, "rows": 1, "stderr": None}
    assert document["pending"] == 3


def test_errors_are_counted_by_what_they_have_in_common() -> None:
    """An id, a port or a time in a message would make each of them one of a kind."""
    records = [
        *(
            failed(row, "timeout", f"rollout {row:08x}f: no answer on port 4{row}21")
            for row in (1, 2)
        ),
        failed(3, "agent_error", "ZeroDivisionError:\n  at line 3"),
        failed(4, "agent_error", "HTTP 429"),
        failed(5, "agent_error", "HTTP 500"),
        record(6, 0, None, error_message="  "),
        record(7, 0, None, error_category="x"),
    ]
    expected = (
        ErrorCount("workflow_failed", "timeout", "rollout *: no answer on port *", 2),
        ErrorCount("no_result", "", "", 1),
        ErrorCount("no_result", "x", "", 1),
        ErrorCount("workflow_failed", "agent_error", "HTTP 429", 1),
        ErrorCount("workflow_failed", "agent_error", "HTTP 500", 1),
        ErrorCount("workflow_failed", "agent_error", "ZeroDivisionError: at line 3", 1),
    )
    assert summarize(records, rows=8, n=1).errors == expected
    assert summarize(records[::-1], rows=8, n=1).errors == expected


def test_one_real_message_stands_for_its_like() -> None:
    """A masked port says nothing of the server that is down."""
    records = [failed(row, "agent_error", f"no answer on port 4{row}21") for row in (1, 2)]
    (error,) = summarize(records, rows=2, n=1).errors
    told = "no answer on port 4121"
    assert (error.message, error.example) == ("no answer on port *", f"{told}, and the like")
    same = [failed(row, "agent_error", told) for row in (1, 2)]
    assert summarize(same, rows=2, n=1).errors[0].example == told
    plain = summarize([failed(1, "agent_error", "no")], rows=2, n=1).errors[0]
    assert (plain.message, plain.example) == ("no", "no")
    written = summarize(records, rows=2, n=1).to_json()["errors"]
    assert written == summarize(records[::-1], rows=2, n=1).to_json()["errors"]
    assert "4121" not in str(written)


def test_nothing_scored_is_a_doubt() -> None:
    lost = summarize([record(0, 0, None), failed(1, "timeout", "late")], rows=4, n=1)
    assert find_doubts(lost) == ["0 of 2 rollouts are scored: 1 workflow_failed, 1 no_result"]


def test_of_many_kinds_of_errors_the_first_are_named_and_all_are_counted() -> None:
    records = [failed(row, "agent_error", chr(ord("a") + row)) for row in range(SHOWN_ERRORS + 2)]
    summary = summarize(records, rows=20, n=1)
    assert (len(summary.errors), summary.error_kinds) == (SHOWN_ERRORS, SHOWN_ERRORS + 2)


def test_an_error_of_a_try_that_was_replaced_is_not_counted() -> None:
    records = [failed(0, "timeout", "too late"), record(0, 0, 1.0, try_index=1)]
    summary = summarize(records, rows=1, n=1)
    assert (summary.errors, summary.error_kinds) == ((), 0)


def failed(row: int, category: str, message: str) -> Record:
    return replace(
        ended(row, Outcome.WORKFLOW_FAILED), error_category=category, error_message=message
    )


def test_rows_whose_attempts_agree_teach_nothing() -> None:
    attempts = [[1.0, 1.0], [0.0, 1.0], [0.5, None], [0.0, 0.0]]
    records = [record(row, i, r) for row, two in enumerate(attempts) for i, r in enumerate(two)]
    summary = summarize(records, rows=4, n=2)
    assert summary.agreement == Agreement(3, pytest.approx(0.5 / 3), 2, pytest.approx(2 / 3))


def test_no_row_with_two_attempts_has_no_agreement() -> None:
    summary = summarize([record(0, 0, 1.0)], rows=1, n=2)
    assert summary.agreement == Agreement(0, None, 0, None)


def test_few_different_rewards_are_counted_one_by_one() -> None:
    summary = summarize([record(row, 0, row % 2) for row in range(5)], rows=5, n=1)
    assert summary.distribution is not None
    assert summary.distribution.histogram == (Bin(0, 0, 3), Bin(1, 1, 2))
    assert summary.distribution.quantiles["p50"] == 0


def test_equal_rewards_are_doubted() -> None:
    equal = summarize([record(row, 0, 0.5) for row in range(3)], rows=3, n=1)
    assert find_doubts(equal) == ["all 3 rewards are 0.5; is the grader right?"]


@pytest.mark.parametrize("rewards", [[], [1.0], [0.0, 1.0]])
def test_other_rewards_are_not(rewards: list[float]) -> None:
    records = [record(row, 0, reward) for row, reward in enumerate(rewards)]
    assert find_doubts(summarize(records, rows=9, n=1)) == []


def test_the_scored_share_is_of_all_items() -> None:
    """What is pending has no score either."""
    assert summarize([record(0, 0, 1.0), record(1, 0, None)], rows=4, n=1).scored_share == 0.25
    assert summarize([], rows=0, n=1).scored_share == 0.0


def test_memory_is_some_bytes_an_item() -> None:
    """A run may have a hundred thousand rows; a list of their records would be fifty times more."""
    items = 20_000
    tracemalloc.start()
    summary = summarize((record(i // 4, i % 4, i % 7) for i in range(items)), rows=items // 4, n=4)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert summary.finished == items
    assert peak < items * 150
