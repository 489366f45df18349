"""A cancelled rollout is answered whatever its code does, and gives its slot back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from osmosis_ai.errors import ConfigError
from osmosis_ai.rollout.agent_workflow import AgentWorkflow
from osmosis_ai.rollout.backend.base import CancelDisposition, RolloutState
from osmosis_ai.rollout.backend.local import LocalBackend
from osmosis_ai.rollout.types import ExecutionResult, RolloutStatus
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

QUEUED = CancelDisposition.CANCELLED_QUEUED
RUNNING = CancelDisposition.CANCELLED_RUNNING
NOT_FOUND = CancelDisposition.NOT_FOUND


class Scene:
    """User code that waits for its cue; shared by the kinds of code below."""

    def __init__(self) -> None:
        self.cue = asyncio.Event()
        self.played: list[str] = []

    async def cooperate(self, ctx: Any) -> Any:
        await self.cue.wait()
        return SAID

    async def swallow(self, ctx: Any) -> Any:
        """Go on until the cue, however often it is cancelled."""
        while not self.cue.is_set():
            try:
                await self.cue.wait()
            except asyncio.CancelledError:
                self.played.append("swallowed")
        return SAID

    async def forgive(self, ctx: Any) -> Any:
        """Swallow it and wipe the marks off."""
        try:
            await self.cue.wait()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            assert task is not None
            task.uncancel()
        return SAID

    async def fail(self, ctx: Any) -> Any:
        try:
            await self.cue.wait()
        finally:
            raise RuntimeError("cleaning up failed")

    async def exit(self, ctx: Any) -> Any:
        try:
            await self.cue.wait()
        finally:
            raise SystemExit

    async def time_out(self, ctx: Any) -> Any:
        async with asyncio.timeout(60):
            await self.cue.wait()
        return SAID

    async def group(self, ctx: Any) -> Any:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.cue.wait())
            tasks.create_task(asyncio.sleep(0))
        return SAID

    async def fail_in_group(self, ctx: Any) -> Any:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.fail(ctx))
        return SAID

    async def survive_group(self, ctx: Any) -> Any:
        """Before Python 3.13 the group leaves the task marked; then wait."""

        async def tool() -> None:
            raise RuntimeError

        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(tool())
        except* RuntimeError:
            pass
        await self.cue.wait()
        return SAID

    async def thread(self, ctx: Any) -> Any:
        await asyncio.to_thread(int)
        await self.cue.wait()
        return SAID


CODE = [
    Scene.cooperate,
    Scene.swallow,
    Scene.forgive,
    Scene.fail,
    Scene.exit,
    Scene.time_out,
    Scene.group,
    Scene.fail_in_group,
    Scene.survive_group,
    Scene.thread,
]
"""What code may do when it is cancelled: each must end as if it had cooperated."""

each_code = pytest.mark.parametrize("code", CODE, ids=lambda code: code.__name__)

Code = Callable[[Scene, Any], Any]


def playing(scene: Scene, code: Code) -> type[AgentWorkflow[Any]]:
    return workflow_of(lambda ctx: code(scene, ctx))


def start(backend: LocalBackend, name: str = "r", *, graded: bool = True) -> Flight:
    return Flight(backend, name, graded=graded)


class Flight:
    """A rollout in flight and what was said of it so far."""

    def __init__(self, backend: LocalBackend, name: str, *, graded: bool) -> None:
        self.answers = Answers()
        on_grader = self.answers.on_grader if graded else None
        self.task = asyncio.create_task(
            backend.execute(a_request(name), self.answers.on_workflow, on_grader)
        )


def expect_cancelled(answers: Answers) -> None:
    assert answers.kinds == ["workflow", "grader"]
    assert answers.workflow == ExecutionResult(
        status=RolloutStatus.CANCELLED, err_message="cancelled", phase="workflow"
    )
    assert answers.grader == BARE_FAILURE


class TestQueued:
    async def test_a_waiting_rollout_ends_at_once_and_never_runs(self) -> None:
        scene = Scene()
        backend = LocalBackend(workflow=playing(scene, Scene.cooperate), workflow_config=limited(1))
        running, waiting = start(backend, "a"), start(backend, "b")
        await turns(3)
        assert await backend.cancel_rollouts(ids=["b"]) == {"b": QUEUED}
        assert backend.rollout_status("b") == RolloutState(RolloutStatus.QUEUED, stopping=True)
        await waiting.task
        expect_cancelled(waiting.answers)
        assert (backend.capacity().running, backend.capacity().queued) == (1, 0)
        scene.cue.set()
        await running.task
        expect_idle(backend)

    async def test_without_a_grader_callback_there_is_one_answer(self) -> None:
        scene = Scene()
        backend = LocalBackend(workflow=playing(scene, Scene.cooperate), workflow_config=limited(1))
        running, waiting = start(backend, "a"), start(backend, "b", graded=False)
        await turns(3)
        await backend.cancel_rollouts(ids=["b"])
        await waiting.task
        assert waiting.answers.workflow.status is RolloutStatus.CANCELLED
        scene.cue.set()
        await running.task

    async def test_in_the_moment_a_slot_is_freed(self) -> None:
        """The slot goes to the next in line, and the cancelled one still gets its answers."""
        backend = LocalBackend(workflow=Answering, workflow_config=limited(1))

        async def first(result: ExecutionResult) -> None:
            await turns(3)
            assert await backend.cancel_rollouts(ids=["b"]) == {"b": QUEUED}

        running = asyncio.create_task(backend.execute(a_request("a"), first))
        await turns(1)
        cancelled, next_in_line = start(backend, "b"), start(backend, "c")
        await asyncio.gather(running, cancelled.task, next_in_line.task)
        expect_cancelled(cancelled.answers)
        assert next_in_line.answers.workflow.succeeded
        expect_idle(backend)

    async def test_in_the_moment_it_is_given_a_slot(self) -> None:
        """The slot it was given and cannot use goes on to the next in line."""
        backend = LocalBackend(workflow=Answering, workflow_config=limited(1))

        async def run_and_cancel() -> None:
            await execute(backend, a_request("a"))
            assert await backend.cancel_rollouts(ids=["b"]) == {"b": QUEUED}

        async def hold(result: ExecutionResult) -> None:
            await turns(5)

        holding = asyncio.create_task(backend.execute(a_request("hold"), hold))
        await turns(1)
        running = asyncio.create_task(run_and_cancel())
        await turns(1)
        cancelled, next_in_line = start(backend, "b"), start(backend, "c")
        await asyncio.gather(holding, running, cancelled.task, next_in_line.task)
        expect_cancelled(cancelled.answers)
        assert next_in_line.answers.workflow.succeeded
        expect_idle(backend)


class TestRunning:
    @each_code
    async def test_a_running_workflow_ends_cancelled_whatever_it_does(self, code: Code) -> None:
        scene = Scene()
        backend = LocalBackend(workflow=playing(scene, code), grader=RewardOne)
        flight = start(backend)
        await turns(5)
        assert await backend.cancel_rollouts(ids=["r"]) == {"r": RUNNING}
        assert backend.rollout_status("r") == RolloutState(RolloutStatus.RUNNING, stopping=True)
        await turns(5)
        scene.cue.set()
        await flight.task
        expect_cancelled(flight.answers)
        expect_idle(backend)

    @each_code
    async def test_a_running_grader_ends_cancelled_whatever_it_does(self, code: Code) -> None:
        """The workflow was answered for; the grade is a failure without sample."""
        scene = Scene()
        backend = LocalBackend(workflow=Answering, grader=grader_of(lambda ctx: code(scene, ctx)))
        flight = start(backend)
        await turns(8)
        assert backend.rollout_status("r") == RolloutState(RolloutStatus.GRADING)
        assert await backend.cancel_rollouts(all=True) == {"r": RUNNING}
        await turns(5)
        scene.cue.set()
        await flight.task
        assert flight.answers.kinds == ["workflow", "grader"]
        assert flight.answers.workflow.succeeded
        assert flight.answers.grader == BARE_FAILURE
        expect_idle(backend)

    async def test_code_that_goes_on_keeps_its_slot_and_counts_as_stopping(self) -> None:
        """A slot given away earlier would run more than the machine was meant to."""
        scene = Scene()
        backend = LocalBackend(workflow=playing(scene, Scene.swallow), workflow_config=limited(1))
        stubborn, waiting = start(backend, "a"), start(backend, "b")
        await turns(3)
        await backend.cancel_rollouts(ids=["a"])
        await turns(10)
        assert scene.played == ["swallowed"]
        assert (backend.capacity().running, backend.capacity().stopping) == (1, 1)
        assert backend.capacity().queued == 1
        assert stubborn.answers.said == []
        scene.cue.set()
        await asyncio.gather(stubborn.task, waiting.task)
        expect_cancelled(stubborn.answers)
        assert waiting.answers.workflow.succeeded
        expect_idle(backend)

    async def test_a_second_cancel_does_not_interrupt_the_cleaning_up(self) -> None:
        """A controller that asks again, having heard nothing, must not break what it waits for."""
        scene = Scene()
        backend = LocalBackend(workflow=playing(scene, Scene.swallow))
        flight = start(backend)
        await turns(3)
        for _ in range(3):
            assert await backend.cancel_rollouts(ids=["r"]) == {"r": RUNNING}
            await turns(3)
        assert scene.played == ["swallowed"]
        scene.cue.set()
        await flight.task
        expect_cancelled(flight.answers)

    async def test_in_the_moment_it_finishes(self) -> None:
        scene = Scene()
        backend = LocalBackend(workflow=playing(scene, Scene.cooperate), grader=RewardOne)
        flight = start(backend)
        await turns(3)
        scene.cue.set()
        assert await backend.cancel_rollouts(ids=["r"]) == {"r": RUNNING}
        await flight.task
        expect_cancelled(flight.answers)
        expect_idle(backend)

    @pytest.mark.parametrize("waits_before", [0, 1])
    @pytest.mark.parametrize("waits_after", [0, 1])
    async def test_a_rollout_may_cancel_itself(self, waits_before: int, waits_after: int) -> None:
        """Its answers are given all the same: the cancellation must not strike a callback."""

        async def run(ctx: Any) -> Any:
            await turns(waits_before)
            said.append(await backend.cancel_rollouts(ids=["r"]))
            await turns(waits_after)
            return SAID

        async def slow(result: ExecutionResult) -> None:
            await turns(2)
            answered.append(result.status)

        said: list[Any] = []
        answered: list[RolloutStatus] = []
        backend = LocalBackend(workflow=workflow_of(run), grader=RewardOne)
        await backend.execute(a_request(), slow, slow)
        assert said == [{"r": RUNNING}]
        assert answered == [RolloutStatus.CANCELLED, RolloutStatus.FAILURE]
        expect_idle(backend)
        await turns(3)

    async def test_code_that_cancels_its_own_task_fails_alone(self) -> None:
        """Nobody asked for that, and the worker that runs the rollout goes on."""

        async def run(ctx: Any) -> Any:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)

        answers = await execute(LocalBackend(workflow=workflow_of(run)), a_request())
        assert answers.workflow.status is RolloutStatus.FAILURE
        assert answers.workflow.err_message == "CancelledError"

    async def test_a_workflow_that_survived_a_failed_group_succeeds(self) -> None:
        scene = Scene()
        scene.cue.set()
        backend = LocalBackend(workflow=playing(scene, Scene.survive_group), grader=RewardOne)
        assert (await execute(backend, a_request())).grader.succeeded


class TestCallbacks:
    async def test_while_the_workflow_is_answered_for_grading_is_left_out(self) -> None:
        graded: list[Any] = []

        async def judge(ctx: Any) -> None:
            graded.append(ctx)

        async def first(result: ExecutionResult) -> None:
            assert await backend.cancel_rollouts(ids=["r"]) == {"r": RUNNING}
            await turns(2)
            await answers.on_workflow(result)

        backend, answers = LocalBackend(workflow=Answering, grader=grader_of(judge)), Answers()
        await backend.execute(a_request(), first, answers.on_grader)
        assert answers.workflow.succeeded
        assert answers.grader == BARE_FAILURE
        assert graded == []
        expect_idle(backend)

    @pytest.mark.parametrize("graded", [True, False])
    async def test_while_the_last_answer_is_given_there_is_nothing_to_stop(
        self, graded: bool
    ) -> None:
        async def last(result: ExecutionResult) -> None:
            assert await backend.cancel_rollouts(ids=["r"]) == {"r": NOT_FOUND}
            assert await backend.cancel_rollouts(all=True) == {}
            assert backend.rollout_status("r") is not None
            await turns(2)
            await answers.on_grader(result)

        backend, answers = LocalBackend(workflow=Answering, grader=RewardOne), Answers()
        if graded:
            await backend.execute(a_request(), answers.on_workflow, last)
        else:
            await backend.execute(a_request(), last)
        assert answers.grader.succeeded
        expect_idle(backend)

    async def test_an_ungradable_rollout_is_still_answered_twice(self) -> None:
        async def first(result: ExecutionResult) -> None:
            await backend.cancel_rollouts(ids=["r"])

        backend, answers = LocalBackend(workflow=Answering), Answers()
        await backend.execute(a_request(), first, answers.on_grader)
        assert answers.grader == BARE_FAILURE


class TestFromOutside:
    """The task of `execute` itself is cancelled: by a server that ends, a driver that gives up."""

    @each_code
    async def test_a_running_workflow_is_answered_for_and_the_cancellation_passes(
        self, code: Code
    ) -> None:
        scene = Scene()
        backend = LocalBackend(workflow=playing(scene, code), grader=RewardOne)
        flight = start(backend)
        await turns(5)
        flight.task.cancel()
        await turns(5)
        scene.cue.set()
        with pytest.raises(asyncio.CancelledError):
            await flight.task
        expect_cancelled(flight.answers)
        expect_idle(backend)

    async def test_a_running_grader(self) -> None:
        scene = Scene()
        backend = LocalBackend(workflow=Answering, grader=grader_of(scene.cooperate))
        flight = start(backend)
        await turns(8)
        flight.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await flight.task
        assert flight.answers.workflow.succeeded
        assert flight.answers.grader == BARE_FAILURE
        expect_idle(backend)

    async def test_a_waiting_rollout(self) -> None:
        scene = Scene()
        backend = LocalBackend(workflow=playing(scene, Scene.cooperate), workflow_config=limited(1))
        running, waiting = start(backend, "a"), start(backend, "b")
        await turns(3)
        waiting.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting.task
        expect_cancelled(waiting.answers)
        scene.cue.set()
        await running.task
        expect_idle(backend)

    async def test_a_callback_is_interrupted_and_not_repeated(self) -> None:
        begun: list[str] = []

        async def hang(result: ExecutionResult) -> None:
            begun.append("workflow")
            await asyncio.Event().wait()

        backend, answers = LocalBackend(workflow=Answering, grader=RewardOne), Answers()
        task = asyncio.create_task(backend.execute(a_request(), hang, answers.on_grader))
        await turns(5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert begun == ["workflow"]
        assert answers.said == [("grader", BARE_FAILURE)]
        expect_idle(backend)

    async def test_asked_for_twice_the_answers_are_still_given(self) -> None:
        scene = Scene()
        backend = LocalBackend(workflow=playing(scene, Scene.cooperate))
        flight = start(backend)
        await turns(3)
        flight.task.cancel()
        flight.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await flight.task
        expect_cancelled(flight.answers)

    async def test_both_ways_at_once(self) -> None:
        scene = Scene()
        backend = LocalBackend(workflow=playing(scene, Scene.cooperate), grader=RewardOne)
        flight = start(backend)
        await turns(3)
        await backend.cancel_rollouts(ids=["r"])
        flight.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await flight.task
        expect_cancelled(flight.answers)
        expect_idle(backend)

    async def test_the_backends_own_cancellation_leaves_no_mark_on_the_task(self) -> None:
        """A worker runs the next rollout in the same task."""
        scene = Scene()
        backend = LocalBackend(workflow=playing(scene, Scene.cooperate))

        async def worker() -> int:
            await execute(backend, a_request("a"))
            task = asyncio.current_task()
            assert task is not None
            await turns(2)
            scene.cue.set()
            assert (await execute(backend, a_request("b"))).workflow.succeeded
            return task.cancelling()

        working = asyncio.create_task(worker())
        await turns(3)
        await backend.cancel_rollouts(ids=["a"])
        assert await working == 0

    async def test_halves_alone_pass_it_on(self) -> None:
        scene = Scene()
        backend = LocalBackend(workflow=playing(scene, Scene.swallow))
        task = asyncio.create_task(backend.run_workflow(a_request()))
        await turns(3)
        task.cancel()
        await turns(3)
        scene.cue.set()
        with pytest.raises(asyncio.CancelledError):
            await task


class TestSelectors:
    @pytest.mark.parametrize(
        ("selector", "stopped"),
        [
            ({"ids": ["a/1"]}, {"a/1": NOT_FOUND}),
            ({"ids": ["a1", "b1"]}, {"a1": RUNNING, "b1": RUNNING}),
            ({"ids": iter(["a1", "x"])}, {"a1": RUNNING, "x": NOT_FOUND}),
            ({"ids": []}, {}),
            ({"prefix": "a"}, {"a1": RUNNING, "a2": RUNNING}),
            ({"prefix": "x"}, {}),
            ({"all": True}, {"a1": RUNNING, "a2": RUNNING, "b1": RUNNING}),
        ],
    )
    async def test_a_selector_names_or_finds_rollouts(
        self, selector: dict[str, Any], stopped: dict[str, CancelDisposition]
    ) -> None:
        scene = Scene()
        backend = LocalBackend(workflow=playing(scene, Scene.cooperate))
        flights = {name: start(backend, name) for name in ("a1", "a2", "b1")}
        await turns(3)
        assert await backend.cancel_rollouts(**selector) == stopped
        scene.cue.set()
        await asyncio.gather(*(flight.task for flight in flights.values()))
        for name, flight in flights.items():
            was_stopped = stopped.get(name) is RUNNING
            assert (flight.answers.workflow.status is RolloutStatus.CANCELLED) is was_stopped

    @pytest.mark.parametrize(
        "selector",
        [{}, {"ids": [], "all": True}, {"ids": ["a"], "prefix": "a"}, {"prefix": "", "all": True}],
    )
    async def test_one_selector_at_a_time(self, selector: dict[str, Any]) -> None:
        backend = LocalBackend(workflow=Answering)
        with pytest.raises(ConfigError, match="exactly one selector: ids, prefix, or all"):
            await backend.cancel_rollouts(**selector)

    async def test_two_rollouts_of_one_name_are_both_stopped(self) -> None:
        scene = Scene()
        backend = LocalBackend(workflow=playing(scene, Scene.cooperate))
        flights = [start(backend), start(backend)]
        await turns(3)
        assert await backend.cancel_rollouts(ids=["r"]) == {"r": RUNNING}
        await asyncio.gather(*(flight.task for flight in flights))
        for flight in flights:
            expect_cancelled(flight.answers)
