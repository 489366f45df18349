"""Multiply two numbers with a tool: a workflow, a grader and the server that runs them."""

from __future__ import annotations

import json
import os
import re
from typing import Any

import aiohttp
import uvicorn

from osmosis_ai.rollout import (
    AgentWorkflow,
    AgentWorkflowConfig,
    AgentWorkflowContext,
    AgentWorkflowOutput,
    Grader,
    GraderContext,
    LocalBackend,
    MessageDict,
    get_rollout_context,
)
from osmosis_ai.rollout.server import create_rollout_server

MULTIPLY_TOOL = {
    "type": "function",
    "function": {
        "name": "multiply",
        "description": "Multiply two numbers exactly.",
        "parameters": {
            "type": "object",
            "properties": {"val1": {"type": "number"}, "val2": {"type": "number"}},
            "required": ["val1", "val2"],
        },
    },
}


class MultiplyConfig(AgentWorkflowConfig):
    """How the agent may go about it."""

    name: str = "multiply"
    max_turns: int = 8
    """Policy calls after which the conversation ends as it stands."""


class MultiplyWorkflow(AgentWorkflow[MultiplyConfig]):
    """Ask the policy, run the tools it calls, and ask again until it answers in words."""

    async def run(self, ctx: AgentWorkflowContext[MultiplyConfig]) -> AgentWorkflowOutput:
        """Return the whole conversation and how many tools were used in it."""
        max_turns = ctx.config.max_turns if ctx.config else 8
        messages = list(ctx.prompt)
        tool_calls = 0
        # No timeout of its own: whoever started the rollout holds the deadline.
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session:
            for _ in range(max_turns):
                reply = await ask_policy(session, messages)
                messages.append(reply)
                if not reply.get("tool_calls"):
                    break
                messages.extend(run_tool(call) for call in reply["tool_calls"])
                tool_calls += len(reply["tool_calls"])
        return AgentWorkflowOutput(messages=messages, metrics={"tool_calls": tool_calls})


class MultiplyGrader(Grader):
    """1.0 where the last message ends in `#### <the product>`, else 0.0."""

    async def grade(self, ctx: GraderContext) -> None:
        """Compare the answer with the row's `ground_truth`."""
        if ctx.sample is None or ctx.label is None:
            raise ValueError("multiply needs a sample and a row with a ground_truth")
        answer = find_answer(ctx.sample.messages[-1].get("content"))
        correct = answer is not None and abs(answer - float(ctx.label)) < 0.01
        ctx.set_reward(1.0 if correct else 0.0)


async def ask_policy(session: aiohttp.ClientSession, messages: list[MessageDict]) -> MessageDict:
    """One call to the model under test, at the URL that belongs to this rollout."""
    context = get_rollout_context()
    if context is None:
        raise RuntimeError("ask_policy was called outside a rollout")
    async with session.post(
        f"{context.chat_completions_url}/chat/completions",
        headers={"Authorization": f"Bearer {context.api_key}"},
        json={"model": "policy", "messages": messages, "tools": [MULTIPLY_TOOL]},
    ) as response:
        if response.status != 200:
            raise RuntimeError(f"the policy answered {response.status}: {await response.text()}")
        completion = await response.json()
    message: MessageDict = completion["choices"][0]["message"]
    return message


def run_tool(call: dict[str, Any]) -> MessageDict:
    """The tool's message for one call; a call that makes no sense is answered, not raised."""
    try:
        arguments = json.loads(call["function"]["arguments"])
        result = format(multiply(float(arguments["val1"]), float(arguments["val2"])), ".12g")
    except (ValueError, TypeError, KeyError) as error:
        result = f"error: call multiply with the numbers val1 and val2 ({error!r})"
    return {"role": "tool", "tool_call_id": call.get("id"), "content": result}


def multiply(val1: float, val2: float) -> float:
    """The tool itself."""
    return val1 * val2


def find_answer(content: Any) -> float | None:
    """The number after the last `####` of a text, or None."""
    found = re.findall(r"####\s*(-?[\d,]*\.?\d+)", content) if isinstance(content, str) else []
    return float(found[-1].replace(",", "")) if found else None


backend = LocalBackend(
    workflow=MultiplyWorkflow,
    workflow_config=MultiplyConfig(),
    grader=MultiplyGrader,
)
app = create_rollout_server(backend=backend)


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(os.environ.get("_OSMOSIS_ROLLOUT_PORT", "8000")))
