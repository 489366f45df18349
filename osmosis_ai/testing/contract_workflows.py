"""The workflows and graders of the contract suites: they do as told and tell what they see.

Plain classes that any process can import. A workflow finds its orders in the prompt, a grader in
its config; both report to the test's stage over loopback.
"""

from __future__ import annotations

import asyncio
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

from pydantic import Field

from osmosis_ai.rollout.agent_workflow import AgentWorkflow, AgentWorkflowOutput
from osmosis_ai.rollout.context import (
    AgentWorkflowContext,
    GraderContext,
    RolloutContext,
    SampleSource,
    get_rollout_context,
)
from osmosis_ai.rollout.grader import Grader
from osmosis_ai.rollout.types import AgentWorkflowConfig, GraderConfig, Messages, RolloutSample
from osmosis_ai.testing.stage import tell

NOTE = "note.txt"
"""The artifact a `Player` leaves and a `Judge` reads."""


class PlayerConfig(AgentWorkflowConfig):
    """What a workflow of the suite does while it is built, and something in it to change."""

    name: str = "player"
    notes: list[str] = Field(default_factory=lambda: ["as configured"])
    init_error: str | None = None
    """An exception of `ERRORS` that the constructor raises."""


class JudgeConfig(GraderConfig):
    """What a grader of the suite does."""

    name: str = "judge"
    stage: str = ""
    """Where it reports; the suite fills it in."""
    act: str = "set_reward"
    """What a `Judge` does with `reward`: `set_reward`, `assign`, or one of the faults it knows."""
    reward: Any = 1.0
    init_error: str | None = None
    error: str | None = None
    message: str = "boom"
    seen: list[str] = Field(default_factory=list)


class Player(AgentWorkflow[PlayerConfig]):
    """Tells what it was given, waits for its cue, and answers.

    Option `change`: change everything it was given in place. Option `error`: raise that, with the
    option `message`. Option `thread`: tell what a thread of its own sees. Option `cancel_itself`:
    cancel its own task and go on.
    """

    def __init__(self, config: PlayerConfig | None = None) -> None:
        super().__init__(config)
        if config is not None and config.init_error is not None:
            raise make_error(config.init_error, "boom")

    async def run(self, ctx: AgentWorkflowContext[PlayerConfig]) -> Any:
        options = options_of(ctx)
        leave_note(ctx.artifacts_dir, scene_of(ctx))
        await report(ctx, "workflow", **self._sights(ctx), **await _thread_sights(options))
        if options.get("change"):
            change_in_place(ctx)
        if options.get("cancel_itself"):
            await cancel_itself()
        if "error" in options:
            raise make_error(options["error"], options.get("message", "boom"))
        return AgentWorkflowOutput(messages=an_answer(), metrics={"turns": 1.0})

    def _sights(self, ctx: AgentWorkflowContext[PlayerConfig]) -> dict[str, Any]:
        return {
            "prompt": ctx.prompt,
            "metadata": ctx.metadata,
            "notes": None if ctx.config is None else ctx.config.notes,
            "same_config": ctx.config is self.config,
            "has_artifacts_dir": ctx.artifacts_dir is not None,
            "context": ambient(),
        }


class Stubborn(AgentWorkflow[PlayerConfig]):
    """Does not let itself be cancelled: goes on to the scene `interrupted`, then answers.

    Option `error`: raise that instead of answering.
    """

    async def run(self, ctx: AgentWorkflowContext[PlayerConfig]) -> Any:
        options = options_of(ctx)
        try:
            await report(ctx, "workflow")
        except asyncio.CancelledError:
            await report(ctx, "interrupted")
            if "error" in options:
                raise make_error(options["error"], "boom") from None
        return an_answer()


class Blocking(AgentWorkflow[PlayerConfig]):
    """Holds its thread for as long as the option `block_sec` says, and then answers."""

    async def run(self, ctx: AgentWorkflowContext[PlayerConfig]) -> Any:
        # What is under test is code that blocks.
        time.sleep(options_of(ctx)["block_sec"])  # noqa: ASYNC251
        return an_answer()


class Returning(AgentWorkflow[PlayerConfig]):
    """Registers the samples of the option `sources`, and returns what the option `returns` says."""

    async def run(self, ctx: AgentWorkflowContext[PlayerConfig]) -> Any:
        options = options_of(ctx)
        for sample in options.get("sources", ()):
            self._register(sample)
        return _RETURNS[options.get("returns", "nothing")]()

    def _register(self, sample: dict[str, Any]) -> None:
        context = get_rollout_context()
        assert context is not None, "a workflow runs in a rollout context"
        source = Conversation(sample)
        context.set_sample_source(source)
        source.said.append({"role": "assistant", "content": "said after registering"})


class Conversation(SampleSource):
    """A sample source that goes on after it has registered itself."""

    def __init__(self, sample: dict[str, Any]) -> None:
        self.sample = sample
        self.said: Messages = []

    async def get_sample(self) -> RolloutSample:
        if self.sample.get("broken"):
            raise ValueError("the source is broken")
        return RolloutSample(messages=self.said, **self.sample)


class Strange(AgentWorkflow[PlayerConfig]):
    """Answers with values that have no JSON form."""

    async def run(self, ctx: AgentWorkflowContext[PlayerConfig]) -> Any:
        message = {
            "role": "assistant",
            "content": "a lone surrogate: \ud800",
            "number": float("nan"),
            "fraction": Fraction(1, 3),
            "large": 10**400,
            "set": {1},
        }
        return [message]


class SyncPlayer(AgentWorkflow[PlayerConfig]):
    """A workflow whose author forgot `async`."""

    def run(self, ctx: AgentWorkflowContext[PlayerConfig]) -> Any:
        return an_answer()


class Judge(Grader):
    """Tells what it was given, waits for its cue, and does what its config says."""

    def __init__(self, config: JudgeConfig | None = None) -> None:
        super().__init__(config)
        self.orders = config or JudgeConfig()
        self.judged = 0
        if self.orders.init_error is not None:
            raise make_error(self.orders.init_error, self.orders.message)

    async def grade(self, ctx: GraderContext) -> Any:
        self.judged += 1
        await self._report(ctx, "grader")
        self.orders.seen.append(scene_of(ctx))
        if self.orders.error is not None:
            raise make_error(self.orders.error, self.orders.message)
        return await self._act(ctx)

    async def _act(self, ctx: GraderContext) -> Any:
        reward = self.orders.reward
        match self.orders.act:
            case "return":
                return reward
            case "nothing":
                return None
            case "set_reward":
                return ctx.set_reward(reward)
            case act:
                assert ctx.sample is not None, "this act wants a sample"
                return _mark(ctx.sample, act, reward)

    async def _report(self, ctx: GraderContext, part: str) -> None:
        await tell(
            self.orders.stage,
            f"{scene_of(ctx)}/{part}",
            label=ctx.label,
            metadata=ctx.metadata,
            messages=None if ctx.sample is None else ctx.sample.messages,
            project_path=ctx.project_path,
            note=read_note(ctx.artifacts_dir),
            judged=self.judged,
            context=ambient(),
        )


class StubbornJudge(Judge):
    """Does not let itself be cancelled, and then gives its reward."""

    async def grade(self, ctx: GraderContext) -> Any:
        try:
            await self._report(ctx, "grader")
        except asyncio.CancelledError:
            await self._report(ctx, "interrupted")
        ctx.set_reward(1.0)


class SyncJudge(Grader):
    """A grader whose author forgot `async`."""

    def grade(self, ctx: GraderContext) -> Any:
        ctx.set_reward(1.0)


class WithoutText(Exception):
    """An exception that says nothing."""


class Unprintable(Exception):
    """An exception whose text cannot be had."""

    def __str__(self) -> str:
        raise RuntimeError("no text for you")


ERRORS: dict[str, type[BaseException]] = {
    error.__name__: error
    for error in (
        TimeoutError,
        ValueError,
        TypeError,
        AssertionError,
        RuntimeError,
        LookupError,
        OSError,
        WithoutText,
        Unprintable,
        SystemExit,
        KeyboardInterrupt,
        asyncio.CancelledError,
    )
}
"""The exceptions the suites have user code raise, by name."""


def make_error(name: str, message: str) -> BaseException:
    """An exception of `ERRORS`; an empty message makes one without arguments."""
    return ERRORS[name](message) if message else ERRORS[name]()


def an_answer() -> Messages:
    """The conversation a contract workflow answers with."""
    return [{"role": "assistant", "content": "done"}]


def options_of(ctx: AgentWorkflowContext[PlayerConfig]) -> dict[str, Any]:
    """What the prompt orders."""
    options: dict[str, Any] = ctx.prompt[0]["options"]
    return options


def scene_of(ctx: AgentWorkflowContext[PlayerConfig] | GraderContext) -> str:
    """The name a rollout plays under: its id, which the suite also makes its label."""
    if isinstance(ctx, AgentWorkflowContext):
        return str(ctx.prompt[0]["scene"])
    return ctx.label or "unnamed"


async def report(ctx: AgentWorkflowContext[PlayerConfig], part: str, **facts: Any) -> None:
    """Tell the test what a workflow sees, and wait for the cue."""
    await tell(ctx.prompt[0]["stage"], f"{scene_of(ctx)}/{part}", **facts)


def ambient() -> dict[str, Any] | None:
    """The ambient context as a test can compare it."""
    context = get_rollout_context()
    return None if context is None else describe(context)


def describe(context: RolloutContext) -> dict[str, Any]:
    """A context's values in JSON."""
    return {
        "chat_completions_url": context.chat_completions_url,
        "api_key": context.api_key,
        "rollout_id": context.rollout_id,
        "project_path": context.project_path,
        "artifact_root": context.artifact_root and str(context.artifact_root),
    }


async def cancel_itself() -> None:
    """Cancel the current task and catch it: libraries do so, and may leave the task marked."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    try:
        await asyncio.sleep(0)
    except asyncio.CancelledError:
        return


def change_in_place(ctx: AgentWorkflowContext[PlayerConfig]) -> None:
    """Change everything a workflow was given, at every depth."""
    ctx.prompt[0]["options"]["changed"] = True
    ctx.prompt.append({"role": "user", "content": "changed"})
    if ctx.metadata is not None:
        ctx.metadata["changed"] = True
        for value in ctx.metadata.values():
            if isinstance(value, list):
                value.append("changed")
    if ctx.config is not None:
        ctx.config.notes.append("changed")


def leave_note(artifacts_dir: Path | None, text: str) -> None:
    """Write the artifact, where there is a directory for it."""
    if artifacts_dir is not None:
        (artifacts_dir / NOTE).write_text(text)


def read_note(artifacts_dir: Path | None) -> str | None:
    """The artifact as a grader finds it."""
    if artifacts_dir is None or not (artifacts_dir / NOTE).exists():
        return None
    return (artifacts_dir / NOTE).read_text()


def _mark(sample: RolloutSample, act: str, reward: Any) -> None:
    match act:
        case "assign":
            sample.reward = reward
        case "remove":
            sample.remove_sample = True
        case "reward_and_remove":
            sample.reward, sample.remove_sample = reward, True
        case "reward_and_raise":
            sample.reward = reward
            raise ValueError("after the reward")
        case _:
            raise LookupError(f"a Judge does not know the act {act!r}")


async def _thread_sights(options: dict[str, Any]) -> dict[str, Any]:
    return {"in_thread": await asyncio.to_thread(ambient)} if options.get("thread") else {}


def _mutated_output() -> AgentWorkflowOutput:
    output = AgentWorkflowOutput(messages=an_answer())
    output.metrics["turns"] = float("nan")
    return output


_RETURNS: dict[str, Any] = {
    "nothing": lambda: None,
    "output": lambda: AgentWorkflowOutput(messages=an_answer(), metrics={"turns": 2.0}),
    "output without messages": AgentWorkflowOutput,
    "output with a NaN metric": _mutated_output,
    "list": an_answer,
    "text": lambda: "done",
}
