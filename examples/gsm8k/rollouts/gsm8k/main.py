"""Grade-school arithmetic: ask the policy once and grade the final number of its solution."""

from __future__ import annotations

import os
import re
from decimal import Decimal
from typing import Any

import aiohttp
import uvicorn

from osmosis_ai.rollout import (
    AgentWorkflow,
    AgentWorkflowConfig,
    AgentWorkflowContext,
    Grader,
    GraderContext,
    LocalBackend,
    MessageDict,
    get_rollout_context,
)
from osmosis_ai.rollout.server import create_rollout_server


class SolveWorkflow(AgentWorkflow):
    """One question, one answer."""

    async def run(self, ctx: AgentWorkflowContext) -> list[MessageDict]:
        """Return the prompt and the policy's solution."""
        return [*ctx.prompt, await ask_policy(ctx.prompt)]


class FinalNumberGrader(Grader):
    """1.0 where the solution ends in the same number as the reference, else 0.0."""

    async def grade(self, ctx: GraderContext) -> None:
        """Read both final numbers from text: the sample's last message and the label."""
        if ctx.sample is None:
            raise ValueError("workflow produced no sample")
        expected = final_number(ctx.label)
        if expected is None:
            raise ValueError(f"the row's ground_truth has no final number: {ctx.label!r}")
        answer = final_number(ctx.sample.messages[-1].get("content"))
        ctx.set_reward(1.0 if answer == expected else 0.0)


def final_number(text: Any) -> Decimal | None:
    """The number that a text's last `A:` or `####` line consists of, or None.

    `$`, a full stop at the end and commas between thousands are no part of the number; with any
    other text on the line (`1/2`, `3 billion`) it is not one.
    """
    lines = FINAL_LINE.findall(text) if isinstance(text, str) else []
    if not lines or not NUMBER.fullmatch(lines[-1]):
        return None
    return Decimal(re.sub(r"[$,]", "", lines[-1]).removesuffix("."))


FINAL_LINE = re.compile(r"^(?:A:|####)[ \t]*(.*?)[ \t]*$", re.MULTILINE)
NUMBER = re.compile(r"-?\$?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?(?<=\d)\.?")


async def ask_policy(messages: list[MessageDict]) -> MessageDict:
    """One call to the model under test, at the URL that belongs to this rollout."""
    context = get_rollout_context()
    if context is None:
        raise RuntimeError("ask_policy was called outside a rollout")
    # No timeout of its own: whoever started the rollout holds the deadline.
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session,
        session.post(
            f"{context.chat_completions_url}/chat/completions",
            headers={"Authorization": f"Bearer {context.api_key}"},
            json={"model": "policy", "messages": messages},
        ) as response,
    ):
        if response.status != 200:
            raise RuntimeError(f"the policy answered {response.status}: {await response.text()}")
        completion = await response.json()
    message: MessageDict = completion["choices"][0]["message"]
    return message


backend = LocalBackend(
    workflow=SolveWorkflow,
    workflow_config=AgentWorkflowConfig(name="gsm8k"),
    grader=FinalNumberGrader,
)
app = create_rollout_server(backend=backend)


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(os.environ.get("_OSMOSIS_ROLLOUT_PORT", "8000")))
