"""A LiteLLM name as the model: any provider LiteLLM knows, with the prices it knows."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Final

from osmosis_ai._extras import requires_extra
from osmosis_ai.errors import ConfigError, ModelError
from osmosis_ai.rollout.controller.asgi import error_body
from osmosis_ai.rollout.controller.model.base import (
    ModelCall,
    ModelClient,
    ModelPrice,
    ModelReply,
    ModelRequest,
)
from osmosis_ai.rollout.controller.sse import DONE
from osmosis_ai.rollout.safe_json import dump_json

# Read on import, which else asks the network for prices.
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

with requires_extra("litellm", "a model_path without `[model] base_url` is a LiteLLM name; it"):
    import litellm
with requires_extra("server", "a controller"):
    import aiohttp

EVENT_STREAM: Final = "text/event-stream"

CHAT_FIELDS: Final = frozenset(
    {
        "audio",
        "frequency_penalty",
        "function_call",
        "functions",
        "logit_bias",
        "logprobs",
        "max_completion_tokens",
        "max_tokens",
        "messages",
        "metadata",
        "modalities",
        "n",
        "parallel_tool_calls",
        "prediction",
        "presence_penalty",
        "prompt_cache_key",
        "reasoning_effort",
        "response_format",
        "safety_identifier",
        "seed",
        "service_tier",
        "stop",
        "store",
        "temperature",
        "thinking",
        "tool_choice",
        "tools",
        "top_logprobs",
        "top_p",
        "user",
        "verbosity",
        "web_search_options",
    }
)
"""What a rollout may set of LiteLLM's arguments. The rest of a body travels as a body: it must not
reach arguments such as `api_base`, which would send the key of the run elsewhere."""


class LiteLLMClient(ModelClient):
    """Sends calls through LiteLLM, with `params` over what the rollout sent.

    `params` may be any of its arguments, `api_base` and `timeout` included. Fields a provider does
    not know are left out, unless `drop_params = false` is among them. Raises ConfigError for a name
    LiteLLM does not know, and where the key of its provider is not in the environment. A `price`
    stands for the one in LiteLLM's table.
    """

    def __init__(
        self,
        model: str,
        *,
        api_key: str | None = None,
        params: Mapping[str, Any] | None = None,
        price: ModelPrice | None = None,
    ) -> None:
        self.name = model
        self._arguments: dict[str, Any] = {"drop_params": True, **(params or {}), "model": model}
        if api_key:
            self._arguments["api_key"] = api_key
        _quieten()
        _check_name(model)
        _check_key(model, self._arguments.get("api_key"))
        self._has_own_price = price is not None
        self.price = price or _find_price(model)
        self._session: aiohttp.ClientSession

    async def open(self) -> None:
        """Make the session of all calls: LiteLLM closes none of its own."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None),
            trust_env=True,
        )

    async def close(self) -> None:
        """Close the session and its connections."""
        await self._session.close()

    async def complete(self, request: ModelRequest, call: ModelCall) -> ModelReply:
        """Ask the provider; an error keeps its status."""
        try:
            answer = await litellm.acompletion(**self._given(request))
        except Exception as error:  # LiteLLM's, and those of every provider's client below it
            return _refusal(error)
        if request.wants_stream:
            events = _events(answer, with_usage=request.wants_usage_chunk)
            return ModelReply(200, chunks=events, content_type=EVENT_STREAM)
        return ModelReply(200, dump_json(answer.model_dump()).data)

    def cost_usd(self, usage: Any) -> float | None:
        """By LiteLLM's table of prices, cached tokens at their own; None for what is not in it."""
        if self._has_own_price:
            return super().cost_usd(usage)
        if self.price is None or not isinstance(usage, dict):
            return None
        try:
            prices = litellm.cost_per_token(model=self.name, usage_object=litellm.Usage(**usage))
        except Exception:  # a usage LiteLLM cannot read costs the price, not the answer
            return None
        return float(sum(prices))

    def _given(self, request: ModelRequest) -> dict[str, Any]:
        fields = {name: value for name, value in request.data.items() if name in CHAT_FIELDS}
        others = {
            name: value
            for name, value in request.data.items()
            if name not in CHAT_FIELDS and name not in _OURS
        }
        if others:
            fields["extra_body"] = others
        if request.wants_stream:
            # Asked for in any case: what a call took must be known.
            fields |= {"stream": True, "stream_options": {"include_usage": True}}
        # Tries are the bridge's: a client's own would multiply them.
        ours = {"num_retries": 0, "max_retries": 0, "shared_session": self._session}
        return {"messages": [], **fields, **self._arguments, **ours}


_OURS = frozenset({"model", "stream", "stream_options"})


def _quieten() -> None:
    # It prints advice to stdout with every error, and two lines to stderr with every call.
    litellm.suppress_debug_info = True
    log = logging.getLogger("LiteLLM")
    if log.level == logging.NOTSET:
        log.setLevel(logging.WARNING)


def _check_name(model: str) -> None:
    try:
        litellm.get_llm_provider(model)
    except Exception as error:  # its own error for that is not a public one
        raise ConfigError(
            f"nothing answers for model_path {model!r}: LiteLLM knows no such model. Write the "
            "provider before it, as in 'openai/gpt-5-mini', or give `[model] base_url` of an "
            "OpenAI-compatible server, or a model path like 'scripted:module:attr'",
            key="model_path",
        ) from error


def _check_key(model: str, api_key: str | None) -> None:
    """Refuse a model whose key is missing; credentials of other kinds are not judged."""
    missing = litellm.validate_environment(model, api_key=api_key)["missing_keys"]
    if missing and all(name.endswith("_API_KEY") for name in missing):
        raise ConfigError(
            f"model_path {model!r} needs {' or '.join(missing)} in the environment: export it, or "
            "name the variable that holds the key in model.api_key_env",
            key="model_path",
        )


def _find_price(model: str) -> ModelPrice | None:
    try:
        found = litellm.get_model_info(model)
    except Exception:  # its own error for that is not a public one
        return None
    return ModelPrice(found["input_cost_per_token"], found["output_cost_per_token"])


def _refusal(error: Exception) -> ModelReply:
    """The provider's answer behind an exception; raises ModelError where it gave none."""
    status, headers = getattr(error, "status_code", None), _headers(error)
    message = str(getattr(error, "message", "") or error)
    if not isinstance(status, int) or (status in _MAY_BE_NO_ANSWER and not headers):
        raise ModelError(f"the model gave no answer: {message}") from error
    body = error_body(message, status=status)
    return ModelReply(status, body, retry_after=headers.get("retry-after"))


_MAY_BE_NO_ANSWER = frozenset({408, 500, 503})
"""What LiteLLM calls a connection that failed or took too long; then there are no headers."""


def _headers(error: Exception) -> Mapping[str, str]:
    own = getattr(error, "litellm_response_headers", None)
    return own or getattr(getattr(error, "response", None), "headers", None) or {}


async def _events(chunks: Any, *, with_usage: bool) -> AsyncGenerator[bytes, None]:
    """The events of a stream; usage nobody asked for comes with the last choice, not after it.

    A client that did not ask does not expect an event without choices.
    """
    last: dict[str, Any] | None = None
    try:
        async for chunk in chunks:
            event: dict[str, Any] = chunk.model_dump(exclude_none=True)
            if last is not None and not event["choices"]:
                last["usage"] = event.get("usage")
            elif not with_usage and _is_last(event):
                last = event
            else:
                yield _event(event)
    except Exception as error:  # LiteLLM's, and those of every provider's client below it
        raise ModelError(f"the model's stream broke: {getattr(error, 'message', error)}") from error
    finally:
        await _close(chunks)
    if last is not None:
        yield _event(last)
    yield DONE


async def _close(chunks: Any) -> None:
    # Older releases leave the connection to the garbage collector.
    close = getattr(chunks, "aclose", None)
    if close is not None:
        await close()


def _is_last(event: dict[str, Any]) -> bool:
    return any(choice.get("finish_reason") for choice in event["choices"])


def _event(data: dict[str, Any]) -> bytes:
    return b"data: " + dump_json(data).data + b"\n\n"
