"""Rollouts on a backend in this process: endpoint, deadline, cancellation, outcome."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from pathlib import Path

from osmosis_ai.rollout import (
    AgentWorkflow,
    AgentWorkflowContext,
    ExecutionRequest,
    Grader,
    GraderContext,
    LocalBackend,
    MessageDict,
    get_rollout_context,
)
from osmosis_ai.rollout.controller.listener import Controller
from osmosis_ai.rollout.controller.model.scripted import ScriptedClient
from osmosis_ai.rollout.driver.in_process import InProcessDriver


class SynchronousClient(AgentWorkflow):
    """Calls its model with a client that blocks the event loop."""

    async def run(self, ctx: AgentWorkflowContext) -> list[MessageDict]:
        return [*ctx.prompt, ask_synchronously(ctx.prompt)]


def ask_synchronously(messages: list[MessageDict]) -> MessageDict:
    context = get_rollout_context()
    assert context is not None
    call = urllib.request.Request(
        f"{context.chat_completions_url}/chat/completions",
        data=json.dumps({"model": "policy", "messages": messages}).encode(),
        headers={"Authorization": f"Bearer {context.api_key}"},
    )
    with urllib.request.urlopen(call) as answer:
        message: MessageDict = json.load(answer)["choices"][0]["message"]
    return message


class RightIfLabel(Grader):
    async def grade(self, ctx: GraderContext) -> None:
        assert ctx.sample is not None
        ctx.set_reward(float(ctx.sample.messages[-1]["content"] == ctx.label))


async def test_a_run_that_calls_its_model_with_a_synchronous_client_finishes(
    tmp_path: Path,
) -> None:
    """The listener has a thread of its own: the call is answered while the caller's loop waits."""
    backend = LocalBackend(workflow=SynchronousClient, grader=RightIfLabel)
    with Controller(ScriptedClient(lambda request, call: "42")) as controller:
        driver = InProcessDriver(backend, controller=controller, artifact_root=tmp_path)
        requests = [
            ExecutionRequest(id=f"r{n}", prompt=[{"role": "user", "content": "?"}], label="42")
            for n in range(8)
        ]
        outcomes = await asyncio.gather(*(driver.run(request) for request in requests))
    assert [o.grader.sample.reward for o in outcomes if o.grader and o.grader.sample] == [1.0] * 8
    assert {o.usage.calls for o in outcomes if o.usage} == {1}
