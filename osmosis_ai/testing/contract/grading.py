"""Clause 3.4: what a grader needs to be run, what it is given, and what it has to leave."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.rollout.types import RolloutErrorCategory, RolloutStatus
from osmosis_ai.testing.contract.base import BackendClauses
from osmosis_ai.testing.contract.failures import expect_bare_failure, expect_failure
from osmosis_ai.testing.contract_workflows import JudgeConfig, Returning, an_answer

VALIDATION_ERROR = RolloutErrorCategory.VALIDATION_ERROR


class GradingClauses(BackendClauses):
    """A grade needs a grader, a success, a label or metadata, and somebody who asked for it."""

    @pytest.mark.parametrize(
        "given",
        [
            {"label": "42", "metadata": None},
            {"label": None, "metadata": {"answer": 42}},
            {"label": "", "metadata": None},
            {"label": None, "metadata": {}},
        ],
        ids=["label", "metadata", "empty label", "empty metadata"],
    )
    async def test_3_4_a_label_or_metadata_is_graded(
        self, tmp_path: Path, given: dict[str, Any]
    ) -> None:
        """Either is enough, and an empty one is one: only None means that there is none."""
        async with self.bench(tmp_path) as bench:
            workflow, grade = await bench.grade(bench.request(**given))
        assert (workflow.status, grade.status) == (RolloutStatus.SUCCESS, RolloutStatus.SUCCESS)
        assert grade.sample is not None
        assert grade.sample.reward == 1.0

    async def test_3_4_neither_label_nor_metadata_is_a_bare_failure(self, tmp_path: Path) -> None:
        """There is nothing to judge by: no grader runs, and the answer says no more than that."""
        async with self.bench(tmp_path) as bench:
            workflow, grade = await bench.grade(bench.request(label=None))
            assert bench.stage.scenes == ["a/workflow"]
        assert workflow.status is RolloutStatus.SUCCESS
        expect_bare_failure(grade)

    async def test_3_4_a_failed_workflow_is_not_graded(self, tmp_path: Path) -> None:
        """Its grader answer is a bare failure, and the grader is not even built."""
        config = JudgeConfig(init_error="RuntimeError")
        async with self.bench(tmp_path, grader_config=config) as bench:
            workflow, grade = await bench.grade(bench.request(options={"error": "RuntimeError"}))
        assert workflow.status is RolloutStatus.FAILURE
        expect_bare_failure(grade)

    async def test_3_4_without_a_grader_the_answer_is_a_bare_failure(self, tmp_path: Path) -> None:
        """The workflow's success stands, with an ungraded sample."""
        async with self.bench(tmp_path, grader=None) as bench:
            workflow, grade = await bench.grade(bench.request())
        assert workflow.status is RolloutStatus.SUCCESS
        assert workflow.sample is not None
        assert workflow.sample.reward is None
        expect_bare_failure(grade)

    async def test_3_4_no_grader_runs_unless_its_answer_was_asked_for(self, tmp_path: Path) -> None:
        """Grading takes time and may cost money: it is done for those who want it."""
        async with self.bench(tmp_path) as bench:
            result = await bench.run(bench.request())
            await bench.stage.settle()
            assert bench.stage.scenes == ["a/workflow"]
        assert result.status is RolloutStatus.SUCCESS

    async def test_3_4_both_answers_come_once_and_in_order(self, tmp_path: Path) -> None:
        """First the workflow's, before the grader runs; then the grader's; then no more."""
        async with self.bench(tmp_path) as bench:
            bench.stage.hold("a/grader")
            flight = bench.start(bench.request())
            assert (await flight.answer("workflow")).status is RolloutStatus.SUCCESS
            await bench.stage.told("a/grader")
            bench.stage.release("a/grader")
            await flight.ended()
            await bench.stage.settle()
            flight.check_answers()

    async def test_3_4_the_grader_is_given_what_it_judges(self, tmp_path: Path) -> None:
        """The sample of this rollout, its label, its metadata."""
        async with self.bench(tmp_path) as bench:
            await bench.grade(bench.request(metadata={"answer": [42]}))
            told = await bench.stage.told("a/grader")
        assert told["messages"] == an_answer()
        assert (told["label"], told["metadata"]) == ("a", {"answer": [42]})

    async def test_3_4_the_grader_is_built_anew_for_each_execution(self, tmp_path: Path) -> None:
        """What one execution left in `self` is not there for the next."""
        async with self.bench(tmp_path) as bench:
            for name in ("a", "b"):
                await bench.grade(bench.request(name))
                told = await bench.stage.told(f"{name}/grader")
                assert told["judged"] == 1, "the grader of an earlier execution judged this one"

    async def test_3_4_a_missing_reward_fails_the_grade(self, tmp_path: Path) -> None:
        """The failure keeps the sample, without a reward."""
        async with self.bench(tmp_path, grader_config=JudgeConfig(act="nothing")) as bench:
            _, grade = await bench.grade(bench.request())
        expect_failure(grade, VALIDATION_ERROR, "Sample has no reward after grading")
        assert grade.sample is not None
        assert grade.sample.reward is None

    async def test_3_4_a_removed_sample_needs_no_reward(self, tmp_path: Path) -> None:
        """Discarding a sample is a success of the grader."""
        async with self.bench(tmp_path, grader_config=JudgeConfig(act="remove")) as bench:
            _, grade = await bench.grade(bench.request())
        assert grade.status is RolloutStatus.SUCCESS, grade.err_message
        assert grade.sample is not None
        assert grade.sample.remove_sample
        assert grade.sample.reward is None

    async def test_3_4_a_returned_number_is_no_reward_and_the_error_says_so(
        self, tmp_path: Path
    ) -> None:
        """The commonest mistake of a grader's author gets the line that mends it."""
        config = JudgeConfig(act="return", reward=0.5)
        async with self.bench(tmp_path, grader_config=config) as bench:
            _, grade = await bench.grade(bench.request())
        assert grade.status is RolloutStatus.FAILURE
        assert "set_reward(0.5)" in (grade.err_message or ""), grade.err_message

    async def test_3_4_a_rollout_without_sample_cannot_be_graded(self, tmp_path: Path) -> None:
        """The grader runs and may look at files, but there is nothing to hold its reward."""
        config = JudgeConfig(act="nothing")
        async with self.bench(tmp_path, workflow=Returning, grader_config=config) as bench:
            workflow, grade = await bench.grade(bench.request())
            await bench.stage.told("a/grader")
        assert workflow.status is RolloutStatus.SUCCESS
        assert (grade.status, grade.err_category) == (RolloutStatus.FAILURE, VALIDATION_ERROR)
        assert grade.sample is None
