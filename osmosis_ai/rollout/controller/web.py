"""One app served, on loopback unless said, in a thread with an event loop of its own."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass

from osmosis_ai._extras import requires_extra
from osmosis_ai.errors import ConfigError
from osmosis_ai.rollout.controller.address import LOOPBACK
from osmosis_ai.rollout.controller.asgi import App
from osmosis_ai.rollout.controller.loop_thread import run_in_thread

with requires_extra("server", "a controller"):
    import uvicorn

_LAST_CALLS_SEC = 5.0


@dataclass(frozen=True, slots=True)
class Listening:
    """Where an app listens, and the loop it lives in."""

    base_url: str
    loop: asyncio.AbstractEventLoop


@contextmanager
def listen(
    app: App,
    *,
    lifespan: Callable[[], AbstractAsyncContextManager[None]],
    host: str = LOOPBACK,
    port: int = 0,
) -> Iterator[Listening]:
    """Serve `app` until the block ends, on a free port for 0; `lifespan` is entered in its loop.

    Calls that are open at the end may end after `lifespan` has, then every connection is closed.
    Raises ConfigError for an address that cannot be listened on.
    """

    config = _configure(app)

    @asynccontextmanager
    async def service() -> AsyncIterator[int]:
        with _open_socket(host, port) as listener:
            server = uvicorn.Server(config)
            server.lifespan = config.lifespan_class(config)
            try:
                async with lifespan():
                    await server.startup(sockets=[listener])
                    yield listener.getsockname()[1]
            finally:
                await _hang_up(server)

    # uvicorn's choice is uvloop: it writes a call's answer in one piece, which lets go of the
    # interpreter lock once instead of three times. Measured, that is 2.5 times as many calls.
    loop_factory = config.get_loop_factory()
    with run_in_thread(service, name="osmosis-controller", loop_factory=loop_factory) as (
        loop,
        found,
    ):
        yield Listening(f"http://{_in_url(host)}:{found}", loop)


def _open_socket(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise ConfigError(
            f"{_in_url(host)}:{port} cannot be listened on: {error.strerror}; give --listen "
            "another address of this machine, or port 0 for any that is free",
            key="listen",
        ) from error


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _configure(app: App) -> uvicorn.Config:
    config = uvicorn.Config(
        app,
        access_log=False,
        date_header=False,
        interface="asgi3",
        lifespan="off",
        log_config=None,
        proxy_headers=False,
        server_header=False,
        # Agents pause between their calls, and a call must not meet a closing door.
        timeout_keep_alive=86_400,
        ws="none",
    )
    config.load()
    return config


async def _hang_up(server: uvicorn.Server) -> None:
    state = server.server_state
    for door in server.servers if server.started else ():
        door.close()
    if state.tasks:
        await asyncio.wait(state.tasks, timeout=_LAST_CALLS_SEC)
    for connection in list(state.connections):
        connection.shutdown()
    # Closing takes the loop some turns, and a transport left open costs a warning.
    for _ in range(_TURNS_TO_CLOSE):
        await asyncio.sleep(0)


_TURNS_TO_CLOSE = 5
