"""What a type checker tells a user about the front door; read by mypy, never run.

A line with `type: ignore` is a claim too: mypy complains where that mistake is no longer caught.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, assert_type

from osmosis_ai.rollout import (
    AgentWorkflow,
    AgentWorkflowConfig,
    AgentWorkflowContext,
    AgentWorkflowOutput,
    ExecutionOutcome,
    ExecutionRequest,
    ExecutionResult,
    Grader,
    GraderConfig,
    GraderContext,
    LocalBackend,
    MessageDict,
    RolloutContext,
    RolloutErrorCategory,
    RolloutSample,
    RolloutStatus,
    SampleSource,
    get_rollout_context,
)
from osmosis_ai.rollout.backend import ResultCallback


class MyConfig(AgentWorkflowConfig):
    turns: int = 4


class Configured(AgentWorkflow[MyConfig]):
    """The config's own type reaches `self` and `ctx`."""

    async def run(self, ctx: AgentWorkflowContext[MyConfig]) -> AgentWorkflowOutput:
        assert_type(self.config, MyConfig | None)
        assert_type(ctx.config, MyConfig | None)
        assert_type(ctx.prompt, list[dict[str, Any]])
        assert_type(ctx.metadata, dict[str, Any] | None)
        assert_type(ctx.artifacts_dir, Path | None)
        return AgentWorkflowOutput(messages=ctx.prompt, metrics={"turns": 1.0})


class Plain(AgentWorkflow):
    """Without a parameter the config is the base one; a bare list may be returned."""

    async def run(self, ctx: AgentWorkflowContext) -> list[MessageDict]:
        assert_type(self.config, AgentWorkflowConfig | None)
        assert_type(ctx.config, AgentWorkflowConfig | None)
        return ctx.prompt


class Registered(AgentWorkflow):
    """Where an agent registers itself as the source, nothing is returned."""

    async def run(self, ctx: AgentWorkflowContext) -> None:
        context = get_rollout_context()
        assert_type(context, RolloutContext | None)


class Synchronous(AgentWorkflow):
    def run(self, ctx: AgentWorkflowContext) -> None:  # type: ignore[override]
        """Refused when the backend is built, and by the type checker before that."""


class Exact(Grader):
    async def grade(self, ctx: GraderContext) -> None:
        assert_type(self.config, GraderConfig | None)
        assert_type(ctx.sample, RolloutSample | None)
        assert_type(ctx.label, str | None)
        assert_type(ctx.project_path, str | None)
        ctx.set_reward(1)
        ctx.set_reward("1.0")  # type: ignore[arg-type]


class Source(SampleSource):
    async def get_sample(self) -> RolloutSample:
        return RolloutSample(messages=[{"role": "user", "content": "2 * 3?"}])


async def backend_and_results(request: ExecutionRequest) -> None:
    backend = LocalBackend(
        workflow=Configured,
        workflow_config=MyConfig(name="mine"),
        grader=Exact,
        grader_config=GraderConfig(name="exact"),
    )
    LocalBackend(workflow="mine.workflow:Configured", grader="mine.grader:Exact")
    result = assert_type(await backend.run_workflow(request), ExecutionResult)
    graded = assert_type(await backend.run_grader(request, result), ExecutionResult)
    assert_type(graded.status, RolloutStatus)
    assert_type(graded.err_category, RolloutErrorCategory | None)
    assert_type(graded.sample, RolloutSample | None)
    assert_type(ExecutionOutcome(workflow=result).grader, ExecutionResult | None)
    assert_type(await backend.execute(request, keep), None)


def instances_and_positions() -> None:
    LocalBackend(workflow=Configured())  # type: ignore[arg-type]
    LocalBackend(Configured)  # type: ignore[call-arg]
    LocalBackend(workflow=Configured, grader=Configured)  # type: ignore[arg-type]
    ExecutionRequest(id="a", prompt=[], lable="7")  # type: ignore[call-arg]


def rewards(sample: RolloutSample) -> None:
    """None is "no reward": a reader has to say what to do with it."""
    assert_type(sample.reward, float | None)
    sample.reward + 1.0  # type: ignore[operator]


async def keep(result: ExecutionResult) -> None:
    assert_type(result.sample, RolloutSample | None)


callback: ResultCallback = keep
assert_type(callback, Callable[[ExecutionResult], Awaitable[None]])
