"""Clause 3.1: request timeouts interrupt nothing, unless the backend enforces them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.rollout.types import (
    ConcurrencyConfig,
    ExecutionResult,
    RolloutErrorCategory,
    RolloutStatus,
)
from osmosis_ai.testing.contract.base import BackendClauses
from osmosis_ai.testing.contract_workflows import Blocking, PlayerConfig

SHORT_SEC = 0.05
AMPLE_SEC = 60.0


class DeadlineClauses(BackendClauses):
    """Without enforcement a timeout is a number nobody reads; with it, it is kept."""

    async def test_3_1_timeouts_interrupt_nothing_unless_asked(self, tmp_path: Path) -> None:
        """A rollout whose deadlines have passed before it began still succeeds."""
        if self.enforces_timeouts:
            pytest.skip("this backend enforces timeouts without being asked")
        async with self.bench(tmp_path) as bench:
            request = bench.request(agent_timeout_sec=0.0, grader_timeout_sec=-1.0)
            workflow, grade = await bench.grade(request)
        assert workflow.status is RolloutStatus.SUCCESS, workflow.err_message
        assert grade.status is RolloutStatus.SUCCESS, grade.err_message

    async def test_3_1_an_enforced_deadline_ends_the_workflow(self, tmp_path: Path) -> None:
        """Cooperative code is cancelled at the deadline; the result is a timeout, not a cancel."""
        async with self.bench(tmp_path, **self._enforcing()) as bench:
            bench.stage.hold("a/workflow")
            workflow, grade = await bench.grade(bench.request(agent_timeout_sec=SHORT_SEC))
        expect_timeout(workflow)
        assert grade.status is RolloutStatus.FAILURE
        assert grade.sample is None

    async def test_3_1_an_enforced_deadline_counts_the_time_in_the_queue(
        self, tmp_path: Path
    ) -> None:
        """Whoever waits for the answer waits through the queue too."""
        one_at_a_time = PlayerConfig(concurrency=ConcurrencyConfig(max_concurrent=1))
        wiring = self._enforcing()
        async with self.bench(tmp_path, workflow_config=one_at_a_time, **wiring) as bench:
            bench.stage.hold("first/workflow")
            first = bench.start(bench.request("first"))
            await bench.stage.told("first/workflow")
            late = bench.start(bench.request("late", agent_timeout_sec=SHORT_SEC))
            await pass_time(2 * SHORT_SEC)
            bench.stage.release("first/workflow")
            await first.ended()
            expect_timeout(await late.answer("workflow"))

    async def test_3_1_an_enforced_deadline_ends_the_grader(self, tmp_path: Path) -> None:
        """The workflow's success stands; the grade is a timeout that keeps the sample."""
        async with self.bench(tmp_path, **self._enforcing()) as bench:
            bench.stage.hold("a/grader")
            workflow, grade = await bench.grade(bench.request(grader_timeout_sec=SHORT_SEC))
        assert workflow.status is RolloutStatus.SUCCESS
        expect_timeout(grade)
        assert grade.sample is not None

    async def test_3_1_the_grader_has_its_own_full_window(self, tmp_path: Path) -> None:
        """A slow workflow takes nothing from its grader's time."""
        async with self.bench(tmp_path, **self._enforcing()) as bench:
            bench.stage.hold("a/workflow")
            request = bench.request(agent_timeout_sec=AMPLE_SEC, grader_timeout_sec=10 * SHORT_SEC)
            flight = bench.start(request)
            await bench.stage.told("a/workflow")
            await pass_time(11 * SHORT_SEC)
            bench.stage.release("a/workflow")
            grade = await flight.answer("grader")
        assert grade.status is RolloutStatus.SUCCESS, grade.err_message

    async def test_3_1_a_late_return_of_blocking_code_is_a_timeout(self, tmp_path: Path) -> None:
        """Code that cannot be interrupted does not win time by that."""
        async with self.bench(tmp_path, workflow=Blocking, **self._enforcing()) as bench:
            options = {"block_sec": 2 * SHORT_SEC}
            request = bench.request(options=options, agent_timeout_sec=SHORT_SEC)
            expect_timeout(await bench.run(request))

    async def test_3_1_an_ample_deadline_changes_nothing(self, tmp_path: Path) -> None:
        """What ends in time ends as it would without a deadline."""
        async with self.bench(tmp_path, **self._enforcing()) as bench:
            request = bench.request(agent_timeout_sec=AMPLE_SEC, grader_timeout_sec=AMPLE_SEC)
            workflow, grade = await bench.grade(request)
        assert (workflow.status, grade.status) == (RolloutStatus.SUCCESS, RolloutStatus.SUCCESS)

    def _enforcing(self) -> dict[str, Any]:
        if self.enforces_timeouts:
            return {}
        if not self.can_enforce_timeouts:
            pytest.skip("this backend never enforces timeouts")
        return {"enforce_timeouts": True}


def expect_timeout(result: ExecutionResult) -> None:
    """The result is a failure of category timeout."""
    assert result.status is RolloutStatus.FAILURE, f"{result.status}, not a failure"
    assert result.err_category is RolloutErrorCategory.TIMEOUT, result.err_category


async def pass_time(seconds: float) -> None:
    """Let real time pass: these deadlines are kept by the backend's own clock."""
    await asyncio.sleep(seconds)
