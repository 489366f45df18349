"""A rollout server for a long while: memory, descriptors and threads must not grow with rollouts.

10,000 rollouts (or as many as the first argument says), 64 at once, against a controller of which
every fiftieth reply is a 500 or a connection that ends. Counted in the server's own process.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
import sys
import tempfile
import threading
from collections.abc import Sequence
from typing import Any

import aiohttp
import uvicorn
import yardstick
from aiohttp import web

from osmosis_ai.rollout import AgentWorkflow, AgentWorkflowContext, Grader, LocalBackend
from osmosis_ai.rollout.context import GraderContext
from osmosis_ai.rollout.server import create_rollout_server

ROLLOUTS, AT_ONCE, SAMPLES, FAULTS = 10_000, 64, 10, 0.02


class Answers(AgentWorkflow):
    """Says 4."""

    async def run(self, ctx: AgentWorkflowContext) -> list[dict[str, Any]]:
        return [*ctx.prompt, {"role": "assistant", "content": "4"}]


class Full(Grader):
    """Gives every sample its point."""

    async def grade(self, ctx: GraderContext) -> None:
        ctx.set_reward(1.0)


class Controller:
    """Takes answers, and fails now and then."""

    def __init__(self) -> None:
        self._draw = random.Random(4)
        self._taken: set[str] = set()
        self._complete: dict[str, asyncio.Event] = {}
        self.faults = 0

    async def take(self, request: web.Request) -> web.Response:
        await request.read()
        if self._draw.random() < FAULTS:
            self.faults += 1
            if self.faults % 2 and request.transport is not None:
                request.transport.abort()
            return web.Response(status=500)
        rollout_id = request.match_info["rollout_id"]
        self._taken.add(request.headers["Idempotency-Key"])
        if {f"{rollout_id}/completion", f"{rollout_id}/grader"} <= self._taken:
            self._complete[rollout_id].set()
        return web.json_response({})

    async def run(self, session: aiohttp.ClientSession, server: str, here: str, name: str) -> None:
        done = self._complete[name] = asyncio.Event()
        body = {
            "rollout_id": name,
            "initial_messages": [{"role": "user", "content": "2 + 2"}],
            "label": "4",
            "chat_completions_url": "http://127.0.0.1:9/v1",
            "completion_callback_url": f"{here}/completion/{name}",
            "grader_callback_url": f"{here}/grader/{name}",
        }
        async with session.post(f"{server}/rollout", json=body) as answer:
            assert answer.status == 202, await answer.text()
        async with asyncio.timeout(120):
            await done.wait()
        del self._complete[name]
        self._taken -= {f"{name}/completion", f"{name}/grader"}


async def soak(rollouts: int) -> list[list[str]]:
    """Run them all; returns what the process held after each tenth."""
    controller = Controller()
    app = web.Application()
    app.router.add_post("/{kind}/{rollout_id}", controller.take)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    here = f"http://127.0.0.1:{runner.addresses[0][1]}"
    backend = LocalBackend(workflow=Answers, grader=Full)
    config = uvicorn.Config(
        create_rollout_server(backend=backend, configure_logging=False),
        log_config=None,
        access_log=False,
    )
    server = uvicorn.Server(config)
    listener = socket.create_server(("127.0.0.1", 0), backlog=AT_ONCE)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    rows: list[list[str]] = []
    async with aiohttp.ClientSession() as session:
        share = rollouts // SAMPLES
        for part in range(SAMPLES):
            names = iter(f"r{number}" for number in range(part * share, (part + 1) * share))

            async def work(names: Any = names) -> None:
                for name in names:
                    await controller.run(session, url, here, name)

            await asyncio.gather(*(work() for _ in range(AT_ONCE)))
            rows.append([str((part + 1) * share), *map(str, held()), str(controller.faults)])
            print(f"{rows[-1]}", file=sys.stderr)
    server.should_exit = True
    await serving
    await runner.cleanup()
    return rows


def held() -> tuple[int, int, int]:
    """This process's memory in MiB, its open descriptors and its threads."""
    with open("/proc/self/statm") as statm:
        pages = int(statm.read().split()[1])
    size = pages * os.sysconf("SC_PAGE_SIZE") // 2**20
    return size, len(os.listdir("/proc/self/fd")), threading.active_count()


def main(arguments: Sequence[str]) -> None:
    """Print what was held after each tenth; ends with 1 where the second half grew."""
    rollouts = int(arguments[0]) if arguments else ROLLOUTS
    with tempfile.TemporaryDirectory(prefix="soak-") as root:
        os.environ["_OSMOSIS_ROLLOUT_ARTIFACT_ROOT"] = root
        rows = asyncio.run(soak(rollouts))
    head = ["rollouts", "MiB", "descriptors", "threads", "faults"]
    yardstick.print_table(head, rows)
    middle, last = rows[SAMPLES // 2 - 1], rows[-1]
    memory_grew = int(last[1]) - int(middle[1]) > max(8, int(middle[1]) // 10)
    if memory_grew or int(last[2]) > int(middle[2]) + 8 or int(last[3]) > int(middle[3]):
        sys.exit("something grows")


if __name__ == "__main__":
    main(sys.argv[1:])
