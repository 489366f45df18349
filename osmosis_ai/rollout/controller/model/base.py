"""ModelClient: who answers the policy calls of a run, whole or chunk by chunk."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

from osmosis_ai.rollout.controller.usage import known
from osmosis_ai.rollout.safe_json import load_json


@dataclass(frozen=True, slots=True)
class ModelCall:
    """Which call this is; with the request it is all a scripted model's reply depends on."""

    rollout_id: str
    row: int = 0
    attempt: int = 0
    turn: int = 0
    """How many calls the rollout made before this one; a retry is not a new call."""
    seed: int = 0
    """A number that belongs to row and attempt."""


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """The body of one chat completion call, as the rollout sent it and parsed."""

    body: bytes
    data: dict[str, Any]

    @property
    def wants_stream(self) -> bool:
        """Whether the rollout asked for an event stream."""
        return self.data.get("stream") is True

    @property
    def wants_usage_chunk(self) -> bool:
        """Whether the rollout asked for the token counts at the end of its stream."""
        options = self.data.get("stream_options")
        return isinstance(options, dict) and options.get("include_usage") is True


@dataclass(frozen=True, slots=True)
class ModelReply:
    """What a model answered: a whole body, or the chunks of an event stream as they come."""

    status: int
    body: bytes = b""
    chunks: AsyncGenerator[bytes, None] | None = None
    content_type: str = "application/json"
    retry_after: str | None = None
    """The `Retry-After` header, where there was one."""


@dataclass(frozen=True, slots=True)
class ModelPrice:
    """US dollars for a token."""

    prompt: float
    completion: float


class ModelClient(ABC):
    """Base of every kind of model; lives in the listener's event loop."""

    name: str = "policy"
    """What the list of models calls it."""
    price: ModelPrice | None = None
    """Of a token; None where it is not known, or nobody is paid."""

    is_local: bool = False
    """Whether it is code in this process: there, and free, without being asked."""

    async def open(self) -> None:
        """Get ready; called once, in the loop of the calls."""

    async def close(self) -> None:
        """Release what `open` took."""

    def cost_usd(self, usage: Any) -> float | None:
        """What a call of that usage costs, in US dollars; None where the price is not known."""
        if self.price is None:
            return None
        prompt, completion = known(usage, "prompt_tokens"), known(usage, "completion_tokens")
        if prompt is None or completion is None:
            return None
        return prompt * self.price.prompt + completion * self.price.completion

    @abstractmethod
    async def complete(self, request: ModelRequest, call: ModelCall) -> ModelReply:
        """Answer one call, an answer of any status being one.

        Raises ModelError where there was none: no connection, a torn body.
        """


def parse_request(body: bytes) -> ModelRequest:
    """The body as a request; raises ValueError, in words for the agent's author."""
    return ModelRequest(body, parse_object(body))


def parse_object(body: bytes) -> dict[str, Any]:
    """The JSON object of a body; raises ValueError, in words for whoever sent it."""
    try:
        data = load_json(body)
    except ValueError as error:
        raise ValueError(f"the body is not JSON: {error}") from error
    if not isinstance(data, dict):
        raise ValueError(f"the body must be a JSON object, not {type(data).__name__}")
    return data
