"""A rollout server in a thread of its own, for tests and pages that need one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from osmosis_ai._extras import requires_extra
from osmosis_ai.rollout.controller.loop_thread import run_in_thread

with requires_extra("server", "serving rollouts in a test"):
    import uvicorn


@contextmanager
def serve(app: Any) -> Iterator[str]:
    """Serve an app with its lifespan on a free port; yields the URL."""
    config = uvicorn.Config(app, port=0, access_log=False, log_config=None, ws="none")

    @asynccontextmanager
    async def service() -> AsyncIterator[str]:
        server = uvicorn.Server(config)
        config.load()
        server.lifespan = config.lifespan_class(config)
        await server.startup()
        port = server.servers[0].sockets[0].getsockname()[1]
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            server.force_exit = True
            await server.lifespan.shutdown()
            await server.shutdown()

    with run_in_thread(service, name="rollout-server", stop_patience_sec=60) as (_, url):
        yield url
