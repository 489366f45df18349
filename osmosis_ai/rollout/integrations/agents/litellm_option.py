"""LiteLLM's keyword arguments, as OpenAI's own client takes them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from osmosis_ai._extras import requires_extra
from osmosis_ai.errors import ConfigError

with requires_extra("openai", "LiteLLM keyword arguments"):
    from openai import AsyncOpenAI
    from openai.resources.chat.completions import AsyncCompletions


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """The same wishes, sorted by who hears them."""

    client: dict[str, Any]
    """For `AsyncOpenAI(...)`."""
    request: dict[str, Any]
    """For `chat.completions.create(...)`; what it does not know stands in `extra_body`."""


def client_options(litellm_kwargs: Mapping[str, Any]) -> ClientOptions:
    """Sort the arguments of a `litellm.acompletion` call; ConfigError for what a rollout decides.

    LiteLLM's switches for other providers are dropped: the endpoint speaks OpenAI's protocol. A
    sampling option that OpenAI does not know (`top_k`) goes to the endpoint as it is.
    """
    client: dict[str, Any] = {}
    request: dict[str, Any] = {}
    body: dict[str, Any] = {}
    for name, value in litellm_kwargs.items():
        if name in _DECIDED:
            raise ConfigError(f"{name} {_DECIDED[name]}; leave it out", key=name)
        if name == "num_retries":
            client["max_retries"] = value
        elif name in _REQUEST_NAMES:
            request[name] = value
        elif name in _CLIENT_NAMES:
            client[name] = value
        elif name not in _FOR_OTHER_PROVIDERS:
            body[name] = value
    if body:
        request["extra_body"] = {**body, **(request.get("extra_body") or {})}
    return ClientOptions(client, request)


def _parameters(function: Any) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters) - {"self"}


_REQUEST_NAMES = _parameters(AsyncCompletions.create)
_CLIENT_NAMES = _parameters(AsyncOpenAI)
_ROLLOUTS = "is the rollout's own: its endpoint decides"
_ELSEWHERE = "would answer in place of the rollout's model"
_DECIDED = {
    **dict.fromkeys(("api_base", "api_key", "base_url", "model", "model_id"), _ROLLOUTS),
    **dict.fromkeys(("fallbacks", "mock_response", "mock_tool_calls"), _ELSEWHERE),
}
_FOR_OTHER_PROVIDERS = frozenset(
    {"additional_drop_params", "allowed_openai_params", "custom_llm_provider", "drop_params"}
)
