"""Workflows and graders made of one function, and a place for answers: what these tests share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from osmosis_ai.rollout.agent_workflow import AgentWorkflow
from osmosis_ai.rollout.backend.base import ExecutionBackend
from osmosis_ai.rollout.context import (
    AgentWorkflowContext,
    GraderContext,
    RolloutContext,
    get_rollout_context,
)
from osmosis_ai.rollout.grader import Grader
from osmosis_ai.rollout.types import (
    AgentWorkflowConfig,
    ConcurrencyConfig,
    ExecutionRequest,
    ExecutionResult,
    RolloutStatus,
)

Run = Callable[[AgentWorkflowContext[Any]], Awaitable[Any]]
Grade = Callable[[GraderContext], Awaitable[Any]]

SAID = [{"role": "assistant", "content": "4"}]

BARE_FAILURE = ExecutionResult(status=RolloutStatus.FAILURE, phase="grader")
"""What a grader callback carries where nothing was graded."""


def a_request(rollout_id: str = "r", **fields: Any) -> ExecutionRequest:
    """A request that can be graded, unless its label is taken away."""
    prompt = [{"role": "user", "content": "2 + 2"}]
    return ExecutionRequest(**{"id": rollout_id, "prompt": prompt, "label": "4", **fields})


def limited(limit: int | None) -> AgentWorkflowConfig:
    """A config that lets so many rollouts run at once."""
    return AgentWorkflowConfig(name="x", concurrency=ConcurrencyConfig(max_concurrent=limit))


def workflow_of(function: Run) -> type[AgentWorkflow[Any]]:
    class Workflow(AgentWorkflow[AgentWorkflowConfig]):
        async def run(self, ctx: AgentWorkflowContext[Any]) -> Any:
            return await function(ctx)

    return Workflow


def grader_of(function: Grade) -> type[Grader]:
    class OwnGrader(Grader):
        async def grade(self, ctx: GraderContext) -> Any:
            return await function(ctx)

    return OwnGrader


async def answer(ctx: AgentWorkflowContext[Any]) -> Any:
    return SAID


async def reward_one(ctx: GraderContext) -> None:
    ctx.set_reward(1.0)


Answering = workflow_of(answer)
RewardOne = grader_of(reward_one)


@dataclass
class Answers:
    """What a backend said of one rollout, in order."""

    said: list[tuple[str, ExecutionResult]] = field(default_factory=list)

    async def on_workflow(self, result: ExecutionResult) -> None:
        self.said.append(("workflow", result))

    async def on_grader(self, result: ExecutionResult) -> None:
        self.said.append(("grader", result))

    @property
    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.said]

    @property
    def workflow(self) -> ExecutionResult:
        (result,) = [result for kind, result in self.said if kind == "workflow"]
        return result

    @property
    def grader(self) -> ExecutionResult:
        (result,) = [result for kind, result in self.said if kind == "grader"]
        return result


async def execute(
    backend: ExecutionBackend, request: ExecutionRequest, *, graded: bool = True
) -> Answers:
    """Run a rollout to its end and return what was said."""
    answers = Answers()
    await backend.execute(request, answers.on_workflow, answers.on_grader if graded else None)
    return answers


def ambient() -> RolloutContext:
    """The context user code runs in, which must be there."""
    context = get_rollout_context()
    assert context is not None
    return context


def expect_idle(backend: ExecutionBackend) -> None:
    """Nothing runs, waits or stops, and no slot is lost."""
    capacity = backend.capacity()
    assert capacity is not None
    assert (capacity.running, capacity.queued, capacity.stopping) == (0, 0, 0)


async def turns(count: int) -> None:
    """Let every ready task go on so many times."""
    for _ in range(count):
        await asyncio.sleep(0)
