"""create_rollout_server: the routes of a rollout server, its beginning and its end."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Annotated, Any, TypeAlias

from fastapi import FastAPI, Header, Response, Security
from fastapi.security import HTTPBearer
from pydantic import BaseModel, Discriminator, Tag
from starlette.types import ASGIApp, Receive, Scope, Send

from osmosis_ai import __version__
from osmosis_ai.errors import ConfigError
from osmosis_ai.rollout.backend.base import ExecutionBackend
from osmosis_ai.rollout.http import HttpClient
from osmosis_ai.rollout.protocol import (
    CancelRolloutsRequest,
    CancelRolloutsResponse,
    RolloutInitRequest,
    RolloutInitResponse,
    RolloutPollRequest,
    RolloutPollResponse,
    RolloutResultResponse,
    RolloutStatusResponse,
    parse_start_request,
)
from osmosis_ai.rollout.server.auth import BearerGate
from osmosis_ai.rollout.server.body_route import BodyRoute, Problem, json_response
from osmosis_ai.rollout.server.bounds import MAX_BODY_BYTES, Bounds
from osmosis_ai.rollout.server.delivery import WINDOW_SEC, Delivery
from osmosis_ai.rollout.server.health import HealthResponse, health_endpoint
from osmosis_ai.rollout.server.history import RETENTION_SEC, History
from osmosis_ai.rollout.server.jobs import Admission, DrainLimits, Jobs
from osmosis_ai.rollout.server.lease import POLLING_LEASE_SEC, RESULT_WAIT_SEC, LeaseTerms
from osmosis_ai.rollout.server.lifetime import JournalChoice, Lifespan, server_lifespan
from osmosis_ai.rollout.server.vitals import Vitals
from osmosis_ai.rollout.types import RolloutStatus

logger = logging.getLogger(__name__)

LEASE_HEADER = "X-Osmosis-Rollout-Lease"

RETRY_AFTER_SEC = "5"
"""When a controller may come back to a server that takes no rollout now."""

Endpoint: TypeAlias = Callable[..., Awaitable[ASGIApp]]

EitherStartRequest: TypeAlias = Annotated[
    Annotated[RolloutInitRequest, Tag("callbacks")] | Annotated[RolloutPollRequest, Tag("poll")],
    Discriminator(lambda body: "callbacks"),
]
"""Either body of `POST /rollout`, as the schema shows it: the route tells them apart itself."""


def create_rollout_server(
    *,
    backend: ExecutionBackend,
    lifespan: Lifespan | None = None,
    configure_logging: bool = True,
    api_key: str | None = None,
    journal: JournalChoice = "auto",
    delivery_window_sec: float = WINDOW_SEC,
    result_wait_timeout_sec: float = RESULT_WAIT_SEC,
    polling_lease_timeout_sec: float = POLLING_LEASE_SEC,
    result_retention_sec: float = RETENTION_SEC,
    max_queue_depth: int | None = None,
    max_body_bytes: int = MAX_BODY_BYTES,
    callback_hosts: Collection[str] | None = None,
    stall_sec: float | None = None,
) -> FastAPI:
    """An app that runs rollouts for a controller and brings their answers to it.

    `lifespan` is your own: its end comes after the last rollout's. `configure_logging` gives the
    root logger a handler where it has none. With an `api_key`, requests without
    `Authorization: Bearer <key>` are refused, all but `GET /health`.

    `journal` is where rollouts and answers are written down before they are promised and posted,
    so that the next server delivers what this one could not: a file, "auto" for one of its own
    below the artifact root, where it also takes over those of servers that have ended, or None for
    none. RunError when the app starts where a file you name cannot be opened. An answer is posted
    for `delivery_window_sec`; without a journal, five times.

    A controller without callback URLs polls for the result: a poll is held for at most
    `result_wait_timeout_sec`, a rollout that nobody polls ends after `polling_lease_timeout_sec`,
    and what became of a rollout is told for `result_retention_sec`.

    A rollout is refused with 429 where `max_queue_depth` wait already, a body of more than
    `max_body_bytes` with 413, and with 422 a callback URL whose host is none of `callback_hosts`
    (names, addresses, patterns like `*.example.org`). What has been queued, running or grading for
    `stall_sec` is named in the log.

        app = create_rollout_server(backend=LocalBackend(workflow=MyWorkflow, grader=MyGrader))
    """
    if configure_logging:
        _configure_logging()
    return build_app(
        backend,
        lifespan=lifespan,
        api_key=api_key,
        journal=journal,
        delivery_window_sec=delivery_window_sec,
        terms=LeaseTerms(result_wait_timeout_sec, polling_lease_timeout_sec),
        history=History(retention_sec=result_retention_sec),
        bounds=Bounds(max_body_bytes, max_queue_depth, callback_hosts),
        stall_sec=stall_sec,
    )


def build_app(
    backend: ExecutionBackend,
    *,
    lifespan: Lifespan | None = None,
    api_key: str | None = None,
    journal: JournalChoice = None,
    delivery_window_sec: float = WINDOW_SEC,
    terms: LeaseTerms | None = None,
    history: History | None = None,
    client: HttpClient | None = None,
    drain_limits: DrainLimits | None = None,
    bounds: Bounds | None = None,
    stall_sec: float | None = None,
) -> FastAPI:
    """The app of `create_rollout_server`, with the parts that a test exchanges."""
    if api_key == "":
        raise ConfigError("api_key is empty: give a key, or None for no key", key="api_key")
    bounds = bounds or Bounds()
    delivery = Delivery(client or HttpClient(), window_sec=delivery_window_sec)
    jobs = Jobs(backend, delivery, history=history, terms=terms, bounds=bounds)
    vitals = Vitals(backend, delivery, stall_sec=stall_sec)
    app = FastAPI(
        title="Osmosis rollout server",
        version=__version__,
        lifespan=server_lifespan(
            backend,
            jobs,
            delivery,
            vitals,
            outer=lifespan,
            drain_limits=drain_limits or DrainLimits(),
            journal=journal,
        ),
    )
    app.state.max_body_bytes = bounds.max_body_bytes
    _add_routes(
        app,
        jobs=jobs,
        health=health_endpoint(backend, jobs, vitals, max_queue_depth=bounds.max_queue_depth),
        has_key=api_key is not None,
    )
    if api_key is not None:
        app.add_middleware(BearerGate, api_key=api_key)
    return app


def _configure_logging() -> None:
    if not logging.getLogger().handlers:
        logging.basicConfig(
            level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
        )


def _add_routes(app: FastAPI, *, jobs: Jobs, health: Endpoint, has_key: bool) -> None:
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
        response_model=RolloutPollResponse | RolloutInitResponse,
        responses={**_problems(409, 410, 413, 422, 429, 503), **refusals},
        route_class_override=StartRoute,
        **guarded,
    )
    # Routes are tried in order, and this one is asked for more often than all others together.
    router.routes.insert(0, router.routes.pop())
    router.add_api_route(
        "/rollout/cancel",
        _cancel_rollouts(jobs),
        methods=["POST"],
        response_model=CancelRolloutsResponse,
        responses={**_problems(413, 422), **refusals},
        route_class_override=BodyRoute,
        **guarded,
    )
    router.add_api_route(
        "/rollout/{rollout_id}/result",
        _rollout_result(jobs),
        response_model=RolloutResultResponse,
        responses={**_problems(403, 404), **refusals},
        **guarded,
    )
    router.add_api_route(
        "/rollout/{rollout_id}/status",
        _rollout_status(jobs),
        response_model=RolloutStatusResponse,
        responses=refusals,
        **guarded,
    )
    router.add_api_route("/health", health, response_model=HealthResponse)


def _start_rollout(jobs: Jobs) -> Endpoint:
    async def start_rollout(body: EitherStartRequest) -> ASGIApp:
        """Start a rollout; its answers are posted to the callback URLs.

        Without any callback URL the result is there to be polled. A `rollout_id` that is known with
        the same content means that rollout, and its answers go to the URLs of the newest request.
        """
        try:
            admission = await jobs.admit(body)
        except ValueError as exc:
            return _refusal(422, f"the answers cannot be posted as asked: {exc}")
        if admission is Admission.ACCEPTED and isinstance(body, RolloutPollRequest):
            return _leased(jobs, body.rollout_id)
        return _admission_response(admission)

    return start_rollout


def _rollout_result(jobs: Jobs) -> Endpoint:
    async def rollout_result(
        rollout_id: str, x_osmosis_rollout_lease: Annotated[str, Header()]
    ) -> Response:
        """The end of a rollout that is polled, or where it is; held until that changes."""
        lease = jobs.lease(rollout_id)
        if lease is None:
            return _refusal(404, "no rollout of this id is polled here (any more)")
        if not lease.opens_with(x_osmosis_rollout_lease):
            return _refusal(403, f"{LEASE_HEADER} is not this rollout's lease")
        lease.renew(jobs.terms.polling_lease_timeout_sec)
        await lease.wait(
            lambda: jobs.outcome(rollout_id).status, jobs.terms.result_wait_timeout_sec
        )
        if lease.result is not None:
            lease.note_taken()
            return Response(lease.result, media_type="application/json")
        return json_response({"rollout_id": rollout_id, "status": _unfinished(jobs, rollout_id)})

    return rollout_result


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


class StartRoute(BodyRoute):
    """The route whose body is one of two models, told apart by the callback URLs."""

    def parser(self, models: tuple[type[BaseModel], ...]) -> Callable[[bytes], BaseModel]:
        return parse_start_request


def _leased(jobs: Jobs, rollout_id: str) -> Response:
    lease = jobs.lease(rollout_id)
    assert lease is not None, "it was admitted just now"
    return json_response(
        {
            "rollout_id": rollout_id,
            "status": jobs.outcome(rollout_id).status,
            "polling_lease_token": lease.token,
            "result_wait_timeout_sec": jobs.terms.result_wait_timeout_sec,
            "polling_lease_timeout_sec": jobs.terms.polling_lease_timeout_sec,
        },
        202,
    )


def _unfinished(jobs: Jobs, rollout_id: str) -> RolloutStatus:
    """Where a rollout is, which has not ended while its result is not on disk."""
    status = jobs.outcome(rollout_id).status
    return RolloutStatus.RUNNING if status.is_terminal else status


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
    if admission is Admission.FORGOTTEN:
        return _refusal(
            410, "this rollout is over and its answers are no longer kept; give it another id"
        )
    if admission is Admission.UNWRITABLE:
        return _refusal(503, "the server cannot write its journal", retry_after=True)
    if admission is Admission.FULL:
        return _refusal(429, "rollout queue is full; retry later", retry_after=True)
    return _refusal(503, "the server is shutting down", retry_after=True)


def _refusal(status_code: int, detail: str, *, retry_after: bool = False) -> Response:
    headers = {"Retry-After": RETRY_AFTER_SEC} if retry_after else None
    return json_response({"detail": detail}, status_code, headers=headers)
