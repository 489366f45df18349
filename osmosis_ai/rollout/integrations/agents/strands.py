"""Strands agents whose model is the policy of the rollout they are built in."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from osmosis_ai._extras import requires_extra
from osmosis_ai.errors import ModelError
from osmosis_ai.rollout.context import RolloutContext, SampleSource
from osmosis_ai.rollout.execution import own_copy
from osmosis_ai.rollout.integrations.policy import (
    MODEL_NAME,
    active_rollout,
    policy_endpoint,
)
from osmosis_ai.rollout.types import RolloutSample

with requires_extra("strands", "OsmosisStrandsAgent"):
    from strands import Agent
    from strands.models.openai import OpenAIModel
    from strands.types.streaming import StreamEvent

    from osmosis_ai.rollout.integrations.agents.litellm_option import ClientOptions, client_options
    from osmosis_ai.rollout.integrations.agents.strands_message import (
        chat_messages,
        native_messages,
    )
    from osmosis_ai.rollout.integrations.agents.transport import policy_client

__all__ = ["OsmosisRolloutModel", "OsmosisStrandsAgent"]

logger = logging.getLogger(__name__)

_AGENT = "OsmosisStrandsAgent with an OsmosisRolloutModel"


class OsmosisRolloutModel(OpenAIModel):
    """Stands for the rollout's model where an agent is configured, at import time too.

    It takes what Strands' LiteLLM model takes, without `model_id` and addresses: the rollout
    decides those. `OsmosisStrandsAgent` puts the real model in its place.

        model = OsmosisRolloutModel(params={"temperature": 1.0, "max_tokens": 4096})

    Raises ConfigError for arguments that the rollout decides.
    """

    def __init__(self, **litellm_kwargs: Any) -> None:
        _sort(litellm_kwargs)
        self.litellm_kwargs = litellm_kwargs
        self.config = {**litellm_kwargs, "model_id": MODEL_NAME}

    def stream(self, *args: Any, **kwargs: Any) -> AsyncGenerator[StreamEvent, None]:
        raise RuntimeError(_REFUSAL)

    def structured_output(self, *args: Any, **kwargs: Any) -> AsyncGenerator[dict[str, Any], None]:
        raise RuntimeError(_REFUSAL)


class OsmosisStrandsAgent(Agent, SampleSource):
    """A Strands `Agent` whose conversation is the rollout's sample.

    Same arguments as Strands' own. Build it inside `run`, one in each rollout; `messages` may be
    chat messages as in `ctx.prompt`. With any model but an `OsmosisRolloutModel` it is a plain
    Strands agent, and its conversation belongs to no sample.

        agent = OsmosisStrandsAgent(model=OsmosisRolloutModel(), messages=ctx.prompt)
        await agent.invoke_async()

    Raises RuntimeError outside a rollout and ValueError where the rollout already has its agent.
    """

    def __init__(self, model: Any = None, messages: Any = None, *args: Any, **kwargs: Any) -> None:
        if messages is not None:
            messages = native_messages(messages)
        if not isinstance(model, OsmosisRolloutModel):
            super().__init__(model, messages, *args, **kwargs)
            return
        context = active_rollout(_AGENT)
        policy = _PolicyModel(context, model.litellm_kwargs)
        super().__init__(policy, messages, *args, **kwargs)
        context.set_sample_source(self)

    async def get_sample(self) -> RolloutSample:
        """The conversation so far: native for the grader, chat-shaped for the archive."""
        removed = self.conversation_manager.removed_message_count
        if removed:
            logger.warning(
                "Strands' conversation manager removed %d messages, which the sample lacks; pass "
                "conversation_manager=NullConversationManager() to keep them all",
                removed,
            )
        messages: Any = own_copy(self.messages)
        return RolloutSample(messages=messages, trajectory_messages=self._chat_messages())

    def _chat_messages(self) -> list[dict[str, Any]] | None:
        messages: Any = self.messages
        try:
            return chat_messages(messages, system=self.system_prompt_content)
        except Exception as exc:
            # Broad: Strands and its users may put anything into a block; the sample counts more.
            logger.warning("the conversation is not archived: no chat message holds it (%s)", exc)
            return None


class _PolicyModel(OpenAIModel):
    """The model of one rollout, through Strands' own OpenAI model.

    Not through its LiteLLM model: LiteLLM alone takes seconds and 150 MB to import.
    """

    def __init__(self, context: RolloutContext, litellm_kwargs: dict[str, Any]) -> None:
        self._endpoint = policy_endpoint(_AGENT, context=context)
        options, config = _sort(litellm_kwargs)
        self._client_options = options.client
        super().__init__(model_id=MODEL_NAME, params=options.request, **config)

    def format_chunk(self, event: dict[str, Any], **kwargs: Any) -> StreamEvent:
        # Strands takes an answer that was cut off for a whole one.
        if event["chunk_type"] == "message_stop" and event["data"] == _NO_FINISH_REASON:
            raise ModelError("the model endpoint ended its answer without a finish reason")
        return super().format_chunk(event, **kwargs)

    @asynccontextmanager
    async def _get_client(self) -> AsyncIterator[Any]:
        # For the loop that asks: `agent("...")` runs one of its own.
        yield policy_client(self._endpoint, **self._client_options)


_NO_FINISH_REASON = "end_turn"
"""What Strands' OpenAI model says instead; no endpoint sends it."""


def _sort(litellm_kwargs: dict[str, Any]) -> tuple[ClientOptions, dict[str, Any]]:
    """What LiteLLM would have been told, and what stays a setting of Strands' model."""
    config = dict(litellm_kwargs)
    arguments = {**(config.pop("client_args", None) or {}), **(config.pop("params", None) or {})}
    if "model_id" in config:
        arguments["model_id"] = config["model_id"]
    return client_options(arguments), config


_REFUSAL = (
    "OsmosisRolloutModel stands for the rollout's model and answers nothing itself: "
    "give it to an OsmosisStrandsAgent built inside run()"
)
