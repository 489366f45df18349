"""The entrypoint: what is evaluated, and the server that runs it."""

from __future__ import annotations

import os

import uvicorn
from multiply_rollout import grader, workflow

from osmosis_ai.rollout.backend.local import LocalBackend
from osmosis_ai.rollout.server import create_rollout_server

backend = LocalBackend(
    workflow=workflow.MultiplyWorkflow,
    workflow_config=workflow.config,
    grader=grader.MultiplyGrader,
    grader_config=grader.config,
)
app = create_rollout_server(backend=backend)


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(os.environ.get("_OSMOSIS_ROLLOUT_PORT", "8000")))
