"""A run of 100,000 rows as a person would start it: is memory flat, time linear, and a look quick?

python benchmarks/many.py [--rows 100000] [--folder FOLDER]

The folder, else one in /dev/shm, gets the workspace; 100,000 rollouts take about 2 GB there. Every
hundredth rollout fails. Exits with 1 where a goal is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yardstick

LOOK_SEC = 2.0
"""A look at the finished run takes at most so much CPU time."""
GROWTH = 1.10
"""Memory at the end, and the time of the last quarter, are at most so many times the first's."""

ENTRYPOINT = """
import aiohttp
from osmosis_ai.rollout import (
    AgentWorkflow, AgentWorkflowConfig, ConcurrencyConfig, Grader, LocalBackend, get_rollout_context
)

session = None

class Ask(AgentWorkflow):
    async def run(self, ctx):
        global session
        if session is None:
            session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        context = get_rollout_context()
        async with session.post(
            context.chat_completions_url + "/chat/completions",
            json={"model": "policy", "messages": ctx.prompt},
            headers={"Authorization": f"Bearer {context.api_key}"},
        ) as response:
            message = (await response.json())["choices"][0]["message"]
        return [*ctx.prompt, message]

class Exact(Grader):
    async def grade(self, ctx):
        if ctx.label.endswith("00"):
            raise LookupError(f"no answer is known for {ctx.label}")
        ctx.set_reward(float(ctx.sample.messages[-1]["content"] == ctx.label))

class Closing(LocalBackend):
    async def shutdown(self):
        await super().shutdown()
        if session is not None:
            await session.close()

limit = ConcurrencyConfig(max_concurrent=64)
config = AgentWorkflowConfig(name="many", concurrency=limit)
backend = Closing(workflow=Ask, grader=Exact, workflow_config=config)
"""
POLICY = """
def reply(request, call):
    return str(call.row) if call.row % 3 else "no idea"
"""
CONFIG = """
[experiment]
rollout = "many"
entrypoint = "main.py"
model_path = "scripted:policy:reply"
dataset = "rows"
"""


@dataclass(frozen=True)
class Mark:
    """Where the run is: records written, and what it has cost so far."""

    records: int
    elapsed_sec: float
    cpu_sec: float
    rss_mib: float


def main() -> None:
    """Run it, and print a table of its course and one of the looks at it."""
    given = _arguments()
    with tempfile.TemporaryDirectory(dir=given.folder or yardstick.TMPFS) as folder:
        workspace = Path(folder)
        _write_workspace(workspace, rows=given.rows)
        marks = _run(workspace, rows=given.rows)
        looks = [_look(workspace, *arguments) for arguments in _looks(given.rows)]
        # As of a run that was killed: each record is read.
        (workspace / ".osmosis/evals/many/.measured.json").unlink()
        name, seconds = _look(workspace, "eval", "show", "many")
        looks.append((f"{name}, nothing kept", seconds))
    yardstick.print_table(["records", "seconds", "CPU seconds", "MiB"], _course(marks))
    yardstick.print_table(["look", "CPU seconds"], [[name, f"{sec:.2f}"] for name, sec in looks])
    sys.exit("a goal is missed" if _missed(marks, looks) else 0)


def _arguments() -> Any:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--folder", type=Path)
    return parser.parse_args()


def _write_workspace(workspace: Path, *, rows: int) -> None:
    lines = ({"user_prompt": f"what is {row}?", "ground_truth": str(row)} for row in range(rows))
    files = {
        "rollouts/many/main.py": ENTRYPOINT,
        "rollouts/many/policy.py": POLICY,
        "data/rows.jsonl": "".join(json.dumps(line) + "\n" for line in lines),
        "many.toml": CONFIG,
    }
    for name, text in files.items():
        (workspace / name).parent.mkdir(parents=True, exist_ok=True)
        (workspace / name).write_text(text)


def _run(workspace: Path, *, rows: int) -> list[Mark]:
    """Start the command, and note what it has cost at each quarter of its records."""
    journal = workspace / ".osmosis/evals/many/records.jsonl"
    marks: list[Mark] = []
    with subprocess.Popen(
        [_osmosis(), "eval", "run", "many.toml", "--json"], cwd=workspace, stdout=subprocess.DEVNULL
    ) as run:
        while run.poll() is None and not journal.exists():
            time.sleep(0.01)
        began, records = time.monotonic(), 0
        with journal.open("rb") as file:
            while run.poll() is None:
                records += file.read().count(b"\n")
                if records >= rows * (len(marks) + 1) // 4 and len(marks) < 4:
                    marks.append(_mark(run.pid, records, time.monotonic() - began))
                time.sleep(0.05)
    if run.returncode or len(marks) < 4:
        sys.exit(f"the run ended with {run.returncode} after {records} records")
    return marks


def _osmosis() -> str:
    return str(Path(sys.executable).with_name("osmosis"))


def _mark(pid: int, records: int, elapsed_sec: float) -> Mark:
    ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return Mark(
        records,
        elapsed_sec,
        sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK"),
        pages * os.sysconf("SC_PAGE_SIZE") / 2**20,
    )


def _looks(rows: int) -> list[list[str]]:
    return [
        ["eval", "show", "many"],
        ["eval", "show", "many", "--failed"],
        ["eval", "show", "many", "--row", str(rows // 2)],
        ["eval", "list"],
    ]


def _look(workspace: Path, *arguments: str) -> tuple[str, float]:
    """CPU seconds, the least of three: of an idle machine, the time a person waits."""
    times = []
    for _ in range(3):
        began = _spent_by_children()
        subprocess.run(
            [_osmosis(), *arguments, "--plain"],
            cwd=workspace,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        times.append(_spent_by_children() - began)
    return " ".join(arguments), min(times)


def _spent_by_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _course(marks: list[Mark]) -> list[list[str]]:
    return [
        [f"{m.records:,}", f"{m.elapsed_sec:.0f}", f"{m.cpu_sec:.0f}", f"{m.rss_mib:.0f}"]
        for m in marks
    ]


def _missed(marks: list[Mark], looks: list[tuple[str, float]]) -> bool:
    first, *_, before, last = marks
    quarter = last.cpu_sec - before.cpu_sec
    return (
        last.rss_mib > GROWTH * first.rss_mib
        # The first quarter has the start in it, which makes it no shorter.
        or quarter > GROWTH * first.cpu_sec
        or any(seconds > LOOK_SEC for _, seconds in looks)
    )


if __name__ == "__main__":
    main()
