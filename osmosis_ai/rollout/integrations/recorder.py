"""A rollout's sample, made of the model calls that pass by on their way to its endpoint."""

from __future__ import annotations

from typing import Any

from osmosis_ai.rollout.context import RolloutContext, SampleSource
from osmosis_ai.rollout.integrations.conversation import Conversation, Turn, find_conversation
from osmosis_ai.rollout.integrations.model_call import Message
from osmosis_ai.rollout.integrations.pass_through import Recording, pass_through
from osmosis_ai.rollout.integrations.policy import active_rollout, policy_endpoint
from osmosis_ai.rollout.translator import Translator
from osmosis_ai.rollout.types import RolloutSample

__all__ = ["EndpointSampleSource"]


class EndpointSampleSource(SampleSource):
    """Makes the rollout's sample of the model calls that pass by.

    For any program that can be given a base URL: from now on the rollout's
    `chat_completions_url` is a recorder's, on loopback, which hands every call on.

        ctx = get_rollout_context()
        ctx.set_sample_source(EndpointSampleSource())
        run_my_agent(base_url=ctx.chat_completions_url, api_key=ctx.api_key)

    An agent that speaks OpenAI's Responses API or Anthropic's Messages API may use the same URL:
    its calls are translated, and recorded as chat completions (extra `litellm`).

    `capture="endpoint"` in the workflow's config does the same before `run` begins. The sample's
    `extra_fields["endpoint"]` holds the verdict on the conversation, the number of side calls, and
    for each turn the token ids and logprobs that the endpoint returned.
    """

    def __init__(
        self, context: RolloutContext | None = None, *, translator: Translator | None = None
    ) -> None:
        context = context or active_rollout("EndpointSampleSource()")
        endpoint = policy_endpoint("EndpointSampleSource()", context=context)
        self._recording = Recording(
            endpoint.base_url.rstrip("/"), context.api_key, translator=translator
        )
        context.chat_completions_url = pass_through(self._recording)

    async def get_sample(self) -> RolloutSample:
        """The main conversation so far; ValueError where no call came by."""
        calls = self._recording.calls()
        if not calls:
            raise ValueError(
                "no model call came by, so there is no sample: give the agent the rollout's "
                "chat_completions_url as its base URL"
            )
        conversation = find_conversation(calls)
        return RolloutSample(
            messages=conversation.messages,
            trajectory_messages=_with_usage(conversation),
            extra_fields={"endpoint": _said_of(conversation)},
        )


def _with_usage(conversation: Conversation) -> list[Message]:
    """The messages with what the archive shows of each turn: model and tokens."""
    messages = list(conversation.messages)
    for turn in conversation.turns:
        seen = {"model": turn.call.model, "usage": turn.call.usage}
        known = {name: value for name, value in seen.items() if value is not None}
        messages[turn.index] = {**messages[turn.index], **known}
    return messages


def _said_of(conversation: Conversation) -> dict[str, Any]:
    verdict = conversation.verdict
    return {
        "verdict": verdict.state,
        "turn": verdict.turn,
        "reason": verdict.reason,
        "side_calls": conversation.side_calls,
        "turns": [_turn(turn) for turn in conversation.turns],
    }


def _turn(turn: Turn) -> dict[str, Any]:
    seen = {
        "prompt_token_ids": turn.call.prompt_token_ids,
        "token_ids": turn.reply.token_ids,
        "logprobs": turn.reply.logprobs,
    }
    known = {name: value for name, value in seen.items() if value is not None}
    return {"message": turn.index, "finish_reason": turn.reply.finish_reason, **known}
