"""A whole evaluation beside a loop that only calls the model: rollouts a second, as a ratio.

python benchmarks/evaluation.py BENCH_FOLDER [--latency-ms 50] [--rows 3000] [--rounds 3]

BENCH_FOLDER has `services/mock_llm.py` and `workers/w4_bare.py`. Both sides run 64 at once, turn
about, against the same model; the run folder is in /dev/shm where there is one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from osmosis_ai.eval.config import EvalConfig, load_config
from osmosis_ai.eval.evaluation import Observer, RunHeader, RunOptions, evaluate

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


class Stopwatch(Observer):
    """Starts when the rollouts do, as the bare loop's does after its warm-up."""

    began = 0.0

    def started(self, header: RunHeader) -> None:
        self.began = time.perf_counter()


def main() -> None:
    given = _arguments()
    mock = [sys.executable, given.bench / "services/mock_llm.py", "0", str(given.latency_ms)]
    shm = Path("/dev/shm")
    with (
        tempfile.TemporaryDirectory(dir=shm if shm.is_dir() else None) as folder,
        subprocess.Popen(mock, stdout=subprocess.PIPE, text=True) as model,
    ):
        try:
            assert model.stdout is not None
            url = f"http://127.0.0.1:{model.stdout.readline().split()[1]}/v1"
            config = _write_workspace(Path(folder), url=url, rows=given.rows)
            for number in range(given.rounds):
                bare = _bare(given.bench, url=url, rows=given.rows)
                ours = _evaluate(config, name=f"round-{number}")
                print(f"bare {bare:,.0f}/s  evaluation {ours:,.0f}/s  ratio {ours / bare:.3f}")
        finally:
            model.terminate()


def _arguments() -> Any:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bench", type=Path)
    parser.add_argument("--latency-ms", type=float, default=50)
    parser.add_argument("--rows", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


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


def _evaluate(config: EvalConfig, *, name: str) -> float:
    watch = Stopwatch()
    options = RunOptions(name=name, max_in_flight=64)
    result = asyncio.run(evaluate(config, options=options, observer=watch))
    elapsed_sec = time.perf_counter() - watch.began
    assert result.summary.mean is not None
    assert result.summary.mean.value == 1.0
    return result.summary.items / elapsed_sec


def _bare(bench: Path, *, url: str, rows: int) -> float:
    command = [sys.executable, "-B", bench / "workers/w4_bare.py", "--url", url]
    flags = ["--n", str(rows), "--conc", "64", "--mode", "aiohttp"]
    done = subprocess.run([*command, *flags], check=True, capture_output=True, text=True)
    return float(json.loads(done.stdout.splitlines()[-1])["rps"])


if __name__ == "__main__":
    main()
