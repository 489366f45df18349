"""W4: a whole evaluation, one model call a rollout, against a loop that does nothing but call.

python benchmarks/evaluation.py [--latency-ms 0 50] [--rows 3000] [--rounds 5]

Four sides in each round, 64 at once: the bare loop; the same loop through a pass-through endpoint
(`pass_through.py`), which is a process of its own, or a thread as the bridge is; and the
evaluation. As in the yardsticks the first core has the side that is
measured with all its processes, the second the model; the run folder is on tmpfs. On a machine that
is busy the ratio of CPU times says more than that of the rates.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yardstick

from osmosis_ai.eval.config import EvalConfig, load_config
from osmosis_ai.eval.evaluation import Observer, RunOptions, evaluate
from osmosis_ai.eval.runner import Progress

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
            json={"model": "mock", "messages": ctx.prompt},
            headers={"Authorization": f"Bearer {context.api_key}"},
        ) as response:
            message = (await response.json())["choices"][0]["message"]
        return [*ctx.prompt, message]

class Exact(Grader):
    async def grade(self, ctx):
        ctx.set_reward(float(ctx.sample.messages[-1]["content"].strip() == ctx.label))

limit = ConcurrencyConfig(max_concurrent=64)
config = AgentWorkflowConfig(name="bench", concurrency=limit)

class Closing(LocalBackend):
    async def shutdown(self):
        await super().shutdown()
        await session.close()

backend = Closing(workflow=Ask, grader=Exact, workflow_config=config)
"""

IN_FLIGHT = 64
WARM_ROWS = 2 * IN_FLIGHT
"""Not measured, on any side: connections are opened and caches filled."""

GOALS = {0.0: 0.18, 50.0: 0.50}
"""Of the bare loop, by the model's latency in milliseconds."""

PASS_THROUGH = Path(__file__).with_name("pass_through.py")
PASS_THROUGH_GOAL = 0.75


@dataclass(frozen=True, slots=True)
class Pace:
    """What one side did in one round."""

    rate: float
    """Rollouts a second."""
    cpu_ms: float
    """Of user and system time a rollout, over all processes of the side."""


class Stopwatch(Observer):
    """Starts when the first rollouts are done, as the bare loop's does after its warm-up."""

    began, cpu_began = 0.0, 0.0

    def progressed(self, progress: Progress) -> None:
        """Start once the warm-up is over."""
        if progress.finished == WARM_ROWS:
            self.began, self.cpu_began = time.perf_counter(), _cpu_sec()

    def pace(self, rows: int) -> Pace:
        """Of the rows since then."""
        cpu_ms = (_cpu_sec() - self.cpu_began) / rows * 1e3
        return Pace(rows / (time.perf_counter() - self.began), cpu_ms)


def main() -> None:
    """Print the ratios for each latency, and the goals."""
    given = _arguments()
    rows = []
    for latency_ms in given.latency_ms:
        rounds = _rounds(latency_ms, rows=given.rows, rounds=given.rounds)
        goals = GOALS.get(latency_ms), PASS_THROUGH_GOAL, PASS_THROUGH_GOAL
        rows += [
            _row(f"{latency_ms:g} ms, of {name}", rounds, against=index, goal=goal)
            for index, (name, goal) in enumerate(zip(SIDES, goals, strict=True))
        ]
    head = ["w4", "ours/bare", "goal", "by CPU time", "ours, ms", "bare, ms"]
    yardstick.print_table(head, rows)


SIDES = "the bare loop", "it through a process", "it through a thread"


def _row(
    name: str, rounds: Sequence[Sequence[Pace]], *, against: int, goal: float | None
) -> list[str]:
    def median(values: Iterator[float]) -> float:
        return statistics.median(list(values))

    return [
        name,
        f"{median(paces[-1].rate / paces[against].rate for paces in rounds):.3f}",
        "none" if goal is None else f"{goal:.2f}",
        f"{median(paces[against].cpu_ms / paces[-1].cpu_ms for paces in rounds):.3f}",
        f"{median(paces[-1].cpu_ms for paces in rounds):.2f}",
        f"{median(paces[against].cpu_ms for paces in rounds):.2f}",
    ]


def _rounds(latency_ms: float, *, rows: int, rounds: int) -> list[list[Pace]]:
    bench = yardstick.bench_dir()
    mock = [str(bench / "services/mock_llm.py"), "0", str(latency_ms)]
    with (
        tempfile.TemporaryDirectory(dir=yardstick.TMPFS) as folder,
        _running(mock, core=1) as (port, _),
    ):
        url = f"http://127.0.0.1:{port}/v1"
        config = _write_workspace(Path(folder), url=url, rows=rows + WARM_ROWS)
        os.sched_setaffinity(0, {0})
        return [
            [
                _bare(bench, url=url, rows=rows),
                _through_process(bench, url=url, rows=rows),
                _through_thread(bench, url=url, rows=rows),
                _evaluate(config, name=f"round-{number}", rows=rows),
            ]
            for number in range(rounds)
        ]


def _arguments() -> Any:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--latency-ms", type=float, nargs="*", default=[0.0, 50.0])
    parser.add_argument("--rows", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args()


@contextmanager
def _running(command: Sequence[str], *, core: int) -> Iterator[tuple[str, int]]:
    """A server on one core while the block lasts: the last word it says is its port."""
    command = [sys.executable, *command]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        os.sched_setaffinity(process.pid, {core})
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split()[-1], process.pid
        finally:
            process.terminate()


def _write_workspace(folder: Path, *, url: str, rows: int) -> EvalConfig:
    lines = ({"user_prompt": f"what is ID={row}", "ground_truth": str(row)} for row in range(rows))
    files = {
        "rollouts/bench/main.py": ENTRYPOINT,
        "data/rows.jsonl": "".join(json.dumps(line) + "\n" for line in lines),
        "bench.toml": '[experiment]\nrollout = "bench"\nentrypoint = "main.py"\n'
        f'model_path = "mock"\ndataset = "rows"\n[model]\nbase_url = "{url}"\n',
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return load_config(folder / "bench.toml")


def _evaluate(config: EvalConfig, *, name: str, rows: int) -> Pace:
    watch = Stopwatch()
    options = RunOptions(name=name, max_in_flight=IN_FLIGHT)
    result = asyncio.run(evaluate(config, options=options, observer=watch))
    pace = watch.pace(rows)
    assert result.summary.mean is not None
    assert (result.summary.mean.value, result.summary.items) == (1.0, rows + WARM_ROWS)
    return pace


def _bare(bench: Path, *, url: str, rows: int) -> Pace:
    return _loop([*_loop_program(bench, rows), "--url", url])


def _through_process(bench: Path, *, url: str, rows: int) -> Pace:
    with _running([str(PASS_THROUGH), url], core=0) as (port, pid):
        before = _cpu_sec(pid)
        pace = _bare(bench, url=f"http://127.0.0.1:{port}/v1", rows=rows)
        # The loop's own warm-up went through the endpoint too.
        cpu_ms = (_cpu_sec(pid) - before) / (rows + WARM_ROWS) * 1e3
    return Pace(pace.rate, pace.cpu_ms + cpu_ms)


def _through_thread(bench: Path, *, url: str, rows: int) -> Pace:
    return _loop([str(PASS_THROUGH), url, *_loop_program(bench, rows)])


def _loop_program(bench: Path, rows: int) -> list[str]:
    flags = ["--n", str(rows), "--conc", str(IN_FLIGHT), "--mode", "aiohttp"]
    return [str(bench / "workers/w4_bare.py"), *flags]


def _loop(arguments: Sequence[str]) -> Pace:
    command = [sys.executable, "-B", *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    said = json.loads(done.stdout.splitlines()[-1])
    return Pace(said["rps"], said["cpu_ms_per_rollout"])


def _cpu_sec(pid: int | None = None) -> float:
    """User and system seconds of a process, which is this one unless named."""
    if pid is None:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return used.ru_utime + used.ru_stime
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, after_name[11:13])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
