"""A LangGraph agent as a rollout: its chat model is the policy, its calls are the sample."""

from __future__ import annotations

from typing import Any

from answer import AnswerGrader
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

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
    """Multiply two numbers exactly."""
    return f"{val1 * val2:.12g}"


class LangGraphWorkflow(AgentWorkflow):
    """Let the graph run until the model calls no more tools."""

    async def run(self, ctx: AgentWorkflowContext) -> None:
        """The recorder makes the sample: see `capture` below."""
        rollout = get_rollout_context()
        assert rollout is not None
        model = ChatOpenAI(
            model="osmosis-rollout",
            base_url=rollout.chat_completions_url,
            api_key=rollout.api_key,  # type: ignore[arg-type]
        ).bind_tools([multiply])

        async def ask(state: MessagesState) -> dict[str, Any]:
            return {"messages": [await model.ainvoke(state["messages"])]}

        graph = StateGraph(MessagesState)
        graph.add_node("model", ask)
        graph.add_node("tools", ToolNode([multiply]))
        graph.add_edge(START, "model")
        graph.add_conditional_edges("model", tools_condition)
        graph.add_edge("tools", "model")
        await graph.compile().ainvoke({"messages": ctx.prompt}, {"recursion_limit": 16})


backend = LocalBackend(
    workflow=LangGraphWorkflow,
    workflow_config=AgentWorkflowConfig(name="multiply", capture="endpoint"),
    grader=AnswerGrader,
)
app = create_rollout_server(backend=backend)
