"""OpenAI's client over aiohttp, one pool of connections for each event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from osmosis_ai._extras import requires_extra
from osmosis_ai.rollout.integrations.policy import PolicyEndpoint

with requires_extra("openai", "rollout_client"):
    from openai import AsyncOpenAI, DefaultAioHttpClient


def policy_client(endpoint: PolicyEndpoint, **options: Any) -> AsyncOpenAI:
    """A client of `endpoint` for the running event loop; `options` are AsyncOpenAI's own.

    It shares its connections with every other of this loop, and they are closed when the loop
    shuts down: closing one client would close them for all. Cheap to make for each request.
    """
    if "http_client" not in options:
        options["http_client"] = _pool()
    return AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key, **options)


_Pool = DefaultAioHttpClient
_pools: dict[asyncio.AbstractEventLoop, tuple[_Pool, AsyncGenerator[None]]] = {}


def _pool() -> _Pool:
    loop = asyncio.get_running_loop()
    if loop not in _pools:
        # The default transport, httpx's own, costs four times the CPU for each call.
        pool = DefaultAioHttpClient()
        holder = _close_with_loop(loop, pool)
        _start(holder)
        _pools[loop] = pool, holder
    return _pools[loop][0]


async def _close_with_loop(loop: asyncio.AbstractEventLoop, pool: _Pool) -> AsyncGenerator[None]:
    """Suspended until the loop shuts its asynchronous generators down, as every runner does."""
    try:
        yield
    finally:
        del _pools[loop]
        await pool.aclose()


def _start(generator: AsyncGenerator[None]) -> None:
    """Run up to the first yield, which waits for nothing, so that the loop knows the generator."""
    try:
        generator.__anext__().send(None)
    except StopIteration:
        pass
