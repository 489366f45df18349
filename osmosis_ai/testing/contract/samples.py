"""Clause 3.7: at most one sample, from what `run` returned or from the source it registered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.rollout.types import ExecutionResult, RolloutErrorCategory, RolloutStatus
from osmosis_ai.testing.contract.base import BackendClauses
from osmosis_ai.testing.contract_workflows import Returning, an_answer

SAID = [{"role": "assistant", "content": "said after registering"}]
A_SOURCE: dict[str, Any] = {"label": "the source's own"}


class SampleClauses(BackendClauses):
    """An explicit output is the sample; without one the registered source is asked."""

    @pytest.mark.parametrize("returns", ["output", "list"])
    async def test_3_7_what_run_returns_is_the_sample(self, tmp_path: Path, returns: str) -> None:
        """Its messages, under the label of the request."""
        result = await self._result(tmp_path, returns=returns)
        assert result.status is RolloutStatus.SUCCESS
        assert result.sample is not None
        assert result.sample.messages == an_answer()
        assert result.sample.label == "a"

    async def test_3_7_the_outputs_metrics_reach_the_sample(self, tmp_path: Path) -> None:
        """Numbers a workflow measures are part of its sample."""
        result = await self._result(tmp_path, returns="output")
        assert result.sample is not None
        assert result.sample.metrics == {"turns": 2.0}

    async def test_3_7_a_registered_source_is_asked_when_run_has_returned(
        self, tmp_path: Path
    ) -> None:
        """Its sample is taken as it is, with what was said until the end."""
        result = await self._result(tmp_path, sources=[A_SOURCE])
        assert result.status is RolloutStatus.SUCCESS, result.err_message
        assert result.sample is not None
        assert result.sample.messages == SAID
        assert result.sample.label == "the source's own"

    @pytest.mark.parametrize("returns", ["output", "list"])
    async def test_3_7_an_explicit_output_beats_a_source(
        self, tmp_path: Path, returns: str
    ) -> None:
        """What the author wrote down is meant."""
        result = await self._result(tmp_path, returns=returns, sources=[A_SOURCE])
        assert result.sample is not None
        assert result.sample.messages == an_answer()

    async def test_3_7_an_output_without_messages_is_a_success_without_sample(
        self, tmp_path: Path
    ) -> None:
        """Also beside a source: it is an explicit output, and it says that there is no sample."""
        for sources in ([], [A_SOURCE]):
            result = await self._result(
                tmp_path, returns="output without messages", sources=sources
            )
            assert result.status is RolloutStatus.SUCCESS
            assert result.sample is None

    async def test_3_7_nothing_at_all_is_a_success_without_sample(self, tmp_path: Path) -> None:
        """A workflow may work on files alone."""
        result = await self._result(tmp_path)
        assert result.status is RolloutStatus.SUCCESS
        assert result.sample is None

    async def test_3_7_a_second_source_is_refused(self, tmp_path: Path) -> None:
        """Two agents in one rollout leave it open which of them is judged."""
        result = await self._result(tmp_path, sources=[A_SOURCE, A_SOURCE])
        expect_invalid(result)

    async def test_3_7_a_broken_source_fails_the_workflow(self, tmp_path: Path) -> None:
        """Telling the sample is part of the workflow, and so is failing to."""
        expect_invalid(await self._result(tmp_path, sources=[{"broken": True}]))

    @pytest.mark.parametrize("returns", ["text", "output with a NaN metric"])
    async def test_3_7_a_return_that_is_no_output_fails_the_workflow(
        self, tmp_path: Path, returns: str
    ) -> None:
        """It is checked where it is returned, an output changed after it was built included."""
        expect_invalid(await self._result(tmp_path, returns=returns))

    @pytest.mark.parametrize(
        ("given", "archived"),
        [
            ({"trajectory_messages": [{"role": "user", "content": "archived"}]}, ["archived"]),
            ({"trajectory_messages": None}, None),
            ({}, ["said after registering"]),
        ],
        ids=["given", "disabled", "left out"],
    )
    async def test_3_7_the_archives_messages_are_the_users_choice(
        self, tmp_path: Path, given: dict[str, Any], archived: list[str] | None
    ) -> None:
        """Messages for the archive, none at all by an explicit None, or the sample's own."""
        result = await self._result(tmp_path, sources=[given])
        assert result.sample is not None
        messages = result.sample.archived_messages
        said = None if messages is None else [message["content"] for message in messages]
        assert said == archived

    async def _result(self, root: Path, **options: Any) -> ExecutionResult:
        async with self.bench(root, workflow=Returning) as bench:
            return await bench.run(bench.request(options=options))


def expect_invalid(result: ExecutionResult) -> None:
    """The workflow failed for a value that cannot be used, and there is no sample."""
    assert result.status is RolloutStatus.FAILURE, f"the status is {result.status}"
    assert result.err_category is RolloutErrorCategory.VALIDATION_ERROR, result.err_category
    assert result.sample is None
