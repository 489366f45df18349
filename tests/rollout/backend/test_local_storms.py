"""Whatever is cancelled whenever, each rollout is answered once for each half and no slot leaks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from osmosis_ai.rollout.agent_workflow import AgentWorkflow
from osmosis_ai.rollout.backend.local import LocalBackend
from osmosis_ai.rollout.context import AgentWorkflowContext, GraderContext
from osmosis_ai.rollout.grader import Grader
from osmosis_ai.rollout.types import AgentWorkflowConfig, ExecutionResult
from tests.rollout.programs import SAID, a_request, expect_idle, limited, turns

Act = Callable[["Storm", str], Awaitable[None]]


async def rest(storm: Storm, name: str) -> None:
    await turns(2)


async def return_at_once(storm: Storm, name: str) -> None: ...


async def swallow(storm: Storm, name: str) -> None:
    for _ in range(2):
        try:
            await turns(3)
        except asyncio.CancelledError:
            pass


async def fail(storm: Storm, name: str) -> None:
    await turns(1)
    raise ValueError(name)


async def leave(storm: Storm, name: str) -> None:
    raise SystemExit


async def cancel_own_task(storm: Storm, name: str) -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


async def cancel_own_rollout(storm: Storm, name: str) -> None:
    await storm.cancel(name)


async def survive_a_group(storm: Storm, name: str) -> None:
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(fail(storm, name))
    except* ValueError:
        pass


async def wait_in_a_thread(storm: Storm, name: str) -> None:
    await asyncio.to_thread(int)


ACTS: list[Act] = [
    rest,
    return_at_once,
    swallow,
    fail,
    leave,
    cancel_own_task,
    cancel_own_rollout,
    survive_a_group,
    wait_in_a_thread,
]

HARMLESS = {rest, return_at_once, swallow, survive_a_group, wait_in_a_thread}
"""Acts that succeed where nothing strikes."""

acts = st.sampled_from(ACTS)
rollouts = st.lists(st.tuples(acts, acts, st.booleans()), min_size=1, max_size=12)
"""What each workflow and grader does, and whether a grade is asked for."""

blows = st.lists(
    st.tuples(
        st.integers(0, 4),
        st.integers(0, 11),
        st.sampled_from(["cancel", "cancel all", "cancel the task"]),
    ),
    max_size=12,
)
"""How long to let things go on, then which rollout to strike, and how."""


class Playing(AgentWorkflow[AgentWorkflowConfig]):
    async def run(self, ctx: AgentWorkflowContext[Any]) -> Any:
        assert ctx.metadata is not None
        storm: Storm = (ctx.config.model_extra or {})["storm"]
        await storm.play(ctx.metadata["index"], 0)
        return SAID


class Judging(Grader):
    async def grade(self, ctx: GraderContext) -> None:
        assert ctx.metadata is not None
        assert self.config is not None
        storm: Storm = (self.config.model_extra or {})["storm"]
        await storm.play(ctx.metadata["index"], 1)
        ctx.set_reward(1.0)


class Storm:
    """Rollouts that do as told while they are struck."""

    def __init__(self, limit: int, plan: list[tuple[Act, Act, bool]]) -> None:
        config = limited(limit).model_copy()
        self.plan = plan
        self.said: list[list[tuple[str, ExecutionResult]]] = [[] for _ in plan]
        self.struck: set[str] = set()
        self.begun: set[int] = set()
        self.at_once = self.most_at_once = 0
        self.limit = limit
        self.backend = LocalBackend(
            workflow=Playing,
            workflow_config=config.model_validate({**config.model_dump(), "storm": self}),
            grader=Judging,
            grader_config=config.model_validate({"name": "x", "storm": self}),
        )

    def __deepcopy__(self, memo: object) -> Storm:
        return self

    async def play(self, index: int, half: int) -> None:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await self.plan[index][half](self, str(index))
        finally:
            self.at_once -= 1

    async def cancel(self, name: str) -> None:
        self.struck.add(name)
        await self.backend.cancel_rollouts(ids=[name])

    async def rage(self, blows: list[tuple[int, int, str]]) -> None:
        tasks = [asyncio.create_task(self.execute(index)) for index in range(len(self.plan))]
        for pause, target, kind in blows:
            await turns(pause)
            index = target % len(tasks)
            if kind == "cancel":
                await self.cancel(str(index))
            elif kind == "cancel all":
                self.struck.update(map(str, range(len(tasks))))
                await self.backend.cancel_rollouts(all=True)
            else:
                self.struck.add(str(index))
                tasks[index].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def execute(self, index: int) -> None:
        async def on_workflow(result: ExecutionResult) -> None:
            self.said[index].append(("workflow", result))
            await turns(1)

        async def on_grader(result: ExecutionResult) -> None:
            self.said[index].append(("grader", result))
            await turns(1)

        self.begun.add(index)
        request = a_request(str(index), metadata={"index": index})
        graded = self.plan[index][2]
        await self.backend.execute(request, on_workflow, on_grader if graded else None)


@given(st.integers(1, 3), rollouts, blows)
@settings(max_examples=150)
def test_no_storm_costs_an_answer_or_a_slot(
    limit: int, plan: list[tuple[Act, Act, bool]], blows: list[tuple[int, int, str]]
) -> None:
    async def weather() -> None:
        storm = Storm(limit, plan)
        await storm.rage(blows)
        expect_idle(storm.backend)
        assert storm.most_at_once <= limit
        for index, (_, _, graded) in enumerate(plan):
            expect_answered(storm, index, graded=graded)
        await expect_every_slot(storm)

    asyncio.run(weather())


def expect_answered(storm: Storm, index: int, *, graded: bool) -> None:
    said = dict(storm.said[index])
    if index not in storm.begun:  # a task that is cancelled before it ran even once never runs
        assert said == {}
        return
    assert [kind for kind, _ in storm.said[index]] == ["workflow", "grader"][: 1 + graded]
    workflow, grader = said["workflow"], said.get("grader")
    act, judgement, _ = storm.plan[index]
    if str(index) not in storm.struck:
        assert workflow.succeeded is (act in HARMLESS)
        assert grader is None or grader.succeeded is (act in HARMLESS and judgement in HARMLESS)
    if grader is not None and grader.succeeded:
        assert workflow.succeeded


async def expect_every_slot(storm: Storm) -> None:
    """As many run at once as before, and no more."""
    hold = asyncio.Event()

    async def holding(storm: Storm, name: str) -> None:
        await hold.wait()

    storm.plan = [(holding, return_at_once, False)] * (storm.limit + 2)
    storm.said = [[] for _ in storm.plan]
    tasks = [asyncio.create_task(storm.execute(index)) for index in range(len(storm.plan))]
    await turns(3)
    assert (storm.at_once, storm.backend.capacity().queued) == (storm.limit, 2)
    hold.set()
    await asyncio.gather(*tasks)
    assert all(said[0][1].succeeded for said in storm.said)
