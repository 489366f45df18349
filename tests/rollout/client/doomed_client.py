"""A client that submits `ended` and `running`, says when the first has ended, and is killed."""

from __future__ import annotations

import asyncio
import sys

from tests.rollout.client.staged import ask, client_of


async def main() -> None:
    url, protocol, stage = sys.argv[1:]
    async with client_of(url, protocol=protocol) as client:
        ended, running = [client.submit(**ask(stage, name)) for name in ("ended", "running")]
        await ended
        print(ended.id, flush=True)
        await running


asyncio.run(main())
