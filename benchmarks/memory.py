"""What a finished row keeps in memory, and what a rollout in flight on a server takes.

Rows: 10,000 of the multiply example, in this process. Rollouts: so many at once on a rollout server
without a journal, that all run or all but one wait; each has a prompt of 2 KB. Counted is what
Python allocates; sockets and what C libraries keep for themselves are not.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import shutil
import sys
import tempfile
import tracemalloc
from pathlib import Path
from typing import Any

import yardstick
from fastapi import FastAPI

from osmosis_ai.eval.config import load_config
from osmosis_ai.eval.evaluation import Observer, evaluate
from osmosis_ai.eval.runner import Progress
from osmosis_ai.rollout import (
    AgentWorkflow,
    AgentWorkflowConfig,
    AgentWorkflowContext,
    LocalBackend,
)
from osmosis_ai.rollout.server import create_rollout_server

ROWS, FIRST = 10_000, 2_000
BUDGET_BYTES = 300.0

IN_FLIGHT = 500, 1_000
TURNS_TO_BEGIN = 5
PROMPT = [{"role": "user", "content": "x" * 2_000}]


class Scales(Observer):
    """Weighs what the process holds when `FIRST` rows are done, and at the end."""

    def __init__(self) -> None:
        self.weights: dict[int, int] = {}

    def progressed(self, progress: Progress) -> None:
        """Weigh at the two moments that are compared."""
        if progress.finished in (FIRST, ROWS):
            gc.collect()
            self.weights[progress.finished] = tracemalloc.get_traced_memory()[0]

    @property
    def bytes_a_row(self) -> float:
        """What each row between the two moments has left behind."""
        return (self.weights[ROWS] - self.weights[FIRST]) / (ROWS - FIRST)


def main() -> None:
    """Print both, and the budget of a finished row."""
    found = _finished_row()
    yardstick.print_table(
        ["memory", "bytes a finished row", "at most"],
        [[f"{ROWS:,} rows in process", f"{found:.0f}", f"{BUDGET_BYTES:.0f}"]],
    )
    in_flight = [
        [
            f"{count:,}",
            f"{_in_flight(count, limit=None):,.0f}",
            f"{_in_flight(count, limit=1):,.0f}",
        ]
        for count in IN_FLIGHT
    ]
    yardstick.print_table(
        ["rollouts in flight", "bytes each, running", "bytes each, queued"], in_flight
    )
    if found > BUDGET_BYTES:
        sys.exit("over the budget")


def _finished_row() -> float:
    with tempfile.TemporaryDirectory(dir=yardstick.TMPFS) as folder:
        workspace = Path(folder) / "multiply"
        shutil.copytree(
            yardstick.ROOT / "examples" / "multiply",
            workspace,
            ignore=shutil.ignore_patterns(".osmosis", "__pycache__"),
        )
        _write_rows(workspace / "data" / "multiply.jsonl")
        config = workspace / "configs" / "eval" / "multiply.toml"
        config.write_text(config.read_text().replace("n = 4", "n = 1"))
        scales = Scales()
        tracemalloc.start()
        result = asyncio.run(evaluate(load_config(config), observer=scales))
        tracemalloc.stop()
    if result.summary.mean.over != ROWS:
        sys.exit(f"only {result.summary.mean.over} of {ROWS} rows were scored")
    return scales.bytes_a_row


def _write_rows(path: Path) -> None:
    first = json.loads(path.open().readline())
    with path.open("w") as file:
        for index in range(ROWS):
            one, two = 100 + index % 900, 100 + index // 900
            asked = {"user_prompt": f"val1 = {one}\nval2 = {two}", "ground_truth": str(one * two)}
            file.write(json.dumps({**first, **asked}) + "\n")


class Waiting(AgentWorkflow):
    """Ends when it is told to."""

    may_end: asyncio.Event

    async def run(self, ctx: AgentWorkflowContext) -> list[dict[str, Any]]:
        """Wait, as for a model that does not answer."""
        await self.may_end.wait()
        return ctx.prompt


def _in_flight(count: int, *, limit: int | None) -> float:
    """Bytes a rollout takes while so many are in flight, of which at most `limit` run."""
    with tempfile.TemporaryDirectory(dir=yardstick.TMPFS) as root:
        os.environ["_OSMOSIS_ROLLOUT_ARTIFACT_ROOT"] = root
        return asyncio.run(_weigh(count, limit=limit))


async def _weigh(count: int, *, limit: int | None) -> float:
    Waiting.may_end = asyncio.Event()
    config = AgentWorkflowConfig(name="waiting", concurrency={"max_concurrent": limit})
    backend = LocalBackend(workflow=Waiting, workflow_config=config)
    app = create_rollout_server(backend=backend, journal=None, configure_logging=False)
    async with app.router.lifespan_context(app):
        await _start(app, backend, range(100))  # what is made once is made
        tracemalloc.start()
        await _start(app, backend, range(100, 100 + count))
        taken = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        Waiting.may_end.set()
    return taken / count


async def _start(app: FastAPI, backend: LocalBackend, numbers: range) -> None:
    for number in numbers:
        body = {
            "rollout_id": f"r{number}",
            "initial_messages": PROMPT,
            "label": "42",
            "chat_completions_url": "http://127.0.0.1:9/v1",
        }
        await _post(app, "/rollout", json.dumps(body).encode())
    for _ in range(TURNS_TO_BEGIN):
        await asyncio.sleep(0)
    capacity = backend.capacity()
    assert capacity.running + capacity.queued == numbers.stop
    gc.collect()


async def _post(app: FastAPI, path: str, body: bytes) -> None:
    """Call the app without a connection: those are not what is weighed."""

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body}

    async def send(message: Any) -> None:
        assert message.get("status", 202) == 202, message

    await app({"type": "http", "method": "POST", "path": path, "headers": []}, receive, send)


if __name__ == "__main__":
    main()
