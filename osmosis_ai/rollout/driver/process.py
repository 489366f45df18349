"""The process driver: an entrypoint's server, started here for one run and driven over HTTP."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from osmosis_ai.rollout.controller.listener import Controller
from osmosis_ai.rollout.driver.base import Deadline, deadline_sec
from osmosis_ai.rollout.driver.http import HttpDriver, open_http_driver
from osmosis_ai.rollout.driver.server_process import ServerProcess, start_server
from osmosis_ai.rollout.flight.flight import OnSample


@asynccontextmanager
async def open_process_driver(
    entrypoint: Path,
    *,
    controller: Controller,
    project_path: Path,
    import_roots: Sequence[Path],
    artifact_root: Path,
    on_sample: OnSample | None = None,
    deadline: Deadline = deadline_sec,
    python: str | Path = sys.executable,
) -> AsyncIterator[HttpDriver]:
    """The driver of a server that is started for this block, with `python` as its interpreter.

    Raises BackendError with the end of the server's log where it does not come up. One that ends
    during the run ends the run in the same way.
    """
    async with (
        start_server(
            entrypoint,
            project_path=project_path,
            import_roots=import_roots,
            artifact_root=artifact_root,
            python=python,
        ) as server,
        open_http_driver(
            server.url,
            controller=controller,
            on_sample=on_sample,
            deadline=deadline,
            kind=f"{_kind(python)} {server.process.pid}",
            artifact_root=artifact_root,
        ) as driver,
    ):
        watch = asyncio.create_task(_watch(server, driver))
        try:
            yield driver
        finally:
            watch.cancel()


def _kind(python: str | Path) -> str:
    return "process" if str(python) == sys.executable else "isolated process"


async def _watch(server: ServerProcess, driver: HttpDriver) -> None:
    driver.go_down(await server.wait())
