"""HttpDriver: rollouts on a rollout server that runs already, wherever it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from osmosis_ai.rollout.client.fleet import Fleet, RolloutServer
from osmosis_ai.rollout.client.server_client import open_server_client
from osmosis_ai.rollout.client.server_flights import (
    START_RETRIES,
    WATCH_SEC,
    ServerFlights,
)
from osmosis_ai.rollout.controller.listener import Controller
from osmosis_ai.rollout.controller.retry import RetryPolicy
from osmosis_ai.rollout.driver.base import Deadline, RolloutDriver, deadline_sec
from osmosis_ai.rollout.flight.flight import STOP_PATIENCE_SEC, OnSample


class HttpDriver(ServerFlights, RolloutDriver):
    """What a client does with one server, as a driver; made by `open_http_driver`.

    A server that is gone, or knows no such key or URL, ends the run: BackendError.
    """

    def __init__(self, server: RolloutServer, *, kind: str = "http", **given: Any) -> None:
        super().__init__(Fleet([server]), **given)
        self._server = server
        self._kind = kind

    @property
    def description(self) -> str:
        """Which server."""
        return f"{self._kind}, {self._server.url}"

    @property
    def server(self) -> RolloutServer:
        """Which one it drives."""
        return self._server


@asynccontextmanager
async def open_http_driver(
    server_url: str,
    *,
    controller: Controller,
    api_key: str | None = None,
    on_sample: OnSample | None = None,
    deadline: Deadline = deadline_sec,
    stop_patience_sec: float = STOP_PATIENCE_SEC,
    retry: RetryPolicy = START_RETRIES,
    watch_sec: float = WATCH_SEC,
    kind: str = "http",
    artifact_root: Path | None = None,
) -> AsyncIterator[HttpDriver]:
    """The driver of a server that answers at `server_url`; raises BackendError where none does.

    `api_key` is what the server was given as its own. As many rollouts are in flight as the server
    says it runs at once. The tokens of their calls, where the model gives any, go to
    `artifact_root`, each rollout's to a folder of its own.
    """
    async with open_server_client(server_url, api_key=api_key) as link:
        server = RolloutServer(link)
        server.hear(await link.health())
        driver = HttpDriver(
            server,
            kind=kind,
            controller=controller,
            on_sample=on_sample,
            deadline=deadline,
            stop_patience_sec=stop_patience_sec,
            retry=retry,
            artifact_root=artifact_root,
        )
        watch = asyncio.create_task(driver.watch(server, every_sec=watch_sec))
        try:
            yield driver
        finally:
            watch.cancel()
            await driver.close()
