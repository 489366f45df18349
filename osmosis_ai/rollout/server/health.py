"""`GET /health`: whether a server is up, how full it is, and whether it gets on."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable

from fastapi import Response
from pydantic import BaseModel, ConfigDict

from osmosis_ai.rollout.backend.base import ExecutionBackend
from osmosis_ai.rollout.server.body_route import json_response
from osmosis_ai.rollout.server.jobs import Jobs
from osmosis_ai.rollout.server.vitals import Vitals

INSTANCE_ID_VARIABLE = "_OSMOSIS_ROLLOUT_INSTANCE_ID"


class Lifecycle(BaseModel):
    """Whether the server takes rollouts, and how many are in flight."""

    accepting_rollouts: bool
    active_rollouts: int


class HealthResponse(BaseModel):
    """Body of `GET /health`: what the backend says of itself, and the server's own counts."""

    model_config = ConfigDict(extra="allow")

    status: str
    stopping: int
    """Rollouts that were cancelled and whose code has not ended yet."""
    lifecycle: Lifecycle
    oldest_queued_sec: float | None
    """How long the rollout has waited that has waited longest for a slot."""
    oldest_running_sec: float | None
    """How long the rollout has run, or been graded, that has done so longest."""
    oldest_undelivered_sec: float | None
    """How long the answer has been on its way that has been so longest."""
    loop_lag_sec: float
    """How late the event loop was at most in the last minute: the time somebody held it."""
    max_queue_depth: int | None = None
    instance_id: str | None = None


def health_endpoint(
    backend: ExecutionBackend, jobs: Jobs, vitals: Vitals, *, max_queue_depth: int | None
) -> Callable[[], Awaitable[Response]]:
    given = {
        "instance_id": os.environ.get(INSTANCE_ID_VARIABLE),
        "max_queue_depth": max_queue_depth,
    }
    given = {name: value for name, value in given.items() if value is not None}

    async def health() -> Response:
        """Whether the server is up, how full it is, and whether it gets on; needs no key."""
        capacity = backend.capacity()
        said = {
            **given,
            **backend.health(),
            **vitals.report(),
            "stopping": 0 if capacity is None else capacity.stopping,
            "lifecycle": {
                "accepting_rollouts": not jobs.is_draining,
                "active_rollouts": jobs.active,
            },
        }
        return json_response(said)

    return health
