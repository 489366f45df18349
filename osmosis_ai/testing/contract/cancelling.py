"""Clause 3.3: a requested cancellation is never swallowed; a slot is free when code has ended."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from osmosis_ai.rollout.backend.base import CancelDisposition
from osmosis_ai.rollout.types import ConcurrencyConfig, ExecutionResult, RolloutStatus
from osmosis_ai.testing.contract.base import BackendClauses
from osmosis_ai.testing.contract.bench import Bench, Flight
from osmosis_ai.testing.contract.failures import expect_bare_failure
from osmosis_ai.testing.contract_workflows import PlayerConfig, Stubborn, StubbornJudge

CANCELLED_RUNNING = CancelDisposition.CANCELLED_RUNNING


class CancelClauses(BackendClauses):
    """Cancelling says what it did, and ends with the answers that were owed."""

    async def test_3_3_a_cancelled_rollout_gives_a_cancelled_answer(self, tmp_path: Path) -> None:
        """Whoever waits for the rollout learns that it was cancelled."""
        async with self.bench(tmp_path) as bench:
            flight = await start_held(bench, "a/workflow", graded=False)
            await bench.cancel("a")
            await flight.ended()
            expect_cancelled(await flight.answer("workflow"))

    async def test_3_3_a_grader_answer_that_was_asked_for_comes_too(self, tmp_path: Path) -> None:
        """It is a failure without sample, so that nobody waits for a grade in vain."""
        async with self.bench(tmp_path) as bench:
            flight = await start_held(bench, "a/workflow")
            await bench.cancel("a")
            await flight.ended()
            expect_cancelled(await flight.answer("workflow"))
            expect_bare_failure(await flight.answer("grader"))

    async def test_3_3_cancelling_while_grading_leaves_the_workflows_answer(
        self, tmp_path: Path
    ) -> None:
        """The workflow was answered for already; the grade is a failure without sample."""
        async with self.bench(tmp_path) as bench:
            flight = await start_held(bench, "a/grader")
            assert await bench.cancel("a") is CANCELLED_RUNNING
            await flight.ended()
            assert (await flight.answer("workflow")).status is RolloutStatus.SUCCESS
            expect_bare_failure(await flight.answer("grader"))

    async def test_3_3_a_delivery_is_not_interrupted(self, tmp_path: Path) -> None:
        """An answer on its way arrives; what would have come after it does not begin."""
        async with self.bench(tmp_path) as bench:
            flight = bench.start(bench.request(), hold=["workflow"])
            await flight.answer("workflow")
            await bench.cancel("a")
            await bench.stage.settle()
            assert not flight.task.done(), "the delivery of the workflow's answer was interrupted"
            flight.acknowledge("workflow")
            await flight.ended()
            assert (await flight.answer("workflow")).status is RolloutStatus.SUCCESS
            expect_bare_failure(await flight.answer("grader"))
            assert bench.stage.scenes == ["a/workflow"]

    async def test_3_3_a_queued_rollout_is_cancelled_without_running(self, tmp_path: Path) -> None:
        """It never reaches user code, and its answers come all the same."""
        async with self.bench(tmp_path, workflow_config=limited_to(1)) as bench:
            first = await start_held(bench, "first/workflow")
            queued = bench.start(bench.request("queued"))
            await bench.stage.settle()
            assert await bench.cancel("queued") is CancelDisposition.CANCELLED_QUEUED
            await queued.ended()
            expect_cancelled(await queued.answer("workflow"))
            expect_bare_failure(await queued.answer("grader"))
            bench.stage.release("first/workflow")
            await first.ended()
            assert "queued/workflow" not in bench.stage.scenes

    async def test_3_3_cancel_says_what_it_did(self, tmp_path: Path) -> None:
        """Running, queued, and not there are three answers; what has ended is not there."""
        async with self.bench(tmp_path, workflow_config=limited_to(1)) as bench:
            await bench.run(bench.request("ended"))
            flight = await start_held(bench, "a/workflow")
            queued = bench.start(bench.request("queued"))
            await bench.stage.settle()
            said = await bench.cancel_by(ids=["a", "queued", "ended", "unknown"])
            await asyncio.gather(flight.ended(), queued.ended())
        assert said == {
            "a": CANCELLED_RUNNING,
            "queued": CancelDisposition.CANCELLED_QUEUED,
            "ended": CancelDisposition.NOT_FOUND,
            "unknown": CancelDisposition.NOT_FOUND,
        }

    async def test_3_3_user_code_cannot_swallow_a_cancellation(self, tmp_path: Path) -> None:
        """A workflow that catches it and returns an answer is cancelled all the same."""
        async with self.bench(tmp_path, workflow=Stubborn) as bench:
            flight = await start_held(bench, "a/workflow")
            await bench.cancel("a")
            await flight.ended()
            expect_cancelled(await flight.answer("workflow"))
            assert bench.stage.scenes == ["a/workflow", "a/interrupted"]

    async def test_3_3_user_code_cannot_turn_a_cancellation_into_a_failure(
        self, tmp_path: Path
    ) -> None:
        """An exception raised instead would look like a fault of the agent."""
        async with self.bench(tmp_path, workflow=Stubborn) as bench:
            flight = await start_held(bench, "a/workflow", error="RuntimeError")
            await bench.cancel("a")
            await flight.ended()
            expect_cancelled(await flight.answer("workflow"))

    async def test_3_3_a_grader_cannot_swallow_a_cancellation(self, tmp_path: Path) -> None:
        """A reward given after the cancel is not answered."""
        async with self.bench(tmp_path, grader=StubbornJudge) as bench:
            flight = await start_held(bench, "a/grader")
            await bench.cancel("a")
            await flight.ended()
            expect_bare_failure(await flight.answer("grader"))

    async def test_3_3_cancel_frees_the_slot_when_user_code_has_ended(self, tmp_path: Path) -> None:
        """And not before: otherwise more user code runs at once than the limit says."""
        config = limited_to(1)
        async with self.bench(tmp_path, workflow=Stubborn, workflow_config=config) as bench:
            bench.stage.hold("a/interrupted")
            flight = await start_held(bench, "a/workflow")
            waiting = bench.start(bench.request("next"))
            await bench.cancel("a")
            await bench.stage.told("a/interrupted")
            await bench.stage.settle()
            assert "next/workflow" not in bench.stage.scenes, "the slot was freed too early"
            bench.stage.release("a/interrupted")
            await flight.ended()
            await waiting.ended()
            assert (await waiting.answer("workflow")).status is RolloutStatus.SUCCESS

    async def test_3_3_a_rollout_whose_code_goes_on_is_stopping(self, tmp_path: Path) -> None:
        """Being asked to stop is not having stopped: it still takes its slot, and shows it."""
        async with self.bench(tmp_path, workflow=Stubborn) as bench:
            bench.stage.hold("a/interrupted")
            flight = await start_held(bench, "a/workflow")
            assert bench.capacity.stopping == 0
            await bench.cancel("a")
            await bench.stage.told("a/interrupted")
            await bench.stage.settle()
            state = bench.backend.rollout_status("a")
            assert state is not None, "user code of the rollout still runs"
            assert state.stopping
            assert (bench.capacity.running, bench.capacity.stopping) == (1, 1)
            bench.stage.release("a/interrupted")
            await flight.ended()
            assert (bench.capacity.running, bench.capacity.stopping) == (0, 0)

    async def test_3_3_cancelling_leaks_no_slot(self, tmp_path: Path) -> None:
        """After any number of cancelled rollouts as many run at once as before."""
        async with self.bench(tmp_path, workflow_config=limited_to(2)) as bench:
            for turn in range(3):
                await self._cancel_three(bench, turn)
            assert (bench.capacity.running, bench.capacity.queued) == (0, 0)
            bench.stage.hold("x/workflow", "y/workflow")
            flights = [bench.start(bench.request(name)) for name in "xy"]
            await bench.stage.told("x/workflow")
            await bench.stage.told("y/workflow")
            bench.stage.release_all()
            await asyncio.gather(*(flight.ended() for flight in flights))

    async def _cancel_three(self, bench: Bench, turn: int) -> None:
        """Two that run and one that is queued."""
        names = [f"{turn}-{index}" for index in range(3)]
        running = [await start_held(bench, f"{name}/workflow") for name in names[:2]]
        queued = bench.start(bench.request(names[2]))
        await bench.stage.settle()
        await bench.cancel_by(prefix=f"{turn}-")
        await asyncio.gather(*(flight.ended() for flight in [*running, queued]))

    async def test_3_3_cancelling_twice_is_cancelling_once(self, tmp_path: Path) -> None:
        """A controller that repeats itself gets the same rollout, not a second answer."""
        async with self.bench(tmp_path, workflow=Stubborn) as bench:
            bench.stage.hold("a/interrupted")
            flight = await start_held(bench, "a/workflow")
            assert await bench.cancel("a") is CANCELLED_RUNNING
            await bench.stage.told("a/interrupted")
            assert await bench.cancel("a") is CANCELLED_RUNNING
            await bench.stage.settle()
            assert not flight.task.done(), "the second cancel interrupted the code that cleans up"
            bench.stage.release("a/interrupted")
            await flight.ended()
            expect_cancelled(await flight.answer("workflow"))

    async def test_3_3_cancelling_the_task_of_execute_passes_through(self, tmp_path: Path) -> None:
        """Whoever cancels the task sees it cancelled, and the owed answers are given before."""
        async with self.bench(tmp_path) as bench:
            flight = await start_held(bench, "a/workflow")
            flight.task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await flight.ended()
            flight.check_answers()
            expect_cancelled(await flight.answer("workflow"))
            expect_bare_failure(await flight.answer("grader"))
            assert bench.capacity.running == 0

    async def test_3_3_a_cancelled_rollout_leaves_its_callers_task_usable(
        self, tmp_path: Path
    ) -> None:
        """The cancellation is the rollout's: `execute` returns, and its caller goes on."""
        self.only_in_process("a cancellation that stays behind shows only there")
        async with self.bench(tmp_path) as bench:
            bench.stage.hold("a/workflow")
            caller = asyncio.create_task(go_on_after(bench))
            await bench.stage.told("a/workflow")
            await bench.cancel("a")
            await asyncio.wait([caller], timeout=self.patience_sec)
            assert caller.done(), "execute() did not return"
            assert not caller.cancelled(), "the cancellation struck the caller"
            assert caller.result() == 0, "the caller's task still counts as being cancelled"

    async def test_3_3_cancelling_one_leaves_the_others_alone(self, tmp_path: Path) -> None:
        """The neighbours of a cancelled rollout succeed."""
        async with self.bench(tmp_path) as bench:
            cancelled = await start_held(bench, "a/workflow")
            other = await start_held(bench, "b/workflow")
            await bench.cancel("a")
            await cancelled.ended()
            bench.stage.release("b/workflow")
            await other.ended()
            assert (await other.answer("grader")).status is RolloutStatus.SUCCESS


async def start_held(bench: Bench, scene: str, *, graded: bool = True, **options: object) -> Flight:
    """A rollout that has reached its scene and waits there."""
    bench.stage.hold(scene)
    request = bench.request(scene.partition("/")[0], options=options)
    flight = bench.start(request, graded=graded)
    await bench.stage.told(scene)
    return flight


async def go_on_after(bench: Bench) -> int:
    """Run rollout `a`, then something else; how many cancellations the task then counts."""
    await bench.fly(bench.request("a"))
    await bench.stage.settle()
    task = asyncio.current_task()
    assert task is not None
    return task.cancelling()


def limited_to(count: int) -> PlayerConfig:
    """A workflow config that lets so many run at once."""
    return PlayerConfig(concurrency=ConcurrencyConfig(max_concurrent=count))


def expect_cancelled(result: ExecutionResult) -> None:
    """The answer of a cancelled rollout."""
    assert result.status is RolloutStatus.CANCELLED, f"the status is {result.status}"
    assert result.sample is None
