"""A Pydantic AI agent as a rollout: its model is the policy, its calls are the sample."""

from __future__ import annotations

from answer import AnswerGrader
from pydantic_ai import Agent, UsageLimits
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from osmosis_ai.rollout import (
    AgentWorkflow,
    AgentWorkflowConfig,
    AgentWorkflowContext,
    LocalBackend,
)
from osmosis_ai.rollout.integrations.agents.openai import MODEL_NAME, rollout_client
from osmosis_ai.rollout.server import create_rollout_server


def multiply(val1: float, val2: float) -> str:
    """Multiply two numbers exactly."""
    return f"{val1 * val2:.12g}"


class PydanticAIWorkflow(AgentWorkflow):
    """Let the agent run until the model calls no more tools."""

    async def run(self, ctx: AgentWorkflowContext) -> None:
        """The recorder makes the sample: see `capture` below."""
        system, user = (message["content"] for message in ctx.prompt)
        provider = OpenAIProvider(openai_client=rollout_client())
        agent = Agent(
            OpenAIChatModel(MODEL_NAME, provider=provider), instructions=system, tools=[multiply]
        )
        await agent.run(user, usage_limits=UsageLimits(request_limit=8))


backend = LocalBackend(
    workflow=PydanticAIWorkflow,
    workflow_config=AgentWorkflowConfig(name="multiply", capture="endpoint"),
    grader=AnswerGrader,
)
app = create_rollout_server(backend=backend)
