"""A controller in a process that kills itself with an answer in its hand, or after a while.

Each life listens at a port of its own, and asks again for everything of which its log does not hold
both answers.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from asking import ask_until_accepted
from nursery import die, raise_children, tell_ready
from receiver import Receiver, read_log

LOG = Path(sys.argv[1])
SERVER = sys.argv[2]


def live(plan: dict[str, Any]) -> None:
    tell_ready()
    if "after_sec" in plan:
        timer = threading.Timer(plan["after_sec"], die)
        timer.daemon = True
        timer.start()
    asyncio.run(control(plan))


async def control(plan: dict[str, Any]) -> None:
    owed = Owed([f"r{number:04}" for number in range(plan["rollouts"])], plan.get("after_taken"))
    receiver = Receiver(LOG, seed=plan["seed"], on_taken=owed.take)
    runner = web.AppRunner(receiver.app(), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    here = f"http://127.0.0.1:{runner.addresses[0][1]}"
    async with aiohttp.ClientSession() as session:
        await asyncio.gather(
            *(ask_until_accepted(session, SERVER, here, one) for one in owed.rollout_ids)
        )
        await owed.everything.wait()
    await runner.cleanup()


class Owed:
    """The answers that the log does not hold yet."""

    def __init__(self, ids: list[str], lives_until: int | None) -> None:
        taken = {line["key"] for line in read_log(LOG)}
        self._keys = {f"{one}/{kind}" for one in ids for kind in ("completion", "grader")} - taken
        self.rollout_ids = sorted({key.partition("/")[0] for key in self._keys})
        self.everything = asyncio.Event()
        self._left = lives_until
        self._note()

    def take(self, key: str) -> None:
        """Note an answer that is in the log; the server may never hear that it is."""
        if self._left is not None:
            self._left -= 1
            if self._left == 0:
                die()
        self._keys.discard(key)
        self._note()

    def _note(self) -> None:
        if not self._keys:
            self.everything.set()


if __name__ == "__main__":
    raise_children(live)
