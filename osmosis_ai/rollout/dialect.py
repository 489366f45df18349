"""The APIs agents speak besides chat completions: which there are, and how each says an error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from osmosis_ai.rollout.safe_json import dump_json


@dataclass(frozen=True, slots=True)
class Dialect:
    """One API whose calls are translated to chat completions."""

    name: str
    required: tuple[str, ...]
    """The fields without which there is nothing to translate."""
    unavailable: dict[str, str]
    """Fields that need what no chat completions endpoint has, and what to do instead."""
    say_error: Callable[[str, int], dict[str, Any]]
    """The body of an error with this message and HTTP status."""

    def error_body(self, message: str, *, status: int) -> bytes:
        """An error as this API's clients expect it."""
        return dump_json(self.say_error(message, status)).data

    def error_event(self, message: str, *, status: int) -> bytes:
        """The same as the last event of a stream."""
        return to_event("error", {"type": "error", **self.say_error(message, status)})


class DialectError(Exception):
    """A call that gets no translated answer; `str()` is written for the agent's author.

    `fault` is the same where the reason lies outside the agent, and no model call failed.
    """

    def __init__(self, status: int, message: str, *, fault: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.fault = message if fault else None


def to_event(kind: str, data: Any) -> bytes:
    """One event of a stream."""
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), dump_json(data).data)


def _responses_error(message: str, status: int) -> dict[str, Any]:
    return {"error": {"message": message, "type": "osmosis", "code": status, "param": None}}


def _messages_error(message: str, status: int) -> dict[str, Any]:
    kind = _KINDS.get(status, "api_error" if status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": message}}


_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_SEND_ALL = "no conversation is stored here; send the whole of it as input"

RESPONSES = Dialect(
    name="responses",
    required=("input",),
    unavailable={
        "background": "wait for the answer, or stream it",
        "conversation": _SEND_ALL,
        "previous_response_id": _SEND_ALL,
        "prompt": "no prompt is stored here; send its text as instructions",
    },
    say_error=_responses_error,
)
"""OpenAI's Responses API."""

MESSAGES = Dialect(
    name="messages",
    required=("messages", "max_tokens"),
    unavailable={
        "container": "there is no container here; run code in a tool of the agent's own",
        "mcp_servers": "connect to MCP servers in the agent, and send their tools",
    },
    say_error=_messages_error,
)
"""Anthropic's Messages API."""

# Anthropic's clients add the version to their base URL themselves.
ROUTES = {"responses": RESPONSES, "messages": MESSAGES, "v1/messages": MESSAGES}
"""Each dialect by what its clients append to their base URL."""
