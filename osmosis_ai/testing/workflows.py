"""Tiny workflows and graders, for tests that need one and do not care which."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import urlsplit

from osmosis_ai.rollout.agent_workflow import AgentWorkflow
from osmosis_ai.rollout.context import AgentWorkflowContext, GraderContext, get_rollout_context
from osmosis_ai.rollout.grader import Grader
from osmosis_ai.rollout.types import MessageDict, Messages


class EchoWorkflow(AgentWorkflow):
    """Answers with the last message of the prompt; needs no model."""

    async def run(self, ctx: AgentWorkflowContext) -> list[MessageDict]:
        """Return the prompt and its echo."""
        return [*ctx.prompt, {"role": "assistant", "content": ctx.prompt[-1].get("content")}]


class ChatWorkflow(AgentWorkflow):
    """Asks the rollout's model once."""

    async def run(self, ctx: AgentWorkflowContext) -> list[MessageDict]:
        """Return the prompt and the model's answer."""
        return [*ctx.prompt, await ask_model(ctx.prompt)]


class FailingWorkflow(AgentWorkflow):
    """Raises ValueError("boom")."""

    async def run(self, ctx: AgentWorkflowContext) -> None:
        """Fail."""
        raise ValueError("boom")


class ExactMatchGrader(Grader):
    """1.0 where the sample's last message is the label, else 0.0."""

    async def grade(self, ctx: GraderContext) -> None:
        """Compare the two."""
        if ctx.sample is None:
            raise ValueError("workflow produced no sample")
        ctx.set_reward(float(ctx.sample.messages[-1].get("content") == ctx.label))


class RemovingGrader(Grader):
    """Removes every sample."""

    async def grade(self, ctx: GraderContext) -> None:
        """Mark the sample as one that does not count."""
        if ctx.sample is None:
            raise ValueError("workflow produced no sample")
        ctx.sample.remove_sample = True


async def ask_model(messages: Messages, **fields: Any) -> MessageDict:
    """One call to the model of the rollout that is going on; raises RuntimeError for an error.

    Made with the standard library alone, so that any process that can import this can call.
    """
    context = get_rollout_context()
    if context is None:
        raise RuntimeError("ask_model was called outside a rollout")
    status, body = await _post(
        f"{context.chat_completions_url}/chat/completions",
        json.dumps({"model": "policy", "messages": messages, **fields}).encode(),
        api_key=context.api_key or "",
    )
    if status != 200:
        raise RuntimeError(f"the model answered {status}: {body.decode(errors='replace')}")
    message: MessageDict = json.loads(body)["choices"][0]["message"]
    return message


async def _post(url: str, body: bytes, *, api_key: str) -> tuple[int, bytes]:
    where = urlsplit(url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    try:
        head = [
            f"POST {where.path} HTTP/1.1",
            f"Host: {where.netloc}",
            f"Authorization: Bearer {api_key}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            "Connection: close",
        ]
        writer.write("\r\n".join([*head, "", ""]).encode() + body)
        answer_head, _, answer = (await reader.read()).partition(b"\r\n\r\n")
    finally:
        writer.close()
    return int(answer_head.split(b" ", 2)[1]), answer
