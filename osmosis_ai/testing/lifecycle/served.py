"""ServedPlace: a backend behind a rollout server, reached through callbacks or the long poll."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from typing import Any, Literal, TypeAlias

from osmosis_ai.rollout.backend.base import Capacity
from osmosis_ai.rollout.client.answer import grader_result, polled_results, workflow_result
from osmosis_ai.rollout.client.poll import PATIENT, Lease, poll_result
from osmosis_ai.rollout.client.server_client import Reply, ServerClient, open_server_client
from osmosis_ai.rollout.controller.endpoint import Callbacks, RolloutEndpoint
from osmosis_ai.rollout.controller.listener import Controller
from osmosis_ai.rollout.controller.model.scripted import ScriptedClient
from osmosis_ai.rollout.controller.retry import RetryPolicy
from osmosis_ai.rollout.safe_json import dump_json
from osmosis_ai.rollout.types import (
    ExecutionOutcome,
    ExecutionRequest,
    ExecutionResult,
    RolloutStatus,
)
from osmosis_ai.testing.lifecycle.place import Place, Refused
from osmosis_ai.testing.serving import serve

Protocol: TypeAlias = Literal["callback", "poll"]


class ServedPlace(Place):
    """Asks a server as a controller does, and takes its answers in the way of one protocol."""

    def __init__(
        self,
        link: ServerClient,
        *,
        controller: Controller,
        protocol: Protocol,
        end_server: Callable[[], None],
        patience_sec: float,
    ) -> None:
        super().__init__(patience_sec=patience_sec)
        self._link = link
        self._controller = controller
        self._protocol = protocol
        self._end_server = end_server
        self._endpoints: dict[str, RolloutEndpoint] = {}

    async def start(self, request: ExecutionRequest) -> None:
        if request.id not in self._endpoints:
            self._endpoints[request.id] = self._controller.open_rollout(request.id)
        endpoint = self._endpoints[request.id]
        callbacks = endpoint.expect_callbacks() if self._protocol == "callback" else None
        reply = await self._link.start_rollout(_encode(request, endpoint, callbacks))
        if not reply.is_taken:
            raise Refused(reply.status, reply.retry_after)
        if callbacks is not None:
            self._await(request.id, _take_posts(callbacks))
        else:
            self._await(request.id, self._poll(request, reply))

    async def status(self, rollout_id: str) -> RolloutStatus:
        said = await self._link.status(rollout_id)
        return RolloutStatus(said or RolloutStatus.UNKNOWN)

    async def cancel(self, **selector: Any) -> dict[str, str]:
        return await self._link.cancel_by(**selector)

    async def capacity(self) -> Capacity:
        health = await self._link.health()
        counts = health["concurrency"]
        return Capacity(
            counts["max_concurrent"], counts["running"], counts["queued"], health["stopping"]
        )

    async def drain(self) -> None:
        await asyncio.to_thread(self._end_server)

    async def _poll(self, request: ExecutionRequest, reply: Reply) -> ExecutionOutcome:
        lease = Lease.of(reply)
        assert lease is not None, "a rollout that is to be polled has a lease"
        retry = RetryPolicy(max_retries=PATIENT)
        result = await poll_result(self._link, request.id, lease, retry=retry)
        workflow, grader = polled_results(result, request)
        return ExecutionOutcome(workflow=workflow, grader=grader)


@asynccontextmanager
async def serve_place(
    app: Any, *, protocol: Protocol, patience_sec: float
) -> AsyncIterator[ServedPlace]:
    """Serve an app while the block lasts, and reach it in one of both ways."""
    with Controller(ScriptedClient(lambda *_: "")) as controller, ExitStack() as server:
        url = server.enter_context(serve(app))
        async with open_server_client(url, api_key=None) as link:
            place = ServedPlace(
                link,
                controller=controller,
                protocol=protocol,
                end_server=server.close,
                patience_sec=patience_sec,
            )
            try:
                yield place
            finally:
                await place.close()
                # In a thread: the stage, which user code may wait for, lives in this loop.
                await place.drain()


async def _take_posts(callbacks: Callbacks) -> ExecutionOutcome:
    completion = await callbacks.rendezvous.completion()
    grade = grader_result(await callbacks.rendezvous.grade())
    assert completion is not None, "the workflow's answer comes before its grader's"
    workflow: ExecutionResult = workflow_result(completion)
    return ExecutionOutcome(workflow=workflow, grader=grade)


def _encode(
    request: ExecutionRequest, endpoint: RolloutEndpoint, callbacks: Callbacks | None
) -> bytes:
    order = {
        "rollout_id": request.id,
        "initial_messages": request.prompt,
        "label": request.label,
        "metadata": request.metadata,
        "chat_completions_url": endpoint.chat_completions_url,
        "llm_api_key": endpoint.api_key,
    }
    if callbacks is not None:
        order["controller_api_key"] = callbacks.api_key
        order["completion_callback_url"] = callbacks.completion_url
        order["grader_callback_url"] = callbacks.grader_url
    return dump_json(order).data
