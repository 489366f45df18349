"""A smolagents agent as a rollout: its model is the policy, its calls are the sample."""

from __future__ import annotations

import asyncio

from answer import AnswerGrader
from smolagents import LogLevel, OpenAIModel, ToolCallingAgent, tool

from osmosis_ai.rollout import (
    AgentWorkflow,
    AgentWorkflowConfig,
    AgentWorkflowContext,
    LocalBackend,
    get_rollout_context,
)
from osmosis_ai.rollout.server import create_rollout_server


@tool
def multiply(val1: float, val2: float) -> str:
    """Multiply two numbers exactly.

    Args:
        val1: the first
        val2: the second
    """
    return f"{val1 * val2:.12g}"


class SmolagentsWorkflow(AgentWorkflow):
    """Let the agent run until it gives its final answer."""

    async def run(self, ctx: AgentWorkflowContext) -> None:
        """The recorder makes the sample: see `capture` below."""
        rollout = get_rollout_context()
        assert rollout is not None
        model = OpenAIModel(
            "osmosis-rollout", api_base=rollout.chat_completions_url, api_key=rollout.api_key
        )
        task = "\n\n".join(message["content"] for message in ctx.prompt)
        agent = ToolCallingAgent(
            [multiply], model, max_steps=8, verbosity_level=LogLevel.OFF, max_tool_threads=1
        )
        # It is synchronous: in a thread, the other rollouts go on meanwhile.
        await asyncio.to_thread(agent.run, task)


backend = LocalBackend(
    workflow=SmolagentsWorkflow,
    workflow_config=AgentWorkflowConfig(name="multiply", capture="endpoint"),
    grader=AnswerGrader,
)
app = create_rollout_server(backend=backend)
