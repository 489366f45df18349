"""An OpenAI Agents agent as a rollout: its session is the sample."""

from __future__ import annotations

from typing import Any

from agents import ModelSettings, Runner, function_tool
from answer import AnswerGrader

from osmosis_ai.rollout import (
    AgentWorkflow,
    AgentWorkflowConfig,
    AgentWorkflowContext,
    LocalBackend,
)
from osmosis_ai.rollout.integrations.agents.openai_agents import (
    OsmosisAgent,
    OsmosisMemorySession,
    OsmosisRolloutModel,
)
from osmosis_ai.rollout.server import create_rollout_server


@function_tool
def multiply(val1: float, val2: float) -> str:
    """Multiply two numbers exactly."""
    return f"{val1 * val2:.12g}"


class OpenAIAgentsWorkflow(AgentWorkflow):
    """Let the agent run until the model calls no more tools."""

    async def run(self, ctx: AgentWorkflowContext) -> None:
        """The session is the sample source."""
        agent: OsmosisAgent[Any] = OsmosisAgent(
            name="multiply",
            model=OsmosisRolloutModel(),
            tools=[multiply],
            model_settings=ModelSettings(temperature=1, top_p=1, max_tokens=4096),
        )
        prompt: list[Any] = ctx.prompt
        await Runner.run(agent, prompt, session=OsmosisMemorySession(), max_turns=8)


backend = LocalBackend(
    workflow=OpenAIAgentsWorkflow,
    workflow_config=AgentWorkflowConfig(name="multiply"),
    grader=AnswerGrader,
)
app = create_rollout_server(backend=backend)
