"""A rollout that agents may call in any dialect, at the bridge or at a recorder before it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from osmosis_ai.rollout import RolloutContext, RolloutSample
from osmosis_ai.rollout.controller.endpoint import RolloutEndpoint
from osmosis_ai.rollout.controller.listener import Controller
from osmosis_ai.rollout.controller.model.openai_compatible import OpenAICompatibleClient
from osmosis_ai.rollout.integrations.recorder import EndpointSampleSource
from osmosis_ai.testing import ScriptedModel

PLACES = ["bridge", "recorder"]


@dataclass(frozen=True)
class Place:
    """Where the agent's client points, and what is behind it."""

    base_url: str
    api_key: str
    model: ScriptedModel
    endpoint: RolloutEndpoint
    context: RolloutContext

    async def sample(self) -> RolloutSample:
        found = await self.context.get_sample()
        assert found is not None
        return found


@contextmanager
def rollout_at(place: str, replies: Any, **given: Any) -> Iterator[Place]:
    """One rollout with a scripted model; `given` is for the opening of the rollout."""
    with ScriptedModel(replies) as model:
        client = OpenAICompatibleClient(model.base_url, model="real-name")
        with Controller(client) as controller, controller.open_rollout("r1", **given) as endpoint:
            context = RolloutContext(
                endpoint.chat_completions_url, api_key=endpoint.api_key, rollout_id="r1"
            )
            if place == "recorder":
                context.set_sample_source(EndpointSampleSource(context))
            yield Place(context.chat_completions_url, endpoint.api_key, model, endpoint, context)


def with_ids(content: str, *, prompt: list[int], sampled: list[int]) -> dict[str, Any]:
    """A completion of an endpoint that returns the tokens."""
    return {
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": content},
                "finish_reason": "stop",
                "token_ids": sampled,
                "logprobs": {"content": [{"token": content, "logprob": -0.5}]},
            }
        ],
        "prompt_token_ids": prompt,
    }
