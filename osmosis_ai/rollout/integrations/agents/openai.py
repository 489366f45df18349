"""OpenAI's own client, bound to the model of the active rollout."""

from __future__ import annotations

from typing import Any

from osmosis_ai._extras import requires_extra
from osmosis_ai.rollout.integrations.policy import MODEL_NAME, policy_endpoint

with requires_extra("openai", "rollout_client"):
    from openai import AsyncOpenAI, OpenAI

    from osmosis_ai.rollout.integrations.agents.transport import policy_client

__all__ = ["MODEL_NAME", "rollout_client", "sync_rollout_client"]


def rollout_client(**options: Any) -> AsyncOpenAI:
    """An `AsyncOpenAI` that talks to the active rollout's model; `options` are AsyncOpenAI's own.

        client = rollout_client()
        reply = await client.chat.completions.create(model=MODEL_NAME, messages=ctx.prompt)

    Raises RuntimeError outside a rollout. Rollouts of one event loop share its connections, which
    close with the loop: do not close the client.
    """
    return policy_client(policy_endpoint("rollout_client()"), **options)


def sync_rollout_client(**options: Any) -> OpenAI:
    """An `OpenAI` that talks to the active rollout's model; `options` are OpenAI's own.

    It blocks the event loop when called in `run` itself; use it in `asyncio.to_thread`, which
    keeps the rollout. Close it, or use it in a `with`.
    """
    endpoint = policy_endpoint("sync_rollout_client()")
    return OpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key, **options)
