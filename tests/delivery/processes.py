"""The processes of these tests: begun, talked to by lines of JSON, and ended with all they left."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any


@asynccontextmanager
async def nursery(script: Path, *arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(script),
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        # The child too: it would hold the pipes open.
        os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def say(process: asyncio.subprocess.Process, plan: dict[str, Any]) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps(plan).encode() + b"\n")
    await process.stdin.drain()


async def hear(process: asyncio.subprocess.Process) -> dict[str, Any]:
    assert process.stdout is not None
    return json.loads(await process.stdout.readline())


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
