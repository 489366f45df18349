"""create_rollout_server: the routes of a rollout server, its beginning and its end."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeAlias

from fastapi import FastAPI, Response, Security
from fastapi.security import HTTPBearer
from pydantic import BaseModel, ConfigDict
from starlette.types import ASGIApp, Receive, Scope, Send

from osmosis_ai import __version__
from osmosis_ai.errors import ConfigError
from osmosis_ai.rollout.backend.base import ExecutionBackend
from osmosis_ai.rollout.garbage import patient_collector
from osmosis_ai.rollout.http import HttpClient
from osmosis_ai.rollout.protocol import (
    CancelRolloutsRequest,
    CancelRolloutsResponse,
    RolloutInitRequest,
    RolloutInitResponse,
    RolloutStatusResponse,
)
from osmosis_ai.rollout.server.auth import BearerGate
from osmosis_ai.rollout.server.body_route import BodyRoute, Problem, json_response
from osmosis_ai.rollout.server.delivery import Delivery
from osmosis_ai.rollout.server.jobs import Admission, DrainLimits, Jobs

INSTANCE_ID_VARIABLE = "_OSMOSIS_ROLLOUT_INSTANCE_ID"

RETRY_AFTER_SEC = "5"
"""When a controller may come back to a server that takes no rollout now."""

Endpoint: TypeAlias = Callable[..., Awaitable[ASGIApp]]

Lifespan: TypeAlias = (
    Callable[[FastAPI], AbstractAsyncContextManager[None]]
    | Callable[[FastAPI], AbstractAsyncContextManager[Mapping[str, Any]]]
)
"""What runs around the app's life; a mapping it yields is the requests' `state`."""


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
    instance_id: str | None = None


def create_rollout_server(
    *,
    backend: ExecutionBackend,
    lifespan: Lifespan | None = None,
    configure_logging: bool = True,
    api_key: str | None = None,
) -> FastAPI:
    """An app that runs rollouts for a controller and posts their answers to it.

    `lifespan` is your own: its end comes after the last rollout's. `configure_logging` gives the
    root logger a handler where it has none. With an `api_key`, requests without
    `Authorization: Bearer <key>` are refused, all but `GET /health`.

        app = create_rollout_server(backend=LocalBackend(workflow=MyWorkflow, grader=MyGrader))
    """
    if configure_logging:
        _configure_logging()
    return build_app(backend, lifespan=lifespan, api_key=api_key)


def build_app(
    backend: ExecutionBackend,
    *,
    lifespan: Lifespan | None = None,
    api_key: str | None = None,
    client: HttpClient | None = None,
    drain_limits: DrainLimits | None = None,
) -> FastAPI:
    """The app of `create_rollout_server`, with the parts that a test exchanges."""
    if api_key == "":
        raise ConfigError("api_key is empty: give a key, or None for no key", key="api_key")
    delivery = Delivery(client or HttpClient())
    jobs = Jobs(backend, delivery)
    app = FastAPI(
        title="Osmosis rollout server",
        version=__version__,
        lifespan=_lifespan(
            lifespan or _nothing, backend, jobs, delivery, drain_limits or DrainLimits()
        ),
    )
    _add_routes(app, backend=backend, jobs=jobs, has_key=api_key is not None)
    if api_key is not None:
        app.add_middleware(BearerGate, api_key=api_key)
    return app


def _configure_logging() -> None:
    if not logging.getLogger().handlers:
        logging.basicConfig(
            level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
        )


def _lifespan(
    outer: Lifespan,
    backend: ExecutionBackend,
    jobs: Jobs,
    delivery: Delivery,
    drain_limits: DrainLimits,
) -> Lifespan:
    """The caller's lifespan around our own, which lets no rollout go without its answers."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[Any]:
        async with outer(app) as state:
            try:
                with patient_collector():
                    yield state
            finally:
                await jobs.drain(drain_limits)
                delivery.close()
                await backend.shutdown()

    return lifespan


@asynccontextmanager
async def _nothing(app: FastAPI) -> AsyncIterator[None]:
    yield


def _add_routes(app: FastAPI, *, backend: ExecutionBackend, jobs: Jobs, has_key: bool) -> None:
    guarded: dict[str, Any] = {}
    if has_key:
        guarded["dependencies"] = [Security(HTTPBearer(auto_error=False))]
    refusals = _problems(401) if has_key else {}
    router = app.router
    router.add_api_route(
        "/rollout",
        _start_rollout(jobs),
        methods=["POST"],
        status_code=202,
        response_model=RolloutInitResponse,
        responses={**_problems(409, 422, 429, 503), **refusals},
        route_class_override=BodyRoute,
        **guarded,
    )
    # Routes are tried in order, and this one is asked for more often than all others together.
    router.routes.insert(0, router.routes.pop())
    router.add_api_route(
        "/rollout/cancel",
        _cancel_rollouts(jobs),
        methods=["POST"],
        response_model=CancelRolloutsResponse,
        responses={**_problems(422), **refusals},
        route_class_override=BodyRoute,
        **guarded,
    )
    router.add_api_route(
        "/rollout/{rollout_id}/status",
        _rollout_status(jobs),
        response_model=RolloutStatusResponse,
        responses=refusals,
        **guarded,
    )
    router.add_api_route("/health", _health(backend, jobs), response_model=HealthResponse)


def _start_rollout(jobs: Jobs) -> Endpoint:
    async def start_rollout(body: RolloutInitRequest) -> ASGIApp:
        """Start a rollout; its answers are posted to the callback URLs.

        A `rollout_id` that is known with the same content means that rollout, and what has not
        arrived of its answers goes to the URLs of the newest request.
        """
        try:
            return _admission_response(jobs.admit(body))
        except ValueError as exc:
            return _refusal(422, f"the answers cannot be posted as asked: {exc}")

    return start_rollout


def _cancel_rollouts(jobs: Jobs) -> Endpoint:
    async def cancel_rollouts(body: CancelRolloutsRequest) -> Response:
        """Ask rollouts to stop, by exactly one of `ids`, `prefix` and `all`."""
        if (body.ids is not None) + (body.prefix is not None) + bool(body.all) != 1:
            return _refusal(422, "pass exactly one selector: ids, prefix, or all")
        said = await jobs.cancel(ids=body.ids, prefix=body.prefix, all=bool(body.all))
        return json_response({"dispositions": said})

    return cancel_rollouts


def _rollout_status(jobs: Jobs) -> Endpoint:
    async def rollout_status(rollout_id: str) -> Response:
        """Where a rollout is; `unknown` for ids nobody knows, or no longer."""
        return json_response({"rollout_id": rollout_id, **jobs.outcome(rollout_id)._asdict()})

    return rollout_status


def _health(backend: ExecutionBackend, jobs: Jobs) -> Endpoint:
    instance_id = os.environ.get(INSTANCE_ID_VARIABLE)

    async def health() -> Response:
        """Whether the server is up, and how full it is; needs no key."""
        capacity = backend.capacity()
        said = {
            **backend.health(),
            "stopping": 0 if capacity is None else capacity.stopping,
            "lifecycle": {
                "accepting_rollouts": not jobs.is_draining,
                "active_rollouts": jobs.active,
            },
        }
        return json_response(said if instance_id is None else {**said, "instance_id": instance_id})

    return health


def _problems(*status_codes: int) -> dict[int | str, dict[str, Any]]:
    return {code: {"model": Problem} for code in status_codes}


async def _accepted(scope: Scope, receive: Receive, send: Send) -> None:
    """The 202 of an accepted rollout, said without building a Response for it."""
    headers = [(b"content-type", b"application/json"), (b"content-length", b"2")]
    await send({"type": "http.response.start", "status": 202, "headers": headers})
    await send({"type": "http.response.body", "body": b"{}"})


def _admission_response(admission: Admission) -> ASGIApp:
    if admission is Admission.ACCEPTED:
        return _accepted
    if admission is Admission.CONFLICT:
        return _refusal(
            409, "this rollout_id was accepted with other content; give the rollout another id"
        )
    if admission is Admission.FULL:
        return _refusal(429, "rollout queue is full; retry later", retry_after=True)
    return _refusal(503, "the server is shutting down", retry_after=True)


def _refusal(status_code: int, detail: str, *, retry_after: bool = False) -> Response:
    headers = {"Retry-After": RETRY_AFTER_SEC} if retry_after else None
    return json_response({"detail": detail}, status_code, headers=headers)
