"""Nothing that a user leaves in a result keeps it from the journal, or from coming out again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from osmosis_ai.rollout.protocol import encode_completion, encode_grade, encode_result
from osmosis_ai.rollout.server.entry import Accepted, Answer, AnswerKind
from osmosis_ai.rollout.server.journal import Journal, open_journal, read_journal
from osmosis_ai.rollout.server.restart import ended_from
from osmosis_ai.rollout.types import ExecutionResult, RolloutSample, RolloutStatus
from tests.rollout.strange import conversations, maps, texts

numbers = count()


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Journal]:
    opened = open_journal(tmp_path_factory.mktemp("journal") / "server.sqlite3")
    yield opened
    opened.close()


async def write(journal: Journal, *accepted: Accepted, answers: list[Answer]) -> None:
    for one in accepted:
        await journal.accept(one)
    await journal.answer(*answers)


@settings(max_examples=60)
@given(
    messages=conversations,
    metrics=maps,
    extra_fields=maps,
    label=st.none() | texts,
    reward=st.floats(allow_nan=False, allow_infinity=False),
    err_message=st.none() | texts,
)
def test_any_result_comes_out_as_it_went_in_and_keeps_its_reward(
    journal: Journal,
    messages: Any,
    metrics: dict[str, Any],
    extra_fields: dict[str, Any],
    label: str | None,
    reward: float,
    err_message: str | None,
) -> None:
    """Lone surrogates, NaN and foreign scalars among it; in both protocols."""
    sample = RolloutSample(messages=messages, label=label, reward=reward)
    sample.metrics, sample.extra_fields = metrics, extra_fields
    grade = ExecutionResult(status=RolloutStatus.SUCCESS, sample=sample)
    workflow = ExecutionResult(status=RolloutStatus.SUCCESS)
    failure = ExecutionResult(
        status=RolloutStatus.FAILURE, err_message=err_message, no_result=err_message
    )
    posted, polled, failed = (f"r{next(numbers)}" for _ in range(3))
    answers = [
        Answer(posted, AnswerKind.COMPLETION, encode_completion(posted, workflow)),
        Answer(posted, AnswerKind.GRADER, encode_grade(posted, grade)),
        Answer(polled, AnswerKind.RESULT, encode_result(polled, workflow, grade)),
        Answer(failed, AnswerKind.RESULT, encode_result(failed, failure, None)),
    ]
    accepted = [
        Accepted(posted, "d", "http://c", "http://g"),
        *(Accepted(name, "d", lease_token="t") for name in (polled, failed)),
    ]
    asyncio.run(write(journal, *accepted, answers=answers))

    entries = {entry.accepted.rollout_id: entry for entry in read_journal(Path(journal.path))}
    found = [one for name in (posted, polled, failed) for one in entries[name].answers]
    assert [one.body for one in found] == [one.body for one in answers]
    outcomes = [
        ended_from(entries[name], journal=journal, retention_sec=900).outcome
        for name in (posted, polled, failed)
    ]
    assert [one.reward for one in outcomes] == [reward, reward, None]
    assert outcomes[2].status is RolloutStatus.FAILURE
    assert (outcomes[2].err_message is None) is (err_message is None)
    assert json.loads(found[1].body)["sample"] == json.loads(found[2].body)["sample"]
