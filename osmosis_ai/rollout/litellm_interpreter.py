"""LiteLLM as the one who knows the shapes of other dialects."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import AsyncGenerator, Mapping
from contextvars import ContextVar
from typing import Any

from osmosis_ai._extras import requires_extra
from osmosis_ai.rollout.dialect import MESSAGES, RESPONSES, Dialect, DialectError, to_event

# Else importing LiteLLM asks the network for a table of prices.
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

with requires_extra("litellm", "an agent that does not speak chat completions"):
    import litellm as _litellm
    from litellm.types.llms.anthropic import AnthropicMessagesRequestOptionalParams
    from openai import AsyncOpenAI, DefaultAsyncHttpxClient
    from openai.types.responses.response_create_params import ResponseCreateParamsBase

logger = logging.getLogger(__name__)

try:
    from litellm._internal_context import is_internal_call
except ImportError:  # a release without it logs these calls as if the user had made them
    is_internal_call = ContextVar("is_internal_call")

# LiteLLM would print advice to standard output with each error.
_litellm.suppress_debug_info = True


class LiteLLMInterpreter:
    """Asks LiteLLM for the answer of a model whose provider it knows for chat completions alone."""

    def __init__(self) -> None:
        # Without proxies: the endpoint is the rollout's own. Without a timeout: it has a deadline.
        self._http = DefaultAsyncHttpxClient(trust_env=False, timeout=None)

    async def translate(
        self, dialect: Dialect, body: dict[str, Any], *, base_url: str, api_key: str
    ) -> dict[str, Any] | AsyncGenerator[bytes, None]:
        """The answer, or the events of its stream; DialectError where there is none."""
        client = AsyncOpenAI(
            base_url=base_url, api_key=api_key, max_retries=0, http_client=self._http
        )
        # Not the user's own call: LiteLLM would tell the user's callbacks of it, and start a task
        # for that which tolerates no second event loop.
        is_internal_call.set(True)
        try:
            said = await _FUNCTIONS[dialect.name](
                **_arguments(dialect, body),
                api_base=base_url,
                api_key=api_key,
                client=client,
                max_retries=0,
                num_retries=0,
            )
        except Exception as error:  # LiteLLM raises its own, the endpoint's, and what it never met
            raise _read_error(error) from error
        if body.get("stream") is True:
            return _events(said)
        return _whole(_plain(said))

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()


_FUNCTIONS: dict[str, Any] = {
    RESPONSES.name: _litellm.aresponses,
    MESSAGES.name: _litellm.anthropic_messages,
}
_PROVIDER = "custom_openai"
# LiteLLM's own name for it, as it knows what some models can do by theirs; the agent's is sent.
_MODEL = f"{_PROVIDER}/osmosis-rollout"
# It says how a stream is padded, and for chat completions something else.
_MEANINGLESS = frozenset({"stream_options"})


def _arguments(dialect: Dialect, body: Mapping[str, Any]) -> dict[str, Any]:
    """The body as LiteLLM's arguments; what the API does not know goes to the endpoint as it is."""
    known = _KNOWN[dialect.name]
    sent = {name: value for name, value in body.items() if name not in _MEANINGLESS}
    extra = {name: value for name, value in sent.items() if name not in known or name == "model"}
    return {
        **{name: value for name, value in sent.items() if name in known},
        "model": _MODEL,
        "extra_body": extra,
        # What a chat completion cannot say is left out, as LiteLLM's own server does.
        "drop_params": True,
        "allowed_openai_params": ["reasoning_effort"],
    }


_KNOWN = {
    RESPONSES.name: frozenset(ResponseCreateParamsBase.__annotations__) | {"stream"},
    MESSAGES.name: frozenset(AnthropicMessagesRequestOptionalParams.__annotations__)
    | {"messages", "model"},
}


async def _events(said: Any) -> AsyncGenerator[bytes, None]:
    try:
        async for event in said:
            yield _event(event)
    except DialectError:
        raise
    except Exception as error:  # as above, in the middle of an answer
        raise _read_error(error) from error
    finally:
        # With it the call ends, which else would go on to its end with nobody to read it.
        await said.aclose()


def _event(event: Any) -> bytes:
    if isinstance(event, bytes):
        _check(event)
        return event.replace(b'"signature": ""', b'"signature": "%b"' % _SIGNATURE.encode())
    data = _plain(event)
    if isinstance(data.get("response"), dict):
        data["response"] = _whole(data["response"])
    return to_event(data["type"], data)


def _check(event: bytes) -> None:
    """LiteLLM says an error of a Messages stream as an event, in words of its own."""
    head, _, data = event.partition(b"\ndata: ")
    if head == b"event: error":
        raise DialectError(500, _words(json.loads(data)["error"]["message"]))


def _plain(said: Any) -> dict[str, Any]:
    plain: dict[str, Any] = said if isinstance(said, dict) else said.model_dump(warnings=False)
    return plain


def _whole(answer: dict[str, Any]) -> dict[str, Any]:
    """The answer under the name the endpoint gave its model, its thinking signed."""
    for block in answer.get("content") or ():
        if block["type"] == "thinking":
            block["signature"] = block.get("signature") or _SIGNATURE
    return {**answer, "model": str(answer.get("model")).removeprefix(f"{_PROVIDER}/")}


# Clients send thinking back as such only where it is signed. Here nobody checks it.
_SIGNATURE = "unsigned"


def _read_error(error: Exception) -> DialectError:
    status = getattr(error, "status_code", None)
    if not isinstance(status, int) or not 400 <= status < 600:
        logger.error("LiteLLM could not translate a call", exc_info=error)
        text = f"LiteLLM could not translate this call: {type(error).__name__}: {error}"
        return DialectError(500, text, fault=True)
    return DialectError(status, _words(getattr(error, "message", None) or str(error)))


def _words(message: str) -> str:
    """What the endpoint said, without LiteLLM's names before it."""
    return _NAMES.sub("", message)


# "litellm.APIError: APIError: Custom_openaiException - ..."
_NAMES = re.compile(r"^(?:(?:litellm\.)?\w+(?:Error|Exception)(?::| -) )+")
