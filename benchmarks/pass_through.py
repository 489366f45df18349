"""The least an endpoint between a rollout and its model can do: pass bytes on, and look at none.

python benchmarks/pass_through.py UPSTREAM_URL                prints the port it listens on
python benchmarks/pass_through.py UPSTREAM_URL PROGRAM ...    runs a program that calls it, here
"""

from __future__ import annotations

import os
import runpy
import socket
import sys
import threading
from typing import Any

import aiohttp
import uvicorn

JSON = {"Content-Type": "application/json"}


class PassThrough:
    """A plain ASGI function, as the bridge's hot route is one, and one session for all calls."""

    def __init__(self, upstream: str) -> None:
        self._url = f"{upstream}/chat/completions"
        self._session: aiohttp.ClientSession | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Post a request's body to the upstream, and send its answer back."""
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        if self._session is None:
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        async with self._session.post(self._url, data=body, headers=JSON) as response:
            answer = await response.read()
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(answer))]
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        await send({"type": "http.response.body", "body": answer})


def serve(listening: socket.socket, upstream: str) -> None:
    """Serve, on uvicorn as it comes, until the process ends."""
    app = PassThrough(upstream)
    config = uvicorn.Config(app, lifespan="off", log_level="warning", access_log=False)
    uvicorn.Server(config).run(sockets=[listening])


def main() -> None:
    """Serve by itself, or in a thread beside a program that calls it."""
    upstream, *program = sys.argv[1:]
    with socket.create_server(("127.0.0.1", 0), backlog=2048) as listening:
        port = listening.getsockname()[1]
        if not program:
            print(port, flush=True)
            serve(listening, upstream)
        else:
            threading.Thread(target=serve, args=(listening, upstream), daemon=True).start()
            sys.path.insert(0, os.path.dirname(program[0]))
            sys.argv = [*program, "--url", f"http://127.0.0.1:{port}/v1"]
            runpy.run_path(program[0], run_name="__main__")


if __name__ == "__main__":
    main()
