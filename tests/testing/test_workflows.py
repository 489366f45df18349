"""The tiny workflows and graders of the test kit."""

from __future__ import annotations

from typing import Any

import pytest

from osmosis_ai.rollout import ExecutionRequest, ExecutionResult, LocalBackend, RolloutContext
from osmosis_ai.testing import (
    ChatWorkflow,
    EchoWorkflow,
    ExactMatchGrader,
    FailingWorkflow,
    HttpReply,
    RemovingGrader,
    ScriptedModel,
    ask_model,
)

REQUEST = ExecutionRequest(id="r1", prompt=[{"role": "user", "content": "4"}], label="4")


async def run(workflow: Any, grader: Any = None) -> ExecutionResult:
    backend = LocalBackend(workflow=workflow, grader=grader)
    return await backend.run_grader(REQUEST, await backend.run_workflow(REQUEST))


async def test_an_echo_is_right_where_the_question_is_the_answer() -> None:
    result = await run(EchoWorkflow, ExactMatchGrader)
    assert result.sample is not None
    assert result.sample.reward == 1.0


async def test_a_removed_sample_has_no_reward() -> None:
    result = await run(EchoWorkflow, RemovingGrader)
    assert result.sample is not None
    assert (result.sample.remove_sample, result.sample.reward) == (True, None)


@pytest.mark.parametrize("grader", [ExactMatchGrader, RemovingGrader])
async def test_graders_say_that_there_is_no_sample(grader: Any) -> None:
    result = await run(FailingWorkflow, grader)
    assert result.err_message == "workflow produced no sample"


async def test_a_chat_asks_the_model_of_its_rollout() -> None:
    with (
        ScriptedModel("5", api_key="key") as model,
        RolloutContext(chat_completions_url=model.base_url, api_key="key"),
    ):
        result = await run(ChatWorkflow, ExactMatchGrader)
    assert result.sample is not None
    assert result.sample.messages[-1] == {"role": "assistant", "content": "5"}
    assert result.sample.reward == 0.0


async def test_a_models_error_is_raised() -> None:
    with (
        ScriptedModel(HttpReply(503, "busy")) as model,
        RolloutContext(chat_completions_url=model.base_url),
        pytest.raises(RuntimeError, match="the model answered 503: busy"),
    ):
        await ask_model(REQUEST.prompt, temperature=0)
    assert model.calls[0].request["temperature"] == 0


async def test_there_is_no_model_outside_a_rollout() -> None:
    with pytest.raises(RuntimeError, match="outside a rollout"):
        await ask_model(REQUEST.prompt)
