"""Deadlines interrupt nothing unless asked to; then code ends in time, or is late."""

from __future__ import annotations

import asyncio
import functools
import inspect
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from osmosis_ai.rollout.backend.local import LocalBackend
from osmosis_ai.rollout.context import GraderContext, RolloutContext
from osmosis_ai.rollout.types import (
    ExecutionResult,
    RolloutErrorCategory,
    RolloutSample,
    RolloutStatus,
)
from tests.rollout.programs import (
    BARE_FAILURE,
    SAID,
    Answering,
    Answers,
    RewardOne,
    a_request,
    execute,
    expect_idle,
    grader_of,
    limited,
    turns,
    workflow_of,
)

TIMEOUT = RolloutErrorCategory.TIMEOUT


class ClockLoop(asyncio.SelectorEventLoop):
    """Its time stands still until a test moves it, so that deadlines pass without waiting."""

    now_sec = 1000.0

    def time(self) -> float:
        return self.now_sec


def clock() -> ClockLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, ClockLoop)
    return loop


def on_a_clock(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test on a loop whose time it moves itself."""

    @functools.wraps(test)
    def run(*args: Any, **named: Any) -> None:
        with asyncio.Runner(loop_factory=ClockLoop) as runner:
            runner.run(test(*args, **named))

    # pytest is to see the arguments, but not the coroutine function.
    run.__signature__ = inspect.signature(test)  # pyright: ignore[reportFunctionMemberAccess]
    del run.__wrapped__
    return run


async def after(seconds: float) -> None:
    """Let everything go on, then move the clock, then let everything go on again."""
    await turns(6)
    clock().now_sec += seconds
    await turns(6)


async def wait(ctx: Any) -> Any:
    await asyncio.Event().wait()


async def swallow(ctx: Any) -> Any:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        return SAID


async def block(ctx: Any) -> Any:
    """Code that never waits: it holds the loop while the deadline passes."""
    clock().now_sec += 10
    if isinstance(ctx, GraderContext):
        ctx.set_reward(1.0)
    return SAID


async def block_and_fail(ctx: Any) -> Any:
    clock().now_sec += 10
    raise ValueError("boom")


async def own_timeout(ctx: Any) -> Any:
    raise TimeoutError("the tool took too long")


async def group(ctx: Any) -> Any:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(asyncio.Event().wait())


async def inner_deadline(ctx: Any) -> Any:
    async with asyncio.timeout(60):
        await asyncio.Event().wait()


def strict(run: Any = None, grade: Any = None, *, limit: int | None = 4) -> LocalBackend:
    return LocalBackend(
        workflow=workflow_of(run) if run else Answering,
        workflow_config=limited(limit),
        grader=grader_of(grade) if grade else RewardOne,
        enforce_timeouts=True,
    )


def expect_timeout(result: ExecutionResult, phase: str, message: str) -> None:
    assert result.status is RolloutStatus.FAILURE
    assert (result.err_category, result.phase) == (TIMEOUT, phase)
    assert result.err_message == message


class TestUnlessAsked:
    """The documented default."""

    @pytest.mark.parametrize("limit_sec", [1.0, 0.0, -1.0])
    @on_a_clock
    async def test_deadlines_interrupt_nothing(self, limit_sec: float) -> None:
        request = a_request(agent_timeout_sec=limit_sec, grader_timeout_sec=limit_sec)
        backend = LocalBackend(workflow=workflow_of(block), grader=grader_of(block))
        answers = await execute(backend, request)
        assert answers.workflow.succeeded
        assert answers.grader.succeeded

    async def test_a_timeout_of_the_codes_own_is_one(self) -> None:
        answers = await execute(LocalBackend(workflow=workflow_of(own_timeout)), a_request())
        expect_timeout(answers.workflow, "workflow", "the tool took too long")


class TestWorkflow:
    @pytest.mark.parametrize("run", [wait, swallow, group, inner_deadline])
    @on_a_clock
    async def test_cooperative_code_ends_at_its_deadline(self, run: Any) -> None:
        backend = strict(run)
        running = asyncio.create_task(execute(backend, a_request(agent_timeout_sec=2.5)))
        await after(2.4)
        assert not running.done()
        await after(0.2)
        answers = await running
        expect_timeout(answers.workflow, "workflow", "workflow exceeded its 2.5s deadline")
        assert answers.grader == BARE_FAILURE
        expect_idle(backend)

    @on_a_clock
    async def test_the_callbacks_are_not_struck_by_it(self) -> None:
        async def slow(result: ExecutionResult) -> None:
            await turns(3)
            await answers.on_workflow(result)

        answers = Answers()
        backend = strict(wait)
        running = asyncio.create_task(backend.execute(a_request(agent_timeout_sec=1), slow))
        await after(2)
        await running
        assert answers.workflow.err_category is TIMEOUT
        assert running.cancelling() == 0

    @on_a_clock
    async def test_code_in_time_succeeds(self) -> None:
        answers = await execute(strict(), a_request(agent_timeout_sec=1, grader_timeout_sec=1))
        assert answers.grader.succeeded
        await after(5)

    @on_a_clock
    async def test_a_late_return_is_late(self) -> None:
        """Blocking code cannot be interrupted, and its answer came after the deadline."""
        answers = await execute(strict(block), a_request(agent_timeout_sec=5))
        expect_timeout(answers.workflow, "workflow", "workflow exceeded its 5s deadline")
        assert answers.workflow.sample is None

    @on_a_clock
    async def test_a_late_failure_keeps_its_own_reason(self) -> None:
        answers = await execute(strict(block_and_fail), a_request(agent_timeout_sec=5))
        assert answers.workflow.err_message == "boom"

    @on_a_clock
    async def test_a_timeout_of_the_codes_own_keeps_its_message(self) -> None:
        answers = await execute(strict(own_timeout), a_request(agent_timeout_sec=5))
        expect_timeout(answers.workflow, "workflow", "the tool took too long")

    @pytest.mark.parametrize("limit_sec", [0.0, -1.0])
    @on_a_clock
    async def test_a_deadline_that_has_passed_starts_nothing(self, limit_sec: float) -> None:
        started: list[Any] = []

        async def run(ctx: Any) -> Any:
            started.append(ctx)

        answers = await execute(strict(run), a_request(agent_timeout_sec=limit_sec))
        expect_timeout(
            answers.workflow, "workflow", f"workflow exceeded its {limit_sec:g}s deadline"
        )
        assert started == []

    @on_a_clock
    async def test_time_in_the_queue_counts(self) -> None:
        backend = strict(wait, limit=1)
        first = asyncio.create_task(execute(backend, a_request("a", agent_timeout_sec=4)))
        second = asyncio.create_task(execute(backend, a_request("b", agent_timeout_sec=5)))
        await after(4.1)
        await first
        await after(0.8)
        assert not second.done()
        await after(0.2)
        expect_timeout(
            (await second).workflow,
            "workflow",
            "workflow exceeded its 5s deadline (4.1s of it spent queued)",
        )

    @on_a_clock
    async def test_a_budget_spent_in_the_queue_starts_nothing(self) -> None:
        started: list[str] = []

        async def run(ctx: Any) -> Any:
            started.append(ctx.metadata["name"])
            await wait(ctx)

        backend = strict(run, limit=1)
        first, second = (
            asyncio.create_task(
                execute(backend, a_request(name, metadata={"name": name}, agent_timeout_sec=sec))
            )
            for name, sec in (("a", 4), ("b", 3))
        )
        await after(4.1)
        await first
        expect_timeout(
            (await second).workflow,
            "workflow",
            "workflow exceeded its 3s deadline (4.1s of it spent queued)",
        )
        assert started == ["a"]
        expect_idle(backend)

    @on_a_clock
    async def test_cancelled_in_the_moment_of_its_deadline_it_is_cancelled(self) -> None:
        backend = strict(wait)
        running = asyncio.create_task(execute(backend, a_request(agent_timeout_sec=1)))
        await turns(6)
        clock().now_sec += 1
        await backend.cancel_rollouts(ids=["r"])
        answers = await running
        assert answers.workflow.status is RolloutStatus.CANCELLED
        assert running.cancelling() == 0
        expect_idle(backend)

    @on_a_clock
    async def test_cancelled_from_outside_in_the_moment_of_its_deadline(self) -> None:
        backend, answers = strict(wait), Answers()
        running = asyncio.create_task(
            backend.execute(a_request(agent_timeout_sec=1), answers.on_workflow, answers.on_grader)
        )
        await turns(6)
        clock().now_sec += 1
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert answers.workflow.status is RolloutStatus.CANCELLED


class TestGrader:
    @pytest.mark.parametrize("grade", [wait, swallow, group])
    @on_a_clock
    async def test_cooperative_code_ends_at_its_deadline_and_keeps_the_sample(
        self, grade: Any
    ) -> None:
        backend = strict(None, grade)
        running = asyncio.create_task(execute(backend, a_request(grader_timeout_sec=2)))
        await after(2.1)
        answers = await running
        assert answers.workflow.succeeded
        expect_timeout(answers.grader, "grader", "grader exceeded its 2s deadline")
        assert answers.grader.sample is answers.workflow.sample
        expect_idle(backend)

    @on_a_clock
    async def test_a_late_grade_does_not_count(self) -> None:
        answers = await execute(strict(None, block), a_request(grader_timeout_sec=5))
        expect_timeout(answers.grader, "grader", "grader exceeded its 5s deadline")

    @on_a_clock
    async def test_a_failed_grade_in_time_keeps_its_sample(self) -> None:
        answers = await execute(strict(None, own_timeout), a_request(grader_timeout_sec=5))
        expect_timeout(answers.grader, "grader", "the tool took too long")
        assert answers.grader.sample is answers.workflow.sample

    @on_a_clock
    async def test_it_has_a_window_of_its_own(self) -> None:
        """Neither the queue nor the workflow nor its callback counts against it."""

        async def run(ctx: Any) -> Any:
            clock().now_sec += 100
            return SAID

        async def slow(result: ExecutionResult) -> None:
            clock().now_sec += 100

        backend, answers = strict(run), Answers()
        await backend.execute(a_request(grader_timeout_sec=1), slow, answers.on_grader)
        assert answers.grader.succeeded

    @on_a_clock
    async def test_a_deadline_that_has_passed_starts_nothing(self) -> None:
        answers = await execute(strict(None, block), a_request(grader_timeout_sec=0))
        expect_timeout(answers.grader, "grader", "grader exceeded its 0s deadline")
        assert answers.grader.sample is not None
        assert answers.grader.sample.reward is None


class TestHalvesAlone:
    @on_a_clock
    async def test_they_enforce_deadlines_too(self) -> None:
        backend = strict(wait, wait)
        request = a_request(agent_timeout_sec=1, grader_timeout_sec=2)
        running = asyncio.create_task(backend.run_workflow(request))
        await after(1.1)
        expect_timeout(await running, "workflow", "workflow exceeded its 1s deadline")
        sample = RolloutSample(messages=SAID)
        grading = asyncio.create_task(
            backend.run_grader(
                request, ExecutionResult(status=RolloutStatus.SUCCESS, sample=sample)
            )
        )
        await after(2.1)
        assert (await grading).sample is sample


async def test_a_real_clock_ends_real_waiting() -> None:
    """One test that the deadline is counted in seconds of the running loop."""
    begun = time.monotonic()
    with RolloutContext(rollout_id="r"):
        answers = await execute(strict(wait), a_request(agent_timeout_sec=0.02))
    assert answers.workflow.err_category is TIMEOUT
    assert 0.015 < time.monotonic() - begun < 10
