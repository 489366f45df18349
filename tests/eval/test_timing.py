"""Time and cost of a run: quantiles over what was measured, sums over what was spent."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from osmosis_ai.eval.outcome import Outcome
from osmosis_ai.eval.record import Record
from osmosis_ai.eval.tally import tally
from osmosis_ai.eval.timing import Timing, find_quantiles, measure_timing

BARE = Record(
    row=0, attempt=0, try_index=0, item="i", rollout_id="r", outcome=Outcome.SCORED, reward=1.0
)


def timing_of(*records: dict[str, Any]) -> Timing:
    return measure_timing(
        tally((replace(BARE, **one) for one in records), n=1, workflow_failed_reward=None)
    )


def test_durations_are_told_by_quantiles() -> None:
    found = find_quantiles([float(second) for second in range(101)][::-1])
    assert found is not None
    assert found.to_json() == {"over": 101, "p50": 50, "p90": 90, "p95": 95, "p99": 99, "max": 100}


def test_what_nobody_measured_is_not_told() -> None:
    timing = timing_of({})
    assert timing.to_json() == {
        "rollout_sec": None,
        "parts_sec": {"waiting": None, "model": None, "tools": None, "grading": None},
        "call_sec": None,
        "retries": None,
        "cost_usd": None,
        "tries": 1,
    }


def test_each_part_has_its_own_quantiles() -> None:
    timing = timing_of(
        {"waiting_sec": 1.0, "model_sec": 2.0, "tools_sec": 3.0, "grading_sec": 4.0},
        {"row": 1, "waiting_sec": 3.0, "model_sec": 2.0, "tools_sec": 3.0},
    )
    middles = {name: found and (found.over, found.p50) for name, found in timing.parts.items()}
    assert middles == {"waiting": (2, 2), "model": (2, 2), "tools": (2, 3), "grading": (1, 4)}


def test_what_a_try_spent_counts_also_where_the_try_does_not() -> None:
    """The money is gone, and the model was called."""
    first = {"duration_sec": 9.0, "cost_usd": 0.5, "retries": 2, "call_sec": (1.0, 2.0)}
    again = {"duration_sec": 1.0, "cost_usd": 0.25, "retries": 0, "call_sec": (3.0,)}
    unknown = {"row": 1, "duration_sec": 3.0, "cost_usd": None, "retries": None}
    timing = timing_of(first, again, unknown)
    assert timing.rollout is not None
    assert (timing.rollout.over, timing.rollout.longest) == (2, 3)
    assert timing.call is not None
    assert (timing.call.over, timing.call.p50) == (3, 2)
    assert (timing.cost_usd, timing.priced, timing.tries, timing.retries) == (0.75, 2, 3, 2)
    assert timing.to_json()["cost_usd"] == {"total": 0.75, "over": 2}
