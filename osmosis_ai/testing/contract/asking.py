"""Workflows that ask the policy, and the scripted policies that answer them."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from typing import Any

from osmosis_ai.rollout.agent_workflow import AgentWorkflow
from osmosis_ai.rollout.context import AgentWorkflowContext, get_rollout_context
from osmosis_ai.rollout.controller.model.base import ModelCall
from osmosis_ai.rollout.types import MessageDict, Messages
from osmosis_ai.testing.contract_workflows import (
    PlayerConfig,
    ambient,
    leave_note,
    options_of,
    report,
    scene_of,
)

PREFIX = f"scripted:{__name__}:"
"""What stands before a policy's name in a model path."""

PATIENCE_SEC = 20.0


def answers(request: dict[str, Any], call: ModelCall) -> str:
    """A policy whose reply names the call it answers."""
    return f"row {call.row} attempt {call.attempt} seed {call.seed} turn {call.turn}"


def is_down(request: dict[str, Any], call: ModelCall) -> str:
    """A policy that never answers."""
    raise ConnectionError("the policy is down")


def is_down_at_first(request: dict[str, Any], call: ModelCall) -> str:
    """A policy that fails the first call of a rollout and answers the later ones."""
    return is_down(request, call) if call.turn == 0 else answers(request, call)


class Asking(AgentWorkflow[PlayerConfig]):
    """Tells what it sees, waits for its cue, and asks the policy as often as `turns` says.

    Option `survives`: go on when a call fails.
    """

    async def run(self, ctx: AgentWorkflowContext[PlayerConfig]) -> Messages:
        options = options_of(ctx)
        leave_note(ctx.artifacts_dir, scene_of(ctx))
        await report(ctx, "workflow", context=ambient())
        messages = [{"role": "user", "content": "Play."}]
        for _ in range(options.get("turns", 1)):
            messages.append(await self._ask(messages, survives=options.get("survives", False)))
        return messages

    async def _ask(self, messages: Messages, *, survives: bool) -> MessageDict:
        try:
            return await asyncio.to_thread(ask_policy, messages)
        except OSError:
            if not survives:
                raise
            return {"role": "assistant", "content": "no answer"}


class AskingInTheWay(AgentWorkflow[PlayerConfig]):
    """Asks the policy with a client that blocks the event loop it runs in.

    Option `patience_sec`: how long it waits for the answer.
    """

    async def run(self, ctx: AgentWorkflowContext[PlayerConfig]) -> Messages:
        question = {"role": "user", "content": "Play."}
        return [ask_policy([question], timeout_sec=options_of(ctx)["patience_sec"])]


def ask_policy(messages: Messages, *, timeout_sec: float = PATIENCE_SEC) -> MessageDict:
    """Ask the policy of the current rollout; a refusal raises an OSError."""
    context = get_rollout_context()
    assert context is not None, "a workflow runs in a rollout context"
    url, api_key = context.chat_completions_url, context.api_key or ""
    return ask(url, api_key, messages, timeout_sec=timeout_sec)


def ask(
    url: str, api_key: str, messages: Messages, *, timeout_sec: float = PATIENCE_SEC
) -> MessageDict:
    """One chat completion call with a synchronous client."""
    call = urllib.request.Request(
        f"{url}/chat/completions",
        data=json.dumps({"model": "policy", "messages": messages}).encode(),
        headers={"Authorization": f"Bearer {api_key}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(call, timeout=timeout_sec) as answer:
        message: MessageDict = json.load(answer)["choices"][0]["message"]
    return message
