"""The workflow and its config."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from multiply_rollout.tools import multiply
from osmosis_ai.rollout.agent_workflow import AgentWorkflow
from osmosis_ai.rollout.context import AgentWorkflowContext
from osmosis_ai.rollout.integrations.agents.strands import (
    OsmosisRolloutModel,
    OsmosisStrandsAgent,
)
from osmosis_ai.rollout.types import AgentWorkflowConfig


class MultiplyConfig(AgentWorkflowConfig):
    """Which model and tools the agent has."""

    name: str = "MultiplyAgentWorkflow"
    model: OsmosisRolloutModel = OsmosisRolloutModel(
        params={"temperature": 1.0, "top_p": 1.0, "max_tokens": 16384}
    )
    tools: list[Any] = Field(default_factory=lambda: [multiply])


class MultiplyWorkflow(AgentWorkflow[MultiplyConfig]):
    """Let the agent run until the model calls no more tools."""

    async def run(self, ctx: AgentWorkflowContext[MultiplyConfig]) -> None:
        """The agent is the sample source."""
        assert ctx.config is not None
        agent = OsmosisStrandsAgent(
            name=ctx.config.name,
            model=ctx.config.model,
            tools=ctx.config.tools,
            messages=ctx.prompt,
            callback_handler=None,
        )
        await agent.invoke_async()


config = MultiplyConfig()
