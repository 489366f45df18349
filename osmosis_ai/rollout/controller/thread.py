"""A thread with an event loop of its own that serves one app on loopback."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass

from osmosis_ai._extras import requires_extra
from osmosis_ai.rollout.controller.asgi import App

with requires_extra("server", "a controller"):
    import uvicorn

logger = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
_STOP_TIMEOUT_SEC = 5.0


@dataclass(frozen=True, slots=True)
class Listening:
    """Where an app listens, and the loop it lives in."""

    base_url: str
    loop: asyncio.AbstractEventLoop


@asynccontextmanager
async def _nothing() -> AsyncIterator[None]:
    yield


@contextmanager
def listen(
    app: App,
    *,
    lifespan: Callable[[], AbstractAsyncContextManager[object]] = _nothing,
    host: str = LOOPBACK,
) -> Iterator[Listening]:
    """Serve `app` on a free port until the block ends; `lifespan` is entered in its loop."""
    ready: Future[asyncio.AbstractEventLoop] = Future()
    stop = asyncio.Event()
    with socket.create_server((host, 0), backlog=2048) as listener:
        port: int = listener.getsockname()[1]
        thread = threading.Thread(
            target=_run, args=(app, lifespan, listener, ready, stop), name="osmosis", daemon=True
        )
        thread.start()
        loop = ready.result()
        try:
            yield Listening(f"http://{host}:{port}", loop)
        finally:
            loop.call_soon_threadsafe(stop.set)
            thread.join(2 * _STOP_TIMEOUT_SEC)
            if thread.is_alive():
                logger.warning("the listener on port %d does not stop: its loop is blocked", port)


def _run(
    app: App,
    lifespan: Callable[[], AbstractAsyncContextManager[object]],
    listener: socket.socket,
    ready: Future[asyncio.AbstractEventLoop],
    stop: asyncio.Event,
) -> None:
    async def serve() -> None:
        server = _server(app)
        try:
            async with lifespan():
                await server.startup(sockets=[listener])
                ready.set_result(asyncio.get_running_loop())
                await stop.wait()
                _close_doors(server)
            await _hang_up(server)
        except BaseException as error:  # whatever the lifespan raises belongs to who waits for it
            if ready.done():
                raise
            ready.set_exception(error)

    asyncio.run(serve())


def _server(app: App) -> uvicorn.Server:
    config = uvicorn.Config(
        app,
        access_log=False,
        interface="asgi3",
        date_header=False,
        lifespan="off",
        log_config=None,
        proxy_headers=False,
        server_header=False,
        # Agents pause between their calls, and a call must not meet a closing door.
        timeout_keep_alive=86_400,
        ws="none",
    )
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    return server


def _close_doors(server: uvicorn.Server) -> None:
    for one in server.servers:
        one.close()


async def _hang_up(server: uvicorn.Server) -> None:
    """Let open calls end, then close every connection."""
    state = server.server_state
    if state.tasks:
        await asyncio.wait(state.tasks, timeout=_STOP_TIMEOUT_SEC)
    for connection in list(state.connections):
        connection.shutdown()
    # Closing takes a turn or two of the loop, and an unclosed transport a warning.
    for _ in range(100):
        if not state.connections:
            return
        await asyncio.sleep(0)
