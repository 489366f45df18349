"""Every document is one that other readers of the format accept."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import atif
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from osmosis_ai.rollout.trajectory.report import TrajectoryReport
from tests.rollout.trajectory.corpus import CORPUS, REPORTS, chat_messages
from tests.rollout.trajectory.documents import archive

try:
    from harbor.models.trajectories import Trajectory as HarborTrajectory
except ModuleNotFoundError:  # Harbor has an environment of its own
    HarborTrajectory = None

Validate = Callable[[dict[str, Any]], object]


def _by_harbor(document: dict[str, Any]) -> object:
    return HarborTrajectory.model_validate(document)


readers = pytest.mark.parametrize(
    "validate",
    [
        pytest.param(atif.Trajectory.model_validate, id="atif"),
        pytest.param(
            _by_harbor,
            id="harbor",
            marks=pytest.mark.skipif(
                HarborTrajectory is None, reason="runs in the environment of Harbor"
            ),
        ),
    ],
)


@readers
@pytest.mark.parametrize("report", REPORTS.values(), ids=REPORTS.keys())
@pytest.mark.parametrize("messages", CORPUS.values(), ids=CORPUS.keys())
async def test_every_conversation_becomes_a_valid_document(
    tmp_path: Path,
    messages: list[dict[str, Any]],
    report: TrajectoryReport | None,
    validate: Validate,
) -> None:
    document = await archive(
        tmp_path, messages, report=report, reward=1.0, metrics={"bad": float("nan")}
    )
    assert document is not None
    validate(document)


@readers
@settings(max_examples=150, deadline=None)
@given(messages=st.lists(chat_messages, min_size=1, max_size=6), report=st.sampled_from([*REPORTS]))
def test_no_conversation_costs_its_document(
    messages: list[dict[str, Any]], report: str, validate: Validate
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        document = asyncio.run(archive(Path(folder), messages, report=REPORTS[report]))
    assert document is not None
    validate(document)
    assert [step["step_id"] for step in document["steps"]] == [
        index + 1 for index in range(len(document["steps"]))
    ]
