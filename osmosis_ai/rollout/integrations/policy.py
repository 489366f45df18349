"""The policy endpoint of the active rollout, as its clients are told it."""

from __future__ import annotations

from dataclasses import dataclass, field

from osmosis_ai.rollout.context import RolloutContext, get_rollout_context

MODEL_NAME = "osmosis-rollout"
"""The model every policy call names; the endpoint knows which one is meant."""


@dataclass(frozen=True, slots=True)
class PolicyEndpoint:
    """Where a rollout's model is."""

    base_url: str
    """OpenAI-compatible: clients append `/chat/completions`."""
    api_key: str = field(repr=False)


def active_rollout(what: str) -> RolloutContext:
    """The rollout this code runs in; RuntimeError where there is none, naming `what` needs it."""
    context = get_rollout_context()
    if context is None:
        raise RuntimeError(f"{what} needs an active rollout: build it inside your workflow's run()")
    return context


def policy_endpoint(what: str, *, context: RolloutContext | None = None) -> PolicyEndpoint:
    """The endpoint of `context`, else of the active rollout; RuntimeError where it has none."""
    context = context or active_rollout(what)
    if not context.chat_completions_url:
        raise RuntimeError(
            f"{what} found no model endpoint in this rollout: run it through `osmosis eval run` "
            "or a rollout server, or set OSMOSIS_CHAT_COMPLETIONS_URL"
        )
    # Never empty: a client given no key takes the one from the environment, which is for others.
    return PolicyEndpoint(context.chat_completions_url, context.api_key or "none")
