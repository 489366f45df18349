"""The ambient rollout context nests, stays with its rollout, and knows where its model is."""

from __future__ import annotations

import asyncio
import contextvars
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from osmosis_ai.rollout.context import (
    AgentWorkflowContext,
    GraderContext,
    RolloutContext,
    SampleSource,
    get_rollout_context,
)
from osmosis_ai.rollout.types import RolloutSample

VARIABLES = ("OSMOSIS_CHAT_COMPLETIONS_URL", "OSMOSIS_API_KEY", "OSMOSIS_ROLLOUT_ID")


class FixedSource(SampleSource):
    def __init__(self, sample: RolloutSample) -> None:
        self.sample = sample

    async def get_sample(self) -> RolloutSample:
        return self.sample


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)


def test_outside_a_rollout_nothing_is_ambient() -> None:
    assert get_rollout_context() is None


def test_contexts_nest() -> None:
    """A rollout may run another one and must find its own afterwards."""
    outer, inner = RolloutContext(rollout_id="outer"), RolloutContext(rollout_id="inner")
    with outer:
        with inner:
            assert get_rollout_context() is inner
        assert get_rollout_context() is outer
    assert get_rollout_context() is None


def test_one_context_may_be_entered_twice() -> None:
    """The server enters it around a rollout, and the rollout around the user's code."""
    context = RolloutContext(rollout_id="a")
    with context, RolloutContext(rollout_id="b"):
        with context as entered:
            assert entered is context
            assert get_rollout_context() is context
        ambient = get_rollout_context()
        assert ambient is not None
        assert ambient.rollout_id == "b"


def test_an_error_restores_what_was_ambient() -> None:
    outer = RolloutContext(rollout_id="outer")
    with outer:
        with pytest.raises(RuntimeError), RolloutContext(rollout_id="inner"):
            raise RuntimeError
        assert get_rollout_context() is outer


def test_a_context_that_was_entered_and_never_left_goes_with_the_outer_one() -> None:
    """User code that forgets to leave must not become the ambience of the next rollout."""
    outer = RolloutContext(rollout_id="outer")
    with outer:
        RolloutContext(rollout_id="forgotten").__enter__()
    assert get_rollout_context() is None


def test_leaving_where_it_was_not_entered_changes_nothing() -> None:
    context, other = RolloutContext(rollout_id="a"), RolloutContext(rollout_id="b")
    with other:
        context.__exit__(None, None, None)
        assert get_rollout_context() is other


async def test_concurrent_rollouts_never_see_each_others_context() -> None:
    async def see(index: int) -> None:
        context = RolloutContext(rollout_id=str(index))
        for _ in range(3):
            with context:
                await asyncio.sleep(0)
                assert get_rollout_context() is context
            await asyncio.sleep(0)
            assert get_rollout_context() is None

    await asyncio.gather(*(see(index) for index in range(500)))


async def test_threads_and_tasks_started_inside_see_the_context() -> None:
    context = RolloutContext(rollout_id="a")

    async def see() -> RolloutContext | None:
        return get_rollout_context()

    with context:
        seen = [await asyncio.to_thread(get_rollout_context), await asyncio.create_task(see())]
    assert seen == [context, context]
    assert await asyncio.to_thread(get_rollout_context) is None


def test_a_bare_thread_context_sees_nothing() -> None:
    with RolloutContext(rollout_id="a"):
        assert contextvars.Context().run(get_rollout_context) is None


def test_what_is_not_said_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in VARIABLES:
        monkeypatch.setenv(variable, variable.lower())
    context = RolloutContext()
    assert context.chat_completions_url == "osmosis_chat_completions_url"
    assert context.api_key == "osmosis_api_key"
    assert context.rollout_id == "osmosis_rollout_id"


def test_what_is_said_beats_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in VARIABLES:
        monkeypatch.setenv(variable, "environment")
    context = RolloutContext("http://model", "key", "a")
    assert (context.chat_completions_url, context.api_key, context.rollout_id) == (
        "http://model",
        "key",
        "a",
    )


def test_without_environment_the_key_is_none() -> None:
    """A client given an empty key would send an empty header."""
    assert RolloutContext(api_key="").api_key is None


def test_the_key_is_not_printed() -> None:
    assert "secret" not in repr(RolloutContext(api_key="secret"))


async def test_a_rollout_has_one_sample_source() -> None:
    context, source = RolloutContext(), FixedSource(RolloutSample(label="a"))
    assert await context.get_sample() is None
    context.set_sample_source(source)
    with pytest.raises(ValueError, match="exactly one agent or session"):
        context.set_sample_source(source)
    assert await context.get_sample() is source.sample


def test_a_context_made_for_a_rollout_is_used_as_it_is() -> None:
    context = RolloutContext(rollout_id="a")
    assert context.for_rollout("a") is context


def test_a_context_is_copied_for_another_rollout(tmp_path: Path) -> None:
    context = RolloutContext("http://m", "key", "", None, "/project", tmp_path)
    copied = context.for_rollout("b")
    assert copied.rollout_id == "b"
    assert context.rollout_id == ""
    assert (copied.chat_completions_url, copied.api_key) == ("http://m", "key")
    assert (copied.project_path, copied.artifact_root) == ("/project", tmp_path)


def test_a_source_given_for_any_rollout_is_used() -> None:
    source = FixedSource(RolloutSample())
    assert RolloutContext(sample_source=source).for_rollout("a").sample_source is source


def test_another_rollouts_source_stays_behind() -> None:
    """A rollout run inside a rollout would otherwise return the outer one's conversation."""
    source = FixedSource(RolloutSample())
    outer = RolloutContext(rollout_id="outer", sample_source=source)
    assert outer.for_rollout("inner").sample_source is None
    assert outer.sample_source is source


def test_a_workflow_context_needs_a_prompt_alone() -> None:
    context: AgentWorkflowContext[Any] = AgentWorkflowContext(prompt=[{"role": "user"}])
    assert (context.config, context.metadata, context.artifacts_dir) == (None, None, None)


def test_a_grader_context_has_the_documented_fields_in_order() -> None:
    sample = RolloutSample()
    context = GraderContext("label", sample, "/project", {"a": 1}, Path("/artifacts"))
    assert (context.label, context.sample, context.project_path) == ("label", sample, "/project")
    assert (context.metadata, context.artifacts_dir) == ({"a": 1}, Path("/artifacts"))
    empty = GraderContext()
    assert (empty.label, empty.sample, empty.project_path) == (None, None, None)
    assert (empty.metadata, empty.artifacts_dir) == (None, None)


def test_a_reward_needs_a_sample() -> None:
    with pytest.raises(ValueError, match="GraderContext has no sample to reward"):
        GraderContext().set_reward(1.0)


def test_set_reward_normalizes_the_reward() -> None:
    context = GraderContext(sample=RolloutSample())
    context.set_reward(np.float32(0.5))
    assert context.sample is not None
    assert type(context.sample.reward) is float
    context.set_reward(1)
    assert context.sample.reward == 1.0


def test_set_reward_refuses_what_is_no_finite_number() -> None:
    context = GraderContext(sample=RolloutSample(reward=0.25))
    for refused in (float("nan"), float("inf"), "good", [1.0], object()):
        with pytest.raises(ValidationError):
            context.set_reward(refused)
    assert context.sample is not None
    assert context.sample.reward == 0.25
