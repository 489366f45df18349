"""OpenAI Agents whose model is the policy of the rollout they are built in."""

from __future__ import annotations

import inspect
import logging
import os
import uuid
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any, NoReturn

from osmosis_ai._extras import requires_extra
from osmosis_ai.errors import ConfigError, ModelError
from osmosis_ai.rollout.context import SampleSource, get_rollout_context
from osmosis_ai.rollout.execution import own_copy
from osmosis_ai.rollout.integrations.policy import (
    MODEL_NAME,
    active_rollout,
    policy_endpoint,
)
from osmosis_ai.rollout.types import RolloutSample

# Else importing LiteLLM asks the network for a table of prices.
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

with requires_extra("openai-agents", "OsmosisAgent"):
    import litellm as _litellm  # first: without it the next import raises another error
    from agents import Agent, Model, ModelResponse, ModelSettings, TContext, Usage
    from agents.extensions.models.litellm_model import LitellmModel
    from agents.items import TResponseInputItem, TResponseStreamEvent
    from agents.memory import SessionABC
    from agents.models.chatcmpl_converter import Converter
    from openai.types.responses import Response, ResponseCompletedEvent

    from osmosis_ai.rollout.integrations.agents.openai_agents_trace import quiet_in_rollouts

__all__ = [
    "OsmosisAgent",
    "OsmosisLitellmModel",
    "OsmosisMemorySession",
    "OsmosisRolloutModel",
    "SessionSampleSource",
]

logger = logging.getLogger(__name__)


class OsmosisRolloutModel(Model):
    """Stands for the rollout's model where an agent is configured, at import time too.

    It takes what the SDK's `LitellmModel` takes, without name, address and key: the rollout
    decides those. Sampling options belong in `ModelSettings`. `OsmosisAgent` puts the real model
    in its place.
    """

    def __init__(self, **litellm_kwargs: Any) -> None:
        _check(litellm_kwargs)
        self.litellm_kwargs = litellm_kwargs

    async def get_response(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(_REFUSAL)

    def stream_response(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(_REFUSAL)


class OsmosisAgent(Agent[TContext]):
    """An `agents.Agent` whose `OsmosisRolloutModel` becomes the model of the active rollout.

    Same arguments as `agents.Agent`. Build it inside `run`; with any other model it is a plain
    agent. Run it with exactly one session:

        agent = OsmosisAgent(name="solver", model=OsmosisRolloutModel())
        await Runner.run(agent, ctx.prompt, session=OsmosisMemorySession())

    Raises RuntimeError outside a rollout.
    """

    def __init__(self, *args: Any, model: Any = None, **kwargs: Any) -> None:
        if isinstance(model, OsmosisRolloutModel):
            model = OsmosisLitellmModel(**model.litellm_kwargs)
        kwargs["model"] = model
        super().__init__(*args, **kwargs)


class OsmosisLitellmModel(LitellmModel):
    """The SDK's LiteLLM model, bound to the rollout it is built in.

    It always streams, as the endpoint of a trainer may do nothing else. It refuses a request, with
    RuntimeError, while the rollout has no session: the conversation would be in no sample.
    """

    def __init__(self, **litellm_kwargs: Any) -> None:
        _check(litellm_kwargs)
        self._context = active_rollout("OsmosisLitellmModel")
        endpoint = policy_endpoint("OsmosisLitellmModel", context=self._context)
        super().__init__(
            model=_MODEL,
            base_url=endpoint.base_url,
            api_key=endpoint.api_key,
            **litellm_kwargs,
        )
        quiet_in_rollouts()

    async def get_response(
        self,
        system_instructions: str | None,
        input: str | list[TResponseInputItem],
        model_settings: ModelSettings,
        *args: Any,
        **kwargs: Any,
    ) -> ModelResponse:
        events = self.stream_response(system_instructions, input, model_settings, *args, **kwargs)
        response: Response | None = None
        async for event in events:
            if isinstance(event, ResponseCompletedEvent):
                response = event.response
        if response is None:
            raise ModelError("the model endpoint ended its answer before it was complete")
        return ModelResponse(output=response.output, usage=_usage(response), response_id=None)

    async def stream_response(
        self,
        system_instructions: str | None,
        input: str | list[TResponseInputItem],
        model_settings: ModelSettings,
        *args: Any,
        **kwargs: Any,
    ) -> AsyncIterator[TResponseStreamEvent]:
        source = self._context.sample_source
        if source is None:
            raise RuntimeError(
                "this rollout has no session, so its conversation would be in no sample: "
                "pass session=OsmosisMemorySession() to Runner.run"
            )
        if isinstance(source, SessionSampleSource) and source.instructions is None:
            source.instructions = system_instructions
        if model_settings.include_usage is None:
            model_settings = replace(model_settings, include_usage=True)
        events = super().stream_response(
            system_instructions, input, model_settings, *args, **kwargs
        )
        async for event in events:
            yield event


class SessionSampleSource(SampleSource):
    """Makes the rollout's sample of what a session holds; any `SessionABC` will do.

    `messages` are the session's items, in the shape of the Responses API; the archive gets them
    as chat messages.
    """

    def __init__(self, session: SessionABC) -> None:
        self.session = session
        self.instructions: str | None = None
        """What the first model call had for system prompt; the session does not hold it."""

    async def get_sample(self) -> RolloutSample:
        """The conversation so far."""
        items: Any = await self.session.get_items()
        return RolloutSample(messages=items, trajectory_messages=self._chat_messages(items))

    def _chat_messages(self, items: list[TResponseInputItem]) -> list[Mapping[str, Any]] | None:
        try:
            chat: list[Any] = Converter.items_to_messages(
                items,
                model=_MODEL,
                preserve_tool_output_all_content=True,
                should_replay_reasoning_content=lambda _: True,
            )
        except Exception as exc:
            # Broad: the SDK and its users may put anything into an item; the sample counts more.
            logger.warning("the conversation is not archived: no chat message holds it (%s)", exc)
            return None
        if self.instructions:
            chat.insert(0, {"role": "system", "content": self.instructions})
        return chat


class OsmosisMemorySession(SessionABC):
    """A session in memory whose conversation is the rollout's sample.

    Build it inside `run`, one in each rollout. Outside a rollout it is a plain session. Raises
    ValueError where the rollout already has its session, and RuntimeError when it is used in
    another rollout than its own.
    """

    def __init__(self) -> None:
        self.session_id = uuid.uuid4().hex
        self.items: list[TResponseInputItem] = []
        self._context = get_rollout_context()
        if self._context is not None:
            self._context.set_sample_source(SessionSampleSource(self))
            quiet_in_rollouts()

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """The newest `limit` items, oldest first; all without a limit."""
        self._check_rollout()
        if limit is None and self.session_settings is not None:
            limit = self.session_settings.limit
        start = 0 if limit is None else max(0, len(self.items) - limit)
        items: list[TResponseInputItem] = own_copy(self.items[start:])
        return items

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Append to the conversation."""
        self._check_rollout()
        self.items.extend(own_copy(list(items)))

    async def pop_item(self) -> TResponseInputItem | None:
        """Remove the newest item and return it."""
        self._check_rollout()
        return self.items.pop() if self.items else None

    async def clear_session(self) -> None:
        """Forget the conversation."""
        self._check_rollout()
        self.items.clear()

    def _check_rollout(self) -> None:
        current = get_rollout_context()
        if None not in (current, self._context) and current is not self._context:
            raise RuntimeError(
                "this OsmosisMemorySession belongs to another rollout: "
                "build a new one inside each run()"
            )


_MODEL = f"openai/{MODEL_NAME}"
_DECIDED = frozenset({"api_key", "base_url", "model"})
_TAKEN = frozenset(inspect.signature(LitellmModel).parameters) - _DECIDED
_REFUSAL = (
    "OsmosisRolloutModel stands for the rollout's model and answers nothing itself: "
    "give it to an OsmosisAgent built inside run()"
)

# LiteLLM would print advice to standard output with each error.
_litellm.suppress_debug_info = True


def _check(litellm_kwargs: Mapping[str, Any]) -> None:
    for name in litellm_kwargs:
        if name in _DECIDED:
            raise ConfigError(
                f"{name} is the rollout's own: its endpoint decides; leave it out", key=name
            )
        if name not in _TAKEN:
            raise ConfigError(
                f"{name} is no argument of the SDK's LitellmModel; sampling options belong in "
                "ModelSettings, others in its extra_args",
                key=name,
            )


def _usage(response: Response) -> Usage:
    usage = response.usage
    if usage is None:
        return Usage(requests=1)
    return Usage(
        requests=1,
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        total_tokens=usage.total_tokens,
        input_tokens_details=usage.input_tokens_details,
        output_tokens_details=usage.output_tokens_details,
    )
