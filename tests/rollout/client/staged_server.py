"""A server of staged rollouts: PORT FOLDER JOURNAL; says its port when it is up."""

from __future__ import annotations

import os
import socket
import sys

import uvicorn

from tests.rollout.client.staged import staged_app


def main() -> None:
    port, folder, journal = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    os.environ["_OSMOSIS_ROLLOUT_ARTIFACT_ROOT"] = folder
    app = staged_app(max_concurrent=4, journal=journal or None)
    listener = socket.create_server(("127.0.0.1", port), backlog=128)
    print(listener.getsockname()[1], flush=True)
    config = uvicorn.Config(app, access_log=False, log_level="critical")
    uvicorn.Server(config).run(sockets=[listener])


main()
