"""One line of the journal: what goes in comes out, and what is no record is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from osmosis_ai.eval.outcome import Outcome, Verdict
from osmosis_ai.eval.record import (
    MAX_MESSAGE_CHARS,
    Record,
    item_for,
    make_record,
    parse_record,
    to_json,
    to_line,
)
from osmosis_ai.rollout.driver.base import RolloutItem, rollout_id_for
from osmosis_ai.rollout.types import RolloutTiming
from tests.eval.workspace import scored

RECORD = Record(
    row=3,
    attempt=1,
    try_index=2,
    item="abc-0",
    rollout_id="f" * 32,
    outcome=Outcome.SCORED,
    reward=0.5,
    calls=2,
    failed_calls=1,
    prompt_tokens=10,
    completion_tokens=20,
    total_tokens=30,
    duration_sec=1.25,
)


def made(verdict: Verdict, outcome: Any = None) -> Record:
    return make_record(
        verdict,
        outcome,
        item=RolloutItem(row=1, attempt=2, seed=3),
        key="k-0",
        try_index=0,
        rollout_id="id",
        duration_sec=2.0,
    )


def test_a_record_is_one_line_and_back() -> None:
    line = to_line(RECORD)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert parse_record(line) == RECORD
    assert json.loads(line) == to_json(RECORD)
    assert json.loads(line)["try"] == 2


def test_what_a_newer_version_adds_is_ignored() -> None:
    assert parse_record(json.dumps(to_json(RECORD) | {"cost": 1}).encode()) == RECORD


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema_version": 2}, "schema_version: Input should be 1"),
        ({"row": True}, "row: Input should be a valid integer"),
        ({"row": -1}, "row: Input should be greater than or equal to 0"),
        ({"attempt": None}, "attempt: Input should be a valid integer"),
        ({"try": 1.0}, "try: Input should be a valid integer"),
        ({"calls": True}, "calls: Input should be a valid integer"),
        ({"total_tokens": -1}, "total_tokens: Input should be greater"),
        ({"reward": True}, "reward: Input should be a valid number"),
        ({"reward": "1"}, "reward: Input should be a valid number"),
        ({"duration_sec": "1"}, "duration_sec: Input should be a valid number"),
        ({"rollout_id": "a/b"}, "rollout_id: .*single path segment"),
        ({"rollout_id": 3}, "rollout_id: Input should be a valid string"),
        ({"item": None}, "item: Input should be a valid string"),
        ({"outcome": "won"}, "outcome: Input should be 'scored'"),
        ({"outcome": None}, "outcome: Input should be 'scored'"),
        ({"error_message": 3}, "error_message: Input should be a valid string"),
        ({"reward": None}, "outcome scored with reward None"),
        ({"outcome": "no_result"}, "outcome no_result with reward 0.5"),
    ],
)
def test_a_line_that_no_record_has_is_refused(change: dict[str, Any], message: str) -> None:
    """A bool is no number, and only what was scored has a reward."""
    with pytest.raises(ValueError, match=message):
        parse_record(json.dumps(to_json(RECORD) | change).encode())


@pytest.mark.parametrize("line", [b"[]", b"{", b"", b"\xff", b'{"schema_version": 1}'])
def test_what_is_no_object_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_record(line)


def test_a_rollout_is_named_by_run_item_and_try() -> None:
    """A restarted run finds what it has started, and two runs never share a rollout."""
    base = {"run_id": "r", "item": "k-0", "attempt": 0, "try_index": 0}
    first = rollout_id_for(**base)
    assert first == rollout_id_for(**base)
    assert len(first) == 32
    changes = [{"run_id": "s"}, {"item": "k-1"}, {"attempt": 1}, {"try_index": 1}]
    assert len({first, *(rollout_id_for(**base | change) for change in changes)}) == 5


def test_a_seed_follows_from_the_content_alone() -> None:
    """So the same row has the same luck in every run, wherever it stands in the file."""
    seed = item_for(row=0, attempt=0, item="k-0").seed
    assert item_for(row=7, attempt=0, item="k-0") == RolloutItem(row=7, attempt=0, seed=seed)
    assert item_for(row=0, attempt=1, item="k-0").seed != seed
    assert 0 <= seed < 2**32


def test_usage_and_duration_come_from_the_driver_where_it_has_them() -> None:
    verdict = Verdict(Outcome.SCORED, reward=1.0)
    measured = scored(1.0, calls=2, failed_calls=1, prompt_tokens=3, total_tokens=3)
    record = made(verdict, measured.model_copy(update={"duration_sec": 0.123456789}))
    assert (record.calls, record.failed_calls, record.prompt_tokens) == (2, 1, 3)
    assert record.duration_sec == 0.123457
    assert (record.retries, record.cost_usd, record.call_sec) == (0, None, None)
    unseen = made(verdict, scored(1.0))
    assert (unseen.calls, unseen.total_tokens, unseen.duration_sec) == (None, None, 2.0)
    assert made(Verdict(Outcome.NO_RESULT)).calls is None


TIMING = RolloutTiming(
    waiting_sec=1, model_sec=2, tools_sec=3, grading_sec=0.12345678, call_sec=(0.5, 1.5)
)


def test_a_record_says_where_the_time_went() -> None:
    measured = scored(1.0, calls=2, retries=3, cost_usd=0.25)
    record = made(
        Verdict(Outcome.SCORED, reward=1.0), measured.model_copy(update={"timing": TIMING})
    )
    assert parse_record(to_line(record)) == record
    assert (record.retries, record.cost_usd, record.call_sec) == (3, 0.25, (0.5, 1.5))
    assert (record.waiting_sec, record.model_sec, record.tools_sec) == (1, 2, 3)
    assert record.grading_sec == 0.123457


@pytest.mark.parametrize(
    ("outcome", "timing"),
    [
        (Outcome.UNGRADED, TIMING),
        (Outcome.WORKFLOW_FAILED, TIMING.model_copy(update={"grading_sec": None})),
    ],
)
def test_what_was_not_graded_took_no_time_to_grade(outcome: Outcome, timing: Any) -> None:
    """Not 0 seconds either, which would make graders look fast."""
    ended = scored(1.0).model_copy(update={"timing": timing})
    assert made(Verdict(outcome), ended).grading_sec is None


def test_what_went_wrong_is_one_line() -> None:
    """Of a server of another make, which says no more than its message, that."""
    verdict = Verdict(Outcome.GRADER_FAILED, message="'x'", summary="KeyError: 'x' (main.py:3)")
    assert made(verdict).complaint == "KeyError: 'x' (main.py:3)"
    assert made(Verdict(Outcome.GRADER_FAILED, message="two\nlines")).complaint == "two lines"
    assert RECORD.complaint is None


def test_a_message_is_safe_and_of_bounded_size() -> None:
    """An exception's text may be anything, and a journal is read as a whole."""
    record = made(Verdict(Outcome.WORKFLOW_FAILED, message="\ud800" + "x" * 10_000))
    assert parse_record(to_line(record)) == record
    assert record.error_message is not None
    assert record.error_message.startswith("\ufffd")
    assert record.error_message.endswith("... (10001 characters)")
    assert len(record.error_message) < MAX_MESSAGE_CHARS + 30
