"""Strands agents as rollouts."""

from __future__ import annotations

import asyncio
import base64
import logging
import re
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic import Field

pytest.importorskip("strands", reason="runs in the environment of Strands")

from strands import Agent, tool
from strands.agent.conversation_manager import NullConversationManager

from osmosis_ai.errors import ConfigError
from osmosis_ai.rollout import (
    AgentWorkflow,
    AgentWorkflowConfig,
    AgentWorkflowContext,
    ExecutionRequest,
    ExecutionResult,
    Grader,
    GraderContext,
    LocalBackend,
    RolloutErrorCategory,
)
from osmosis_ai.rollout.integrations.agents.strands import (
    OsmosisRolloutModel,
    OsmosisStrandsAgent,
)
from osmosis_ai.rollout.trajectory import convert_sample_to_trajectory, save_trajectory
from tests.frameworks.policy import (
    Broken,
    Policy,
    Reply,
    Request,
    call,
    calls,
    last_tool_result,
    serving,
    turn,
)
from tests.frameworks.recipe import solve

PROMPT = [
    {"role": "system", "content": "You multiply."},
    {"role": "user", "content": "val1 = 6\nval2 = 7"},
]


@tool
def multiply(val1: float, val2: float) -> str:
    """Multiply two numbers.

    Args:
        val1: the first
        val2: the second
    """
    return f"{val1 * val2:g}"


@tool
def explode() -> str:
    """Never works."""
    raise RuntimeError("the tool fell over")


class MultiplyConfig(AgentWorkflowConfig):
    name: str = "multiply"
    model: OsmosisRolloutModel = OsmosisRolloutModel(
        params={"temperature": 1.0, "top_p": 1.0, "max_tokens": 64, "top_k": 5}
    )
    tools: list[Any] = Field(default_factory=lambda: [multiply])


CONFIG = MultiplyConfig()


class Multiply(AgentWorkflow[MultiplyConfig]):
    async def run(self, ctx: AgentWorkflowContext[MultiplyConfig]) -> None:
        assert ctx.config is not None
        agent = OsmosisStrandsAgent(
            name="multiply",
            model=ctx.config.model,
            tools=ctx.config.tools,
            messages=ctx.prompt,
            callback_handler=None,
        )
        await agent.invoke_async()


class ToolCallGrader(Grader):
    """As on the documentation's page."""

    async def grade(self, ctx: GraderContext) -> None:
        if ctx.sample is None:
            raise ValueError("workflow produced no sample")
        used_tool = False
        for message in ctx.sample.messages:
            if message.get("role") != "assistant":
                continue
            content = message.get("content") or []
            if isinstance(content, list) and any(
                isinstance(block, dict) and "toolUse" in block for block in content
            ):
                used_tool = True
                break
        ctx.set_reward(1.0 if used_tool else 0.0)


def multiplies(request: Request, rollout_id: str) -> Reply:
    if turn(request) == 0:
        return call("multiply", {"val1": 6, "val2": 7})
    return f"#### {last_tool_result(request)}"


def request(rollout_id: str = "r1", **fields: Any) -> ExecutionRequest:
    return ExecutionRequest(**{"id": rollout_id, "prompt": PROMPT, "label": "42", **fields})


def backend(workflow: type[AgentWorkflow[Any]] = Multiply, **fields: Any) -> LocalBackend:
    return LocalBackend(workflow=workflow, **{"workflow_config": CONFIG, **fields})


async def run(policy: Policy, workflow: type[AgentWorkflow[Any]] = Multiply) -> ExecutionResult:
    with policy.context():
        return await backend(workflow).run_workflow(request())


async def test_an_agent_with_a_tool_is_graded_by_its_native_messages() -> None:
    runner = backend(grader=ToolCallGrader)
    with serving(multiplies) as policy, policy.context():
        result = await runner.run_workflow(request())
        graded = await runner.run_grader(request(), result)
    assert graded.sample is not None
    assert graded.sample.reward == 1.0
    assert [message["role"] for message in graded.sample.messages] == [
        "system",
        "user",
        "assistant",
        "user",
        "assistant",
    ]
    assert graded.sample.messages[2]["content"][0]["toolUse"]["input"] == {"val1": 6, "val2": 7}
    assert graded.sample.messages[-1]["content"] == [{"text": "#### 42"}]
    sent = policy.requests[0]
    assert sent["model"] == "osmosis-rollout"
    assert (sent["temperature"], sent["max_tokens"], sent["top_k"]) == (1.0, 64, 5)
    assert policy.keys == ["Bearer key"] * 2


async def test_its_trajectory_is_chat_shaped_and_valid(tmp_path: Path) -> None:
    with serving(multiplies) as policy:
        result = await run(policy)
    assert result.sample is not None
    trajectory = convert_sample_to_trajectory(result.sample, rollout_id="r1")
    assert [step["source"] for step in trajectory["steps"]] == ["system", "user", "agent", "agent"]
    assert trajectory["steps"][2]["tool_calls"][0]["function_name"] == "multiply"
    assert trajectory["steps"][2]["observation"]["results"][0]["content"] == "42"
    await save_trajectory(rollout_id="r1", result=result, artifact_root=tmp_path)
    assert (tmp_path / "r1" / "trajectory.json").exists()


async def test_the_archive_keeps_a_system_prompt_given_apart() -> None:
    class Apart(AgentWorkflow):
        async def run(self, ctx: AgentWorkflowContext) -> None:
            agent = OsmosisStrandsAgent(
                OsmosisRolloutModel(), system_prompt="Be brief.", callback_handler=None
            )
            await agent.invoke_async("hello")

    with serving(lambda request, rollout_id: "hi") as policy:
        result = await run(policy, Apart)
    assert result.sample is not None
    assert [m["role"] for m in result.sample.messages] == ["user", "assistant"]
    assert result.sample.archived_messages is not None
    assert result.sample.archived_messages[0] == {"role": "system", "content": "Be brief."}


async def test_an_agent_called_like_a_function_blocks_nobody_for_good() -> None:
    class Plain(AgentWorkflow):
        async def run(self, ctx: AgentWorkflowContext) -> None:
            OsmosisStrandsAgent(OsmosisRolloutModel(), callback_handler=None)("hello")

    with serving(lambda request, rollout_id: "hi") as policy:
        result = await run(policy, Plain)
    assert result.succeeded, result.err_message


async def test_concurrent_rollouts_never_mix_conversations() -> None:
    """The policy answers with the id of the rollout whose endpoint was called."""

    def answer(request: Request, rollout_id: str) -> Reply:
        if turn(request) == 0:
            return call("multiply", {"val1": int(rollout_id), "val2": 1})
        return f"{rollout_id} {last_tool_result(request)}"

    config = MultiplyConfig(concurrency={"max_concurrent": 64})
    runner = backend(workflow_config=config)

    async def one(policy: Policy, number: int) -> tuple[str, str]:
        prompt = [{"role": "user", "content": f"I am {number}"}]
        results: list[ExecutionResult] = []
        with policy.context(str(number), key=f"key-{number}"):
            asked = request(str(number), prompt=prompt)

            async def keep(result: ExecutionResult) -> None:
                results.append(result)

            await runner.execute(asked, keep)
        sample = results[0].sample
        assert sample is not None, results[0].err_message
        return sample.messages[0]["content"][0]["text"], sample.messages[-1]["content"][0]["text"]

    with serving(answer) as policy:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(policy, number)) for number in range(500)]
    assert [task.result() for task in tasks] == [(f"I am {n}", f"{n} {n}") for n in range(500)]
    asked = zip(policy.served, policy.keys, policy.requests, strict=True)
    assert all(
        key == f"Bearer key-{rollout}"
        and request["messages"][0]["content"][0]["text"] == f"I am {rollout}"
        for rollout, key, request in asked
    )


async def test_a_second_agent_in_one_rollout_is_refused() -> None:
    class Two(AgentWorkflow):
        async def run(self, ctx: AgentWorkflowContext) -> None:
            OsmosisStrandsAgent(OsmosisRolloutModel())
            OsmosisStrandsAgent(OsmosisRolloutModel())

    with serving(multiplies) as policy:
        result = await run(policy, Two)
    assert result.err_category is RolloutErrorCategory.VALIDATION_ERROR
    assert "build exactly one agent or session in run()" in str(result.err_message)


def test_an_agent_built_outside_a_rollout_is_refused() -> None:
    with pytest.raises(RuntimeError, match=r"needs an active rollout: build it inside .* run\(\)"):
        OsmosisStrandsAgent(OsmosisRolloutModel())


async def test_a_rollout_without_an_endpoint_says_what_to_do() -> None:
    result = await backend().run_workflow(request())
    assert "set OSMOSIS_CHAT_COMPLETIONS_URL" in str(result.err_message)


async def test_the_placeholder_in_a_plain_agent_says_where_it_belongs() -> None:
    agent = Agent(OsmosisRolloutModel(), callback_handler=None)
    with pytest.raises(RuntimeError, match="give it to an OsmosisStrandsAgent"):
        await agent.invoke_async("hello")
    with pytest.raises(RuntimeError, match="give it to an OsmosisStrandsAgent"):
        OsmosisRolloutModel().structured_output(AgentWorkflowConfig)


async def test_a_prompt_in_strands_own_blocks_stays_as_it_is() -> None:
    prompt = [{"role": "user", "content": [{"text": "hello"}]}]
    with serving(lambda request, rollout_id: "hi") as policy, policy.context():
        result = await backend().run_workflow(request(prompt=prompt))
    assert result.sample is not None, result.err_message
    assert result.sample.messages[0]["content"] == prompt[0]["content"]


@pytest.mark.parametrize("model", [None, "some.model"])
def test_another_model_makes_a_plain_agent(model: str | None) -> None:
    pytest.importorskip("boto3")
    with serving(multiplies) as policy, policy.context() as context:
        OsmosisStrandsAgent(model, callback_handler=None)
        assert context.sample_source is None


@pytest.mark.parametrize(
    "arguments",
    [
        {"model_id": "gpt-5"},
        {"client_args": {"api_base": "http://elsewhere"}},
        {"params": {"mock_response": "42"}},
    ],
)
def test_what_the_rollout_decides_is_refused_at_once(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="leave it out"):
        OsmosisRolloutModel(**arguments)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("error", "the engine crashed"),
        ("cut", "onnection|payload|closed|peer"),
        ("end", "ended its answer without a finish reason"),
    ],
)
async def test_an_answer_that_fails_in_its_middle_fails_the_rollout(how: str, said: str) -> None:
    """Half an answer must never be graded as if it were whole."""
    with serving(lambda request, rollout_id: Broken(text="#### 4", how=how)) as policy:
        result = await run(policy)
    assert not result.succeeded
    assert re.search(said, str(result.err_message)), result.err_message
    assert result.sample is None


async def test_a_refused_call_shows_the_servers_words() -> None:
    with serving(lambda request, rollout_id: Broken(400, "the prompt is too long")) as policy:
        result = await run(policy)
    assert "the prompt is too long" in str(result.err_message)


async def test_a_tool_that_raises_is_told_to_the_model() -> None:
    class Raises(AgentWorkflow):
        async def run(self, ctx: AgentWorkflowContext) -> None:
            agent = OsmosisStrandsAgent(
                OsmosisRolloutModel(), tools=[explode], callback_handler=None
            )
            await agent.invoke_async("go")

    def answer(request: Request, rollout_id: str) -> Reply:
        return call("explode", {}) if turn(request) == 0 else last_tool_result(request)

    with serving(answer) as policy:
        result = await run(policy, Raises)
    assert result.sample is not None
    block = result.sample.messages[2]["content"][0]["toolResult"]
    assert block["status"] == "error"
    assert "the tool fell over" in result.sample.messages[-1]["content"][0]["text"]


async def test_malformed_tool_arguments_are_told_to_the_model() -> None:
    def answer(request: Request, rollout_id: str) -> Reply:
        return call("multiply", "{not json") if turn(request) == 0 else last_tool_result(request)

    with serving(answer) as policy:
        result = await run(policy)
    assert result.sample is not None, result.err_message
    assert result.sample.messages[3]["content"][0]["toolResult"]["status"] == "error"


async def test_an_unknown_tool_is_told_to_the_model() -> None:
    def answer(request: Request, rollout_id: str) -> Reply:
        return call("divide", {}) if turn(request) == 0 else last_tool_result(request)

    with serving(answer) as policy:
        result = await run(policy)
    assert result.sample is not None
    assert "Unknown tool: divide" in result.sample.messages[-1]["content"][0]["text"]


async def test_an_answer_without_content_is_an_empty_turn() -> None:
    with serving(lambda request, rollout_id: {"role": "assistant", "content": None}) as policy:
        result = await run(policy)
    assert result.sample is not None, result.err_message
    assert result.sample.messages[-1]["role"] == "assistant"
    assert result.sample.archived_messages is not None
    assert result.sample.archived_messages[-1] == {"role": "assistant", "content": ""}


async def test_reasoning_is_kept_beside_the_answer(caplog: pytest.LogCaptureFixture) -> None:
    said = {"role": "assistant", "content": "42", "reasoning_content": "six sevens"}
    with serving(lambda request, rollout_id: said) as policy:
        result = await run(policy)
    assert result.sample is not None
    assert result.sample.messages[-1]["content"][0]["reasoningContent"]["reasoningText"][
        "text"
    ] == ("six sevens")
    trajectory = convert_sample_to_trajectory(result.sample, rollout_id="r1")
    assert trajectory["steps"][-1]["reasoning_content"] == "six sevens"
    assert caplog.records == []


async def test_an_inline_image_of_the_prompt_reaches_the_model() -> None:
    url = "data:image/png;base64," + base64.b64encode(b"\x89PNG").decode()
    prompt = [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "what is this?"},
                {"type": "image_url", "image_url": {"url": url}},
            ],
        }
    ]
    with serving(lambda request, rollout_id: "a picture") as policy, policy.context():
        result = await backend().run_workflow(request(prompt=prompt))
    assert result.sample is not None, result.err_message
    assert result.sample.messages[0]["content"][1]["image"]["source"]["bytes"] == b"\x89PNG"
    assert policy.requests[0]["messages"][0]["content"][1]["image_url"]["url"] == url


async def test_a_linked_image_of_the_prompt_says_what_to_do() -> None:
    part = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
    prompt = [{"role": "user", "content": [part]}]
    with serving(multiplies) as policy, policy.context():
        result = await backend().run_workflow(request(prompt=prompt))
    assert "give it as data:image/png;base64" in str(result.err_message)


async def test_parallel_tool_calls_are_each_answered() -> None:
    def answer(request: Request, rollout_id: str) -> Reply:
        if turn(request) == 0:
            return calls(*[("multiply", {"val1": n, "val2": 10}) for n in range(5)])
        return " ".join(m["content"] for m in request["messages"] if m["role"] == "tool")

    with serving(answer) as policy:
        result = await run(policy)
    assert result.sample is not None
    assert result.sample.messages[-1]["content"] == [{"text": "0 10 20 30 40"}]


async def test_a_model_that_never_stops_is_stopped_by_the_workflow_after_200_turns() -> None:
    """Nothing of the conversation is lost where the agent keeps it all."""

    class Long(AgentWorkflow):
        async def run(self, ctx: AgentWorkflowContext) -> None:
            agent = OsmosisStrandsAgent(
                OsmosisRolloutModel(),
                tools=[multiply],
                callback_handler=None,
                conversation_manager=NullConversationManager(),
            )
            await agent.invoke_async("go", limits={"turns": 200})

    def answer(request: Request, rollout_id: str) -> Reply:
        return call("multiply", {"val1": turn(request), "val2": 1}, call_id=f"c{turn(request)}")

    with serving(answer) as policy:
        result = await run(policy, Long)
    assert result.sample is not None, result.err_message
    assert len(policy.requests) == 200
    assert len(result.sample.messages) == 401
    convert_sample_to_trajectory(result.sample, rollout_id="r1")


async def test_messages_that_strands_drops_are_spoken_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def answer(request: Request, rollout_id: str) -> Reply:
        if len(policy.requests) > 60:
            return "done"
        return call("multiply", {"val1": 1, "val2": 1}, call_id=f"c{len(policy.requests)}")

    with serving(answer) as policy:
        result = await run(policy)
    assert result.sample is not None, result.err_message
    assert "pass conversation_manager=NullConversationManager()" in caplog.text


async def test_a_conversation_that_cannot_be_archived_is_still_a_sample(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Strange(AgentWorkflow):
        async def run(self, ctx: AgentWorkflowContext) -> None:
            agent = OsmosisStrandsAgent(OsmosisRolloutModel(), callback_handler=None)
            await agent.invoke_async("go")
            agent.messages.append(cast(Any, {"role": "user", "content": [{"video": {}}]}))

    with (
        serving(lambda request, rollout_id: "ok") as policy,
        caplog.at_level(logging.WARNING),
    ):
        result = await run(policy, Strange)
    assert result.sample is not None
    assert result.sample.archived_messages is None
    assert "the conversation is not archived" in caplog.text


async def test_a_workspace_with_a_package_beside_its_main_runs_unchanged(tmp_path: Path) -> None:
    """Workflow, tools, config with the placeholder in it, and grader in modules of their own."""
    samples = await solve("multiply-strands", tmp_path)
    assert {"toolUse"} == set(samples[0].messages[2]["content"][0])
