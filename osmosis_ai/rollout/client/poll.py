"""Come for the result of a rollout, until it is there."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

from pydantic import ValidationError

from osmosis_ai.errors import BackendError, ProtocolError
from osmosis_ai.rollout.client.server_client import Reply, ServerClient
from osmosis_ai.rollout.controller.retry import RetryPolicy
from osmosis_ai.rollout.protocol import RolloutResultResponse
from osmosis_ai.rollout.types import RolloutStatus

PATIENT = 1_000_000
"""Retries without end: whether a server is there, is for whoever watches it to say."""

_SHORTEST_HOLD_SEC = 0.05
_FALLBACK_HOLD_SEC = 30.0
_PASSING = 429
_FORGOTTEN = frozenset({403, 404})


class RolloutLost(BackendError):
    """The server that was to run a rollout is gone, or does not know it any more."""


@dataclass(frozen=True, slots=True)
class Lease:
    """What a server gives to who comes for the result."""

    token: str = field(repr=False)
    wait_sec: float = _FALLBACK_HOLD_SEC
    """How long the server holds a question."""

    @classmethod
    def of(cls, reply: Reply) -> Self | None:
        """The lease in the answer to an order; None where the server posts its answers."""
        said = reply.data
        token, wait_sec = said.get("polling_lease_token"), said.get("result_wait_timeout_sec")
        if not isinstance(token, str):
            return None
        return cls(token, float(wait_sec)) if isinstance(wait_sec, int | float) else cls(token)


async def poll_result(
    server: ServerClient, rollout_id: str, lease: Lease, *, retry: RetryPolicy
) -> RolloutResultResponse:
    """Ask until the rollout has ended.

    Raises RolloutLost where the server does not know it, ProtocolError for what makes no sense.
    """
    before: RolloutStatus | None = None
    failures = 0
    while True:
        reply = await server.result(rollout_id, token=lease.token, wait_sec=lease.wait_sec)
        if reply.status == 200:
            result = _parse(server, reply)
            if result.status.is_terminal:
                return result
            # A server that does not hold the question must not be asked without a pause.
            pause_sec: float | None = _SHORTEST_HOLD_SEC if result.status is before else 0.0
            before, failures = result.status, 0
        else:
            failures += 1
            pause_sec = _pause_sec(server, rollout_id, reply, retry, failures)
        await retry.sleep(pause_sec or 0.0)


def _parse(server: ServerClient, reply: Reply) -> RolloutResultResponse:
    try:
        return RolloutResultResponse.model_validate_json(reply.text)
    except ValidationError as error:
        raise ProtocolError(
            f"the rollout server at {server.url} answered with no result of a rollout: {error}",
            status_code=reply.status,
        ) from error


def _pause_sec(
    server: ServerClient, rollout_id: str, reply: Reply, retry: RetryPolicy, failures: int
) -> float | None:
    said = f"the rollout server at {server.url} {reply.problem}"
    if reply.status in _FORGOTTEN:
        raise RolloutLost(f"rollout {rollout_id} is not known any more: {said}")
    if reply.may_pass or reply.status == _PASSING:
        return retry.pause_sec(failures, retry_after=reply.retry_after)
    raise ProtocolError(said, status_code=reply.status)
