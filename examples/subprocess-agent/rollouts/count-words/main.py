"""A program in another language as a rollout: its calls to the base URL it is given."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path

from osmosis_ai.rollout import (
    AgentWorkflow,
    AgentWorkflowConfig,
    AgentWorkflowContext,
    Grader,
    GraderContext,
    LocalBackend,
    get_rollout_context,
)
from osmosis_ai.rollout.server import create_rollout_server

AGENT = Path(__file__).with_name("agent.mjs")


class NodeWorkflow(AgentWorkflow):
    """Run the agent once for each rollout, in a process of its own."""

    async def run(self, ctx: AgentWorkflowContext) -> None:
        """The recorder makes the sample: see `capture` below."""
        rollout = get_rollout_context()
        assert rollout is not None
        process = await asyncio.create_subprocess_exec(
            "node",
            str(AGENT),
            ctx.prompt[-1]["content"],
            env={
                **os.environ,
                "OPENAI_BASE_URL": rollout.chat_completions_url,
                "OPENAI_API_KEY": rollout.api_key or "",
            },
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            _, stderr = await process.communicate()
        finally:
            # A rollout that is cancelled leaves no process behind.
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode != 0:
            raise RuntimeError(f"the agent failed: {stderr.decode(errors='replace')[-2000:]}")


class CountGrader(Grader):
    """1.0 where the last message holds the right number, else 0.0."""

    async def grade(self, ctx: GraderContext) -> None:
        """Compare the last number said with the row's `ground_truth`."""
        if ctx.sample is None or ctx.label is None:
            raise ValueError("count-words needs a sample and a row with a ground_truth")
        numbers = re.findall(r"\d+", str(ctx.sample.messages[-1].get("content")))
        ctx.set_reward(1.0 if numbers[-1:] == [ctx.label] else 0.0)


backend = LocalBackend(
    workflow=NodeWorkflow,
    workflow_config=AgentWorkflowConfig(name="count-words", capture="endpoint"),
    grader=CountGrader,
)
app = create_rollout_server(backend=backend)
