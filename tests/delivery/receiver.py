"""A controller's receiving end that is as bad as they come, from a seed."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from aiohttp import web

# Of 100 posts: what happens to them, and whether the answer was taken all the same.
FAULTS = [
    (6, "refuse_for_now"),
    (9, "close"),
    (11, "take_and_close"),
    (12, "hang"),
    (13, "take_and_hang"),
]


class Receiver:
    """Logs what it takes before it says so; each line is one answer taken."""

    def __init__(
        self,
        log: Path,
        *,
        seed: str,
        is_faulty: bool = True,
        on_taken: Callable[[str], None] = lambda key: None,
    ) -> None:
        self._log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._seed = seed
        self._is_faulty = is_faulty
        self._on_taken = on_taken
        self._times: Counter[str] = Counter()
        self.taken = 0

    def app(self) -> web.Application:
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/{kind}/{rollout_id}", self.take)
        return app

    async def take(self, request: web.Request) -> web.StreamResponse:
        key, body = request.headers["Idempotency-Key"], await request.text()
        fault = self._fault(key)
        if fault in ("", "take_and_close", "take_and_hang"):
            line = {
                "key": key,
                "id": request.match_info["rollout_id"],
                "kind": request.match_info["kind"],
                "auth": request.headers.get("Authorization"),
                "body": body,
            }
            os.write(self._log, json.dumps(line).encode() + b"\n")
            self.taken += 1
            self._on_taken(key)
        if fault == "refuse_for_now":
            return web.Response(status=500)
        if fault.endswith("hang"):
            await asyncio.sleep(60)
        if fault.endswith("close") and request.transport is not None:
            request.transport.abort()
        return web.json_response({})

    def _fault(self, key: str) -> str:
        self._times[key] += 1
        drawn = hashlib.sha256(f"{self._seed} {key} {self._times[key]}".encode()).digest()
        percent = int.from_bytes(drawn[:4], "big") % 100
        if not self._is_faulty:
            return ""
        return next((name for below, name in FAULTS if percent < below), "")


def read_log(path: Path) -> list[dict[str, str]]:
    """What was taken, in order; a last line that a kill tore is left out."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]
