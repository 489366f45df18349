"""A thread with an event loop of its own, which no other code can block."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import TypeVar

logger = logging.getLogger(__name__)

STOP_PATIENCE_SEC = 10.0
"""How long the end of a thread is waited for."""

T = TypeVar("T")


@contextmanager
def run_in_thread(
    service: Callable[[], AbstractAsyncContextManager[T]],
    *,
    name: str,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
    stop_patience_sec: float = STOP_PATIENCE_SEC,
) -> Iterator[tuple[asyncio.AbstractEventLoop, T]]:
    """Keep `service()` entered in a new thread's loop while the block lasts.

    Yields the loop and what the service yields. What entering or leaving it raises, is raised here.
    """
    ready: Future[tuple[asyncio.AbstractEventLoop, T]] = Future()
    ended: Future[None] = Future()
    stop = asyncio.Event()

    async def serve() -> None:
        async with service() as value:
            ready.set_result((asyncio.get_running_loop(), value))
            await stop.wait()

    def run() -> None:
        try:
            with asyncio.Runner(loop_factory=loop_factory) as runner:
                runner.run(serve())
        except BaseException as error:  # the service's own: it belongs to whoever waits for it
            (ended if ready.done() else ready).set_exception(error)
        else:
            ended.set_result(None)

    # A daemon: a loop that is blocked for ever must not keep the process alive.
    threading.Thread(target=run, name=name, daemon=True).start()
    loop, value = ready.result()
    try:
        yield loop, value
    finally:
        loop.call_soon_threadsafe(stop.set)
        try:
            ended.result(stop_patience_sec)
        except TimeoutError:
            logger.warning("thread %s does not end: something blocks its loop", name)
