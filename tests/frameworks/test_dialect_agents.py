"""Other people's agents over the APIs they speak themselves, recorded as chat completions."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("agents", reason="runs in the environment of OpenAI Agents")
pytest.importorskip("pydantic_ai", reason="runs in the environment of OpenAI Agents")

from agents import Agent, OpenAIResponsesModel, RunConfig, Runner, function_tool
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.providers.anthropic import AnthropicProvider

from osmosis_ai.testing import call_tool
from tests.frameworks.dialect import Place, rollout_at

# LiteLLM warns of itself.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")

REPLIES: list[Any] = [
    {**call_tool("multiply", a=6, b=7), "reasoning_content": "a product"},
    "#### 42",
]


def multiply(a: int, b: int) -> str:
    """Multiply two numbers."""
    return str(a * b)


async def run_openai_agent(place: Place, *, stream: bool) -> str:
    async with AsyncOpenAI(base_url=place.base_url, api_key=place.api_key) as client:
        model = OpenAIResponsesModel("gpt-5.5", client)
        agent = Agent(name="solver", model=model, tools=[function_tool(multiply)])
        quiet = RunConfig(tracing_disabled=True)
        if not stream:
            return str((await Runner.run(agent, "6 times 7", run_config=quiet)).final_output)
        running = Runner.run_streamed(agent, "6 times 7", run_config=quiet)
        async for _ in running.stream_events():
            pass
        return str(running.final_output)


async def run_pydantic_agent(place: Place, *, stream: bool) -> str:
    async with AsyncAnthropic(base_url=place.base_url, api_key=place.api_key) as client:
        provider = AnthropicProvider(anthropic_client=client)
        model = AnthropicModel("claude-sonnet-4-5", provider=provider)
        agent = PydanticAgent(model, tools=[multiply])
        if not stream:
            return (await agent.run("6 times 7")).output
        async with agent.run_stream("6 times 7") as running:
            return str(await running.get_output())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("run", [run_openai_agent, run_pydantic_agent])
async def test_an_agent_with_a_tool_is_recorded(run: Any, stream: bool) -> None:
    with rollout_at("recorder", REPLIES) as place:
        assert await run(place, stream=stream) == "#### 42"
        sample = await place.sample()
        usage = place.endpoint.usage()
    roles = [message["role"] for message in sample.messages]
    assert roles == ["user", "assistant", "tool", "assistant"]
    assert sample.messages[1]["reasoning_content"] == "a product"
    assert sample.messages[2]["content"] == "42"
    assert (usage.calls, usage.failed_calls) == (2, 0)
    assert len(sample.extra_fields["endpoint"]["turns"]) == 2
