"""OpenAI Agents as rollouts."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import Field

pytest.importorskip("agents", reason="runs in the environment of OpenAI Agents")

from agents import (
    Agent,
    MaxTurnsExceeded,
    ModelSettings,
    RunConfig,
    Runner,
    SessionSettings,
    SQLiteSession,
    function_tool,
    trace,
)
from agents.tracing import TracingProcessor, set_trace_processors

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
    get_rollout_context,
)
from osmosis_ai.rollout.integrations.agents.openai_agents import (
    OsmosisAgent,
    OsmosisLitellmModel,
    OsmosisMemorySession,
    OsmosisRolloutModel,
    SessionSampleSource,
)
from osmosis_ai.rollout.trajectory import convert_sample_to_trajectory, save_trajectory
from tests.frameworks.policy import (
    USAGE,
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

# LiteLLM warns of itself, at each chunk of a stream; as an error that would end the stream.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")

PROMPT = [
    {"role": "system", "content": "You multiply."},
    {"role": "user", "content": "val1 = 6\nval2 = 7"},
]


@function_tool
def multiply(val1: float, val2: float) -> str:
    """Multiply two numbers."""
    return f"{val1 * val2:g}"


@function_tool
def explode() -> str:
    """Never works."""
    raise RuntimeError("the tool fell over")


class MultiplyConfig(AgentWorkflowConfig):
    name: str = "multiply"
    model: OsmosisRolloutModel = OsmosisRolloutModel()
    tools: list[Any] = Field(default_factory=lambda: [multiply, explode])


CONFIG = MultiplyConfig()
SETTINGS = ModelSettings(temperature=1, top_p=1, max_tokens=64)


class Multiply(AgentWorkflow[MultiplyConfig]):
    async def run(self, ctx: AgentWorkflowContext[MultiplyConfig]) -> None:
        assert ctx.config is not None
        agent = OsmosisAgent(
            name="multiply",
            instructions="Use the tool.",
            model=ctx.config.model,
            tools=ctx.config.tools,
            model_settings=SETTINGS,
        )
        await Runner.run(agent, ctx.prompt, session=OsmosisMemorySession(), max_turns=8)  # type: ignore[arg-type]


class LastTextGrader(Grader):
    """As in the template: the number in the `output_text` parts of the last item."""

    async def grade(self, ctx: GraderContext) -> None:
        assert ctx.sample is not None
        parts = ctx.sample.messages[-1]["content"]
        text = "".join(part["text"] for part in parts if part["type"] == "output_text")
        found = re.search(r"#### (\d+)", text)
        ctx.set_reward(1.0 if found and found[1] == ctx.label else 0.0)


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


def solver(**fields: Any) -> OsmosisAgent[Any]:
    return OsmosisAgent(name="solver", **{"model": OsmosisRolloutModel(), **fields})


def text_of(item: Any) -> str:
    return str(item["content"][0]["text"])


async def test_an_agent_with_a_tool_is_graded_by_its_items() -> None:
    runner = backend(grader=LastTextGrader)
    with serving(multiplies) as policy, policy.context():
        result = await runner.run_workflow(request())
        graded = await runner.run_grader(request(), result)
    assert graded.sample is not None, result.err_message
    assert graded.sample.reward == 1.0
    kinds = [item.get("type", item.get("role")) for item in graded.sample.messages]
    assert kinds == ["system", "user", "function_call", "function_call_output", "message"]
    sent = policy.requests[0]
    assert sent["model"] == "osmosis-rollout"
    assert sent["stream"] is True
    assert (sent["temperature"], sent["max_tokens"]) == (1, 64)
    assert policy.keys == ["Bearer key"] * 2


async def test_its_trajectory_is_chat_shaped_and_valid(tmp_path: Path) -> None:
    with serving(multiplies) as policy:
        result = await run(policy)
    assert result.sample is not None
    trajectory = convert_sample_to_trajectory(result.sample, rollout_id="r1")
    sources = [step["source"] for step in trajectory["steps"]]
    assert sources == ["system", "system", "user", "agent", "agent"]
    assert trajectory["steps"][0]["message"] == "Use the tool."
    assert trajectory["steps"][3]["observation"]["results"][0]["content"] == "42"
    await save_trajectory(rollout_id="r1", result=result, artifact_root=tmp_path)
    assert (tmp_path / "r1" / "trajectory.json").exists()


async def test_a_streamed_run_and_its_usage() -> None:
    seen: list[Any] = []

    class Streamed(AgentWorkflow):
        async def run(self, ctx: AgentWorkflowContext) -> None:
            result = Runner.run_streamed(solver(), "hello", session=OsmosisMemorySession())
            seen.extend([event.type async for event in result.stream_events()])
            seen.append(result.context_wrapper.usage.total_tokens)

    with serving(lambda request, rollout_id: "hi") as policy:
        result = await run(policy, Streamed)
    assert result.sample is not None, result.err_message
    assert "raw_response_event" in seen
    assert seen[-1] == USAGE["total_tokens"]


async def test_a_handoff_stays_in_the_one_conversation() -> None:
    class HandsOff(AgentWorkflow):
        async def run(self, ctx: AgentWorkflowContext) -> None:
            expert = solver(tools=[multiply], instructions="You are the expert.")
            expert.name = "expert"
            first = solver(handoffs=[expert], instructions="Hand over.")
            await Runner.run(first, "6 times 7", session=OsmosisMemorySession())

    def answer(request: Request, rollout_id: str) -> Reply:
        names = [tool["function"]["name"] for tool in request.get("tools", [])]
        if "transfer_to_expert" in names:
            return call("transfer_to_expert", {})
        return "the expert says 42"

    with serving(answer) as policy:
        result = await run(policy, HandsOff)
    assert result.sample is not None, result.err_message
    assert text_of(result.sample.messages[-1]) == "the expert says 42"
    assert policy.requests[1]["messages"][0]["content"] == "You are the expert."
    assert result.sample.archived_messages is not None
    assert result.sample.archived_messages[0]["content"] == "Hand over."


async def test_concurrent_rollouts_never_mix_conversations() -> None:
    def answer(request: Request, rollout_id: str) -> Reply:
        if turn(request) == 0:
            return call("multiply", {"val1": int(rollout_id), "val2": 1})
        return f"{rollout_id} {last_tool_result(request)}"

    runner = backend(workflow_config=MultiplyConfig(concurrency={"max_concurrent": 64}))

    async def one(policy: Policy, number: int) -> tuple[str, str]:
        results: list[ExecutionResult] = []

        async def keep(result: ExecutionResult) -> None:
            results.append(result)

        with policy.context(str(number), key=f"key-{number}"):
            prompt = [{"role": "user", "content": f"I am {number}"}]
            await runner.execute(request(str(number), prompt=prompt), keep)
        sample = results[0].sample
        assert sample is not None, results[0].err_message
        return sample.messages[0]["content"], text_of(sample.messages[-1])

    with serving(answer) as policy:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(policy, number)) for number in range(500)]
    assert [task.result() for task in tasks] == [(f"I am {n}", f"{n} {n}") for n in range(500)]
    assert all(
        key == f"Bearer key-{rollout}" and f"I am {rollout}" in str(request["messages"])
        for rollout, key, request in zip(policy.served, policy.keys, policy.requests, strict=True)
    )


async def test_a_second_session_in_one_rollout_is_refused() -> None:
    class Two(AgentWorkflow):
        async def run(self, ctx: AgentWorkflowContext) -> None:
            OsmosisMemorySession()
            OsmosisMemorySession()

    with serving(multiplies) as policy:
        result = await run(policy, Two)
    assert result.err_category is RolloutErrorCategory.VALIDATION_ERROR
    assert "build exactly one agent or session in run()" in str(result.err_message)


async def test_a_session_of_another_rollout_is_refused() -> None:
    with serving(multiplies) as policy:
        with policy.context("r1"):
            session = OsmosisMemorySession()
        with policy.context("r2"):
            agent = solver()
            OsmosisMemorySession()
            with pytest.raises(RuntimeError, match="belongs to another rollout: build a new one"):
                await Runner.run(agent, "hello", session=session)


async def test_a_run_without_a_session_is_refused() -> None:
    class Forgets(AgentWorkflow):
        async def run(self, ctx: AgentWorkflowContext) -> None:
            await Runner.run(solver(), "hello")

    with serving(multiplies) as policy:
        result = await run(policy, Forgets)
    assert "pass session=OsmosisMemorySession() to Runner.run" in str(result.err_message)
    assert policy.requests == []


def test_an_agent_built_outside_a_rollout_is_refused() -> None:
    with pytest.raises(RuntimeError, match=r"needs an active rollout: build it inside .* run\(\)"):
        solver()


async def test_the_placeholder_in_a_plain_agent_says_where_it_belongs() -> None:
    agent = Agent(name="plain", model=OsmosisRolloutModel())
    with pytest.raises(NotImplementedError, match="give it to an OsmosisAgent"):
        await Runner.run(agent, "hello", run_config=RunConfig(tracing_disabled=True))
    with pytest.raises(NotImplementedError, match="give it to an OsmosisAgent"):
        OsmosisRolloutModel().stream_response()


def test_another_model_makes_a_plain_agent() -> None:
    assert OsmosisAgent(name="plain", model="gpt-5").model == "gpt-5"


async def test_an_agent_may_be_cloned() -> None:
    with serving(multiplies) as policy, policy.context():
        agent = solver()
        clone = agent.clone(instructions="Be brief.")
    assert isinstance(clone, OsmosisAgent)
    assert clone.model is agent.model
    assert isinstance(clone.model, OsmosisLitellmModel)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"model": "gpt-5"}, "leave it out"),
        ({"base_url": "http://elsewhere"}, "leave it out"),
        ({"temperature": 1.0}, "sampling options belong in ModelSettings"),
    ],
)
def test_wrong_arguments_are_refused_at_once(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        OsmosisRolloutModel(**arguments)


@pytest.mark.parametrize(
    ("how", "said"),
    [("error", "the engine crashed"), ("cut", "onnection|payload|closed|peer"), ("end", "finish")],
)
async def test_an_answer_that_fails_in_its_middle_fails_the_rollout(how: str, said: str) -> None:
    """Half an answer must never be graded as if it were whole."""
    with serving(lambda request, rollout_id: Broken(text="#### 4", how=how)) as policy:
        result = await run(policy)
    assert not result.succeeded, result.sample
    assert re.search(said, str(result.err_message)), result.err_message


async def test_a_refused_call_shows_the_servers_words() -> None:
    with serving(lambda request, rollout_id: Broken(400, "the prompt is too long")) as policy:
        result = await run(policy)
    assert "the prompt is too long" in str(result.err_message)


async def test_a_tool_that_raises_is_told_to_the_model() -> None:
    def answer(request: Request, rollout_id: str) -> Reply:
        return call("explode", {}) if turn(request) == 0 else last_tool_result(request)

    with serving(answer) as policy:
        result = await run(policy)
    assert result.sample is not None, result.err_message
    assert "An error occurred while running the tool" in text_of(result.sample.messages[-1])


async def test_malformed_tool_arguments_are_told_to_the_model() -> None:
    def answer(request: Request, rollout_id: str) -> Reply:
        return call("multiply", "{not json") if turn(request) == 0 else last_tool_result(request)

    with serving(answer) as policy:
        result = await run(policy)
    assert result.sample is not None, result.err_message
    assert "An error occurred while running the tool" in text_of(result.sample.messages[-1])


async def test_an_unknown_tool_fails_the_rollout_by_name() -> None:
    with serving(lambda request, rollout_id: call("divide", {})) as policy:
        result = await run(policy)
    assert "divide" in str(result.err_message)


async def test_an_answer_without_content_is_an_empty_turn() -> None:
    with serving(lambda request, rollout_id: {"role": "assistant", "content": None}) as policy:
        result = await run(policy)
    assert result.succeeded, result.err_message
    assert result.sample is not None


async def test_reasoning_is_kept_beside_the_answer() -> None:
    said = {"role": "assistant", "content": "42", "reasoning_content": "six sevens"}
    with serving(lambda request, rollout_id: said) as policy:
        result = await run(policy)
    assert result.sample is not None
    assert "reasoning" in [item.get("type") for item in result.sample.messages]
    trajectory = convert_sample_to_trajectory(result.sample, rollout_id="r1")
    assert trajectory["steps"][-1]["reasoning_content"] == "six sevens"


async def test_an_image_reaches_the_model() -> None:
    url = "data:image/png;base64,iVBORw=="
    content = [
        {"type": "input_text", "text": "what is this?"},
        {"type": "input_image", "image_url": url, "detail": "auto"},
    ]
    with serving(lambda request, rollout_id: "a picture") as policy, policy.context():
        prompt = [{"role": "user", "content": content}]
        result = await backend().run_workflow(request(prompt=prompt))
    assert result.succeeded, result.err_message
    assert policy.requests[0]["messages"][1]["content"][1]["image_url"]["url"] == url


async def test_parallel_tool_calls_are_each_answered() -> None:
    def answer(request: Request, rollout_id: str) -> Reply:
        if turn(request) == 0:
            return calls(*[("multiply", {"val1": n, "val2": 10}) for n in range(5)])
        return " ".join(m["content"] for m in request["messages"] if m["role"] == "tool")

    with serving(answer) as policy:
        result = await run(policy)
    assert result.sample is not None, result.err_message
    assert text_of(result.sample.messages[-1]) == "0 10 20 30 40"


async def test_a_model_that_never_stops_meets_the_limit_after_200_turns() -> None:
    class Long(AgentWorkflow):
        async def run(self, ctx: AgentWorkflowContext) -> None:
            session = OsmosisMemorySession()
            with pytest.raises(MaxTurnsExceeded, match="200"):
                await Runner.run(solver(tools=[multiply]), "go", session=session, max_turns=200)

    def answer(request: Request, rollout_id: str) -> Reply:
        return call("multiply", {"val1": turn(request), "val2": 1}, call_id=f"c{turn(request)}")

    with serving(answer) as policy:
        result = await run(policy, Long)
    assert result.sample is not None, result.err_message
    assert len(policy.requests) == 200
    assert len(result.sample.messages) == 401
    convert_sample_to_trajectory(result.sample, rollout_id="r1")


async def test_a_conversation_that_cannot_be_archived_is_still_a_sample(
    caplog: pytest.LogCaptureFixture,
) -> None:
    session = OsmosisMemorySession()
    await session.add_items([{"type": "nobody knows"}])  # type: ignore[list-item]
    sample = await SessionSampleSource(session).get_sample()
    assert sample.messages == [{"type": "nobody knows"}]
    assert sample.archived_messages is None
    assert "the conversation is not archived" in caplog.text


async def test_any_session_may_be_the_source() -> None:
    class Kept(AgentWorkflow):
        async def run(self, ctx: AgentWorkflowContext) -> None:
            session = SQLiteSession("kept")
            context = get_rollout_context()
            assert context is not None
            context.set_sample_source(SessionSampleSource(session))
            try:
                await Runner.run(solver(), "hello", session=session)
                kept.append(await context.get_sample())
            finally:
                session.close()
            raise ValueError("read already")

    kept: list[Any] = []
    with serving(lambda request, rollout_id: "hi") as policy:
        await run(policy, Kept)
    assert [item["role"] for item in kept[0].messages] == ["user", "assistant"]


async def test_a_session_outside_a_rollout_is_a_plain_one() -> None:
    session = OsmosisMemorySession()
    items: list[Any] = [{"role": "user", "content": str(n)} for n in range(4)]
    await session.add_items(items)
    items[0]["content"] = "changed"
    assert [item["content"] for item in await session.get_items()] == ["0", "1", "2", "3"]
    assert [item["content"] for item in await session.get_items(2)] == ["2", "3"]
    assert await session.get_items(0) == []
    session.session_settings = SessionSettings(limit=1)
    assert len(await session.get_items()) == 1
    popped: Any = await session.pop_item()
    assert popped["content"] == "3"
    await session.clear_session()
    assert await session.get_items() == []
    assert await session.pop_item() is None
    assert len(session.session_id) == 32


class Recorded(TracingProcessor):
    def __init__(self) -> None:
        self.traces: list[str] = []
        self.spans: list[Any] = []

    def on_trace_start(self, trace: Any) -> None:
        self.traces.append(trace.name)

    def on_trace_end(self, trace: Any) -> None: ...

    def on_span_start(self, span: Any) -> None:
        self.spans.append(span)

    def on_span_end(self, span: Any) -> None: ...

    def shutdown(self) -> None: ...

    def force_flush(self) -> None: ...


async def test_the_vendors_tracing_is_off_inside_a_rollout_and_on_outside() -> None:
    recorded = Recorded()
    set_trace_processors([recorded])
    with serving(multiplies) as policy:
        with trace("mine"):
            result = await run(policy)
        assert result.succeeded
        with trace("again"):
            pass
    assert recorded.traces == ["mine", "again"]
    assert recorded.spans == []


async def test_the_example_runs_through_the_driver(tmp_path: Path) -> None:
    samples = await solve("multiply-openai-agents", tmp_path)
    assert samples[0].messages[2]["type"] == "function_call"
