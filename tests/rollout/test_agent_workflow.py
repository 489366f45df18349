"""A workflow may return its conversation and finite numbers about it, and nothing else."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from osmosis_ai.rollout.agent_workflow import AgentWorkflow, AgentWorkflowOutput
from osmosis_ai.rollout.context import AgentWorkflowContext
from osmosis_ai.rollout.types import AgentWorkflowConfig
from tests.rollout.programs import Answering


def test_an_output_needs_nothing() -> None:
    output = AgentWorkflowOutput()
    assert (output.messages, output.metrics, output.info) == (None, {}, {})


def test_the_conversation_is_kept_as_it_is() -> None:
    messages = [{"role": "user", "content": "hi"}]
    assert AgentWorkflowOutput(messages=messages).messages is messages


@pytest.mark.parametrize("messages", ["hello", [1], {"role": "user"}, 7])
def test_what_is_no_conversation_is_refused(messages: Any) -> None:
    with pytest.raises(ValidationError, match="must be a"):
        AgentWorkflowOutput(messages=messages)


def test_metrics_become_finite_floats() -> None:
    metrics = {"turns": 3, "score": np.float32(0.5), "won": True, "text": "0.25"}
    assert AgentWorkflowOutput.model_validate({"metrics": metrics}).metrics == {
        "turns": 3.0,
        "score": 0.5,
        "won": 1.0,
        "text": 0.25,
    }


@pytest.mark.parametrize("number", [math.nan, math.inf, "many", None, [1]])
def test_a_metric_that_is_no_finite_number_is_refused(number: Any) -> None:
    with pytest.raises(ValidationError):
        AgentWorkflowOutput(metrics={"a": number})


def test_an_unknown_key_is_refused() -> None:
    """A misspelt `messages` would otherwise be a success without a sample."""
    with pytest.raises(ValidationError, match="message"):
        AgentWorkflowOutput.model_validate({"message": []})


def test_a_changed_output_is_checked_again() -> None:
    output = AgentWorkflowOutput(metrics={"a": 1.0})
    output.metrics["a"] = math.nan
    with pytest.raises(ValidationError):
        AgentWorkflowOutput.model_validate(output)


def test_a_workflow_keeps_its_config() -> None:
    config = AgentWorkflowConfig(name="x")
    assert Answering().config is None
    assert Answering(config).config is config


def test_a_workflow_must_define_run() -> None:
    class Nothing(AgentWorkflow[AgentWorkflowConfig]):
        pass

    with pytest.raises(TypeError, match="abstract"):
        Nothing()


async def test_the_base_class_runs_nothing() -> None:
    class CallsBase(AgentWorkflow[AgentWorkflowConfig]):
        async def run(self, ctx: AgentWorkflowContext[Any]) -> Any:
            return await super().run(ctx)

    with pytest.raises(NotImplementedError):
        await CallsBase().run(AgentWorkflowContext(prompt=[]))


def test_a_workflow_can_name_its_config_type_or_leave_it() -> None:
    class Named(AgentWorkflow[AgentWorkflowConfig]):
        async def run(self, ctx: AgentWorkflowContext[AgentWorkflowConfig]) -> None: ...

    class Plain(AgentWorkflow):
        async def run(self, ctx: AgentWorkflowContext) -> None: ...

    assert issubclass(Named, AgentWorkflow)
    assert Plain(None).config is None
