"""What the tests of the client share: a workflow that waits for its cue, and servers for it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from osmosis_ai.rollout import (
    AgentWorkflow,
    AgentWorkflowConfig,
    AgentWorkflowContext,
    ConcurrencyConfig,
    LocalBackend,
    MessageDict,
)
from osmosis_ai.rollout.client import RolloutClient
from osmosis_ai.rollout.controller.model.scripted import ScriptedClient
from osmosis_ai.rollout.server import create_rollout_server
from osmosis_ai.testing import ExactMatchGrader
from osmosis_ai.testing.stage import Stage, tell

ROOT = Path(__file__).parents[3]
POLICY = "http://127.0.0.1:9/v1"
"""Where nobody answers: the staged workflow asks no model."""


class Staged(AgentWorkflow):
    """Tells the stage that it runs, and in which process, waits for its cue, and answers 42."""

    async def run(self, ctx: AgentWorkflowContext) -> list[MessageDict]:
        assert ctx.metadata is not None
        await tell(ctx.metadata["stage"], ctx.prompt[-1]["content"], pid=os.getpid())
        return [*ctx.prompt, {"role": "assistant", "content": "42"}]


def staged_app(*, max_concurrent: int | None = None, **given: Any) -> Any:
    """The app of a server of staged rollouts."""
    config = AgentWorkflowConfig(
        name="staged", concurrency=ConcurrencyConfig(max_concurrent=max_concurrent)
    )
    backend = LocalBackend(workflow=Staged, workflow_config=config, grader=ExactMatchGrader)
    return create_rollout_server(
        backend=backend, configure_logging=False, **{"journal": None, **given}
    )


def client_of(*urls: str, **given: Any) -> RolloutClient:
    """A client whose policy is of no matter, and which looks after its servers often."""
    return RolloutClient(
        urls, **{"chat_completions_url": POLICY, "watch_sec": 0.05, "run_id": "run", **given}
    )


def serving_a_model() -> dict[str, Any]:
    """The arguments of a client that serves a model, which the staged workflow does not ask."""
    return {"model": ScriptedClient(lambda request, call: ""), "chat_completions_url": None}


def ask(stage: Stage | str, scene: str = "asked", **given: Any) -> dict[str, Any]:
    """The arguments of a staged rollout, which tells its scene."""
    return {
        "messages": [{"role": "user", "content": scene}],
        "label": "42",
        "metadata": {"stage": stage if isinstance(stage, str) else stage.address},
        "item": scene,
        **given,
    }


class ProcessServer:
    """A server in a process of its own, which a test kills and starts again at the same port."""

    def __init__(self, folder: Path, *, journal: str = "") -> None:
        self._arguments = [str(folder), journal]
        self._process: asyncio.subprocess.Process
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        return self._process.pid

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(Path(__file__).with_name("staged_server.py")),
            str(self.port),
            *self._arguments,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert self._process.stdout is not None
        self.port = int(await self._process.stdout.readline())

    async def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()


@asynccontextmanager
async def process_server(folder: Path, *, journal: str = "") -> AsyncIterator[ProcessServer]:
    server = ProcessServer(folder, journal=journal)
    await server.start()
    try:
        yield server
    finally:
        await server.kill()
