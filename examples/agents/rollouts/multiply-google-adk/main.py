"""A Google ADK agent as a rollout: its model is the policy, its calls are the sample."""

from __future__ import annotations

import os

# Before LiteLLM is imported: else the import asks the network for a table of prices.
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

from answer import AnswerGrader
from google.adk.agents import LlmAgent, RunConfig
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from google.genai import types

from osmosis_ai.rollout import (
    AgentWorkflow,
    AgentWorkflowConfig,
    AgentWorkflowContext,
    LocalBackend,
)
from osmosis_ai.rollout.integrations.agents.litellm import litellm_kwargs
from osmosis_ai.rollout.server import create_rollout_server


def multiply(val1: float, val2: float) -> str:
    """Multiply two numbers exactly."""
    return f"{val1 * val2:.12g}"


class AdkWorkflow(AgentWorkflow):
    """Let the agent run until the model calls no more tools."""

    async def run(self, ctx: AgentWorkflowContext) -> None:
        """The recorder makes the sample: see `capture` below."""
        system, user = (message["content"] for message in ctx.prompt)
        agent = LlmAgent(
            name="multiply",
            model=LiteLlm(**litellm_kwargs()),
            # A function: in a text, braces would be filled in.
            instruction=lambda _: system,
            tools=[multiply],
        )
        async with InMemoryRunner(agent, app_name="multiply") as runner:
            session = await runner.session_service.create_session(
                app_name="multiply", user_id="rollout"
            )
            async for _ in runner.run_async(
                user_id="rollout",
                session_id=session.id,
                new_message=types.Content(role="user", parts=[types.Part(text=user)]),
                run_config=RunConfig(max_llm_calls=8),
            ):
                pass


backend = LocalBackend(
    workflow=AdkWorkflow,
    workflow_config=AgentWorkflowConfig(name="multiply", capture="endpoint"),
    grader=AnswerGrader,
)
app = create_rollout_server(backend=backend)
