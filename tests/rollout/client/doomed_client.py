"""A client that submits `ended` and `running`, says when the first has ended, and is killed."""

from __future__ import annotations

import asyncio
import sys

from tests.rollout.client.staged import ask, client_of, serving_a_model


async def main() -> None:
    urls, protocol, stage, policy = sys.argv[1:]
    given = serving_a_model() if policy == "model" else {}
    async with client_of(*urls.split(), protocol=protocol, **given) as client:
        ended, running = [client.submit(**ask(stage, name)) for name in ("ended", "running")]
        await ended
        print(ended.id, flush=True)
        await running


asyncio.run(main())
