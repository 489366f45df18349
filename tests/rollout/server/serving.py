"""A rollout server on a real port with a controller beside it: what these tests share."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import uvicorn
from fastapi import FastAPI

from osmosis_ai.rollout.backend.base import ExecutionBackend
from osmosis_ai.rollout.backend.local import LocalBackend
from osmosis_ai.rollout.context import AgentWorkflowContext, GraderContext
from osmosis_ai.rollout.http import HttpClient
from osmosis_ai.rollout.server.app import build_app
from osmosis_ai.rollout.server.jobs import DrainLimits
from tests.rollout.programs import grader_of, workflow_of
from tests.rollout.receiver import Receiver, Reply, receiving

SHORT = DrainLimits(finish_sec=0.05, cancel_sec=5.0, break_off_sec=5.0)
"""A drain that gives no rollout the time to end by itself."""


QUICK = DrainLimits(finish_sec=5.0, cancel_sec=5.0, break_off_sec=5.0, deliver_sec=0.01)
"""A drain that does not wait for answers to arrive which a journal keeps."""


async def no_sleep(seconds: float) -> None:
    """Pauses between attempts take no time here."""


async def answer(ctx: AgentWorkflowContext[Any]) -> Any:
    """A workflow that always says 4."""
    return [*ctx.prompt, {"role": "assistant", "content": "4"}]


class Counting:
    """A workflow that counts its runs, and ends each when it may go on."""

    def __init__(self, go_on: asyncio.Event | None = None) -> None:
        self.runs = 0
        self.started = asyncio.Event()
        self.go_on = go_on

    async def __call__(self, ctx: AgentWorkflowContext[Any]) -> Any:
        self.runs += 1
        self.started.set()
        if self.go_on is not None:
            await self.go_on.wait()
        return await answer(ctx)


async def exact(ctx: GraderContext) -> None:
    """A grader that knows the label."""
    assert ctx.sample is not None
    ctx.set_reward(float(ctx.sample.messages[-1]["content"] == ctx.label))


def local(run: Any = answer, grade: Any = exact, **fields: Any) -> LocalBackend:
    """A LocalBackend of one or two functions."""
    grader = None if grade is None else grader_of(grade)
    return LocalBackend(workflow=workflow_of(run), grader=grader, **fields)


@dataclass
class Said:
    """What the server said."""

    status: int
    headers: Mapping[str, str]
    raw: bytes

    @property
    def body(self) -> Any:
        return json.loads(self.raw)


@dataclass
class Site:
    """A server and its controller."""

    url: str
    session: aiohttp.ClientSession
    receiver: Receiver

    async def send(self, method: str, path: str, **fields: Any) -> Said:
        async with self.session.request(method, self.url + path, **fields) as response:
            return Said(response.status, response.headers, await response.read())

    def body(self, rollout_id: str | None = "r", **fields: Any) -> dict[str, Any]:
        """A request for a rollout, without the fields that are given as None."""
        body = {
            "rollout_id": rollout_id,
            "initial_messages": [{"role": "user", "content": "2 + 2"}],
            "label": "4",
            "chat_completions_url": "http://127.0.0.1:9/v1",
            "controller_api_key": "controller-key",
            "completion_callback_url": f"{self.receiver.url}/{rollout_id}/completion",
            "grader_callback_url": f"{self.receiver.url}/{rollout_id}/grader",
            **fields,
        }
        return {key: value for key, value in body.items() if value is not None}

    async def start(self, rollout_id: str | None = "r", **fields: Any) -> Said:
        return await self.send("POST", "/rollout", json=self.body(rollout_id, **fields))

    async def status(self, rollout_id: str = "r") -> Any:
        return (await self.send("GET", f"/rollout/{rollout_id}/status")).body

    async def answers(self, rollout_id: str = "r") -> tuple[Any, Any]:
        """The bodies of completion and grader answer, when both have come."""
        completion, grade = f"/{rollout_id}/completion", f"/{rollout_id}/grader"
        await self.receiver.wait_for(
            lambda receiver: receiver.at(completion) and receiver.at(grade)
        )
        return self.receiver.at(completion)[0].body, self.receiver.at(grade)[0].body


@asynccontextmanager
async def serving(
    backend: ExecutionBackend | None = None, *replies: Reply, **fields: Any
) -> AsyncIterator[Site]:
    """Serve a backend; the controller answers with `replies`, then with OK."""
    fields = {"client": HttpClient(sleep=no_sleep), **fields}
    app = build_app(backend or local(), **fields)
    async with (
        receiving(*replies) as receiver,
        listening(app) as url,
        aiohttp.ClientSession() as session,
    ):
        yield Site(url, session, receiver)


@asynccontextmanager
async def listening(app: FastAPI) -> AsyncIterator[str]:
    """The app on a port of its own, from the beginning of its lifespan to the end."""
    config = uvicorn.Config(app, port=0, log_config=None, lifespan="on", ws="none")
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await server.shutdown()
