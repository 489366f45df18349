"""A rollout server in a process that kills itself at a step of its journal, or after a while."""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import uvicorn
from nursery import die, raise_children, tell_ready

from osmosis_ai.rollout import AgentWorkflow, ConcurrencyConfig, Grader, LocalBackend
from osmosis_ai.rollout.context import AgentWorkflowContext, GraderContext
from osmosis_ai.rollout.server import create_rollout_server
from osmosis_ai.rollout.server.entry import (
    Accepted,
    Answer,
    AnswerKind,
    AnswerState,
)
from osmosis_ai.rollout.server.journal import (
    Journal,
    lock_journal,
)
from osmosis_ai.rollout.types import AgentWorkflowConfig

FOLDER = Path(sys.argv[1])
PORT = int(sys.argv[2])


class DyingJournal(Journal):
    """Ends the process at the so-and-so-many-th time that it comes to a step."""

    step = ""
    left = 0

    async def accept(self, accepted: Accepted) -> None:
        self.reach("before accept")
        await super().accept(accepted)
        self.reach("after accept")

    async def answer(self, *answers: Answer) -> None:
        self.reach("before answer")
        await super().answer(*answers)
        self.reach("after answer")

    def settle(self, rollout_id: str, kind: AnswerKind, state: AnswerState) -> None:
        self.reach("before settle")
        super().settle(rollout_id, kind, state)
        self.reach("after settle")

    def reach(self, step: str) -> None:
        if step == self.step:
            self.left -= 1
            if self.left <= 0:
                die()


def note_execution(rollout_id: str) -> None:
    with open(FOLDER / "executions.log", "a") as log:
        log.write(f"{rollout_id}\n")


class Logged(AgentWorkflow):
    """Leaves a line for each execution, and takes a moment."""

    async def run(self, ctx: AgentWorkflowContext) -> list[dict[str, Any]]:
        rollout_id = ctx.prompt[0]["content"]
        note_execution(rollout_id)
        digest = hashlib.sha256(rollout_id.encode()).digest()
        await asyncio.sleep(digest[0] / 255 * 0.05)
        return [*ctx.prompt, {"role": "assistant", "content": rollout_id}]


class Full(Grader):
    async def grade(self, ctx: GraderContext) -> None:
        ctx.set_reward(1.0)


def live(plan: dict[str, Any]) -> None:
    tell_ready()
    journal = lock_journal(FOLDER / "server.sqlite3", DyingJournal)
    journal.step, journal.left = plan.get("step", ""), plan.get("count", 0)
    if "after_sec" in plan:
        timer = threading.Timer(plan["after_sec"], die)
        timer.daemon = True
        timer.start()
    backend = LocalBackend(
        workflow=Logged,
        workflow_config=AgentWorkflowConfig(
            name="logged", concurrency=ConcurrencyConfig(max_concurrent=16)
        ),
        grader=Full,
    )
    app = create_rollout_server(backend=backend, journal=journal, configure_logging=False)
    with socket.create_server(("127.0.0.1", PORT), backlog=512) as listener:
        config = uvicorn.Config(app, access_log=False, log_level="critical")
        uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    os.environ["_OSMOSIS_ROLLOUT_ARTIFACT_ROOT"] = str(FOLDER / "artifacts")
    raise_children(live)
