"""A small workspace on disk, and a driver whose rollouts are functions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from osmosis_ai.eval.config import EvalConfig, load_config
from osmosis_ai.eval.dataset import Dataset, find_dataset, load_dataset
from osmosis_ai.rollout.driver.base import RolloutDriver, RolloutItem
from osmosis_ai.rollout.types import (
    ExecutionOutcome,
    ExecutionRequest,
    ExecutionResult,
    ModelUsage,
    RolloutErrorCategory,
    RolloutSample,
    RolloutStatus,
)

MINIMAL = """
[experiment]
rollout = "hello"
entrypoint = "main.py"
model_path = "scripted:policy:reply"
dataset = "hello"
"""


@dataclass(frozen=True)
class Workspace:
    """A directory with `rollouts/hello`, a config and a data set."""

    root: Path

    @property
    def config_path(self) -> Path:
        return self.root / "configs" / "eval" / "hello.toml"

    @property
    def evals(self) -> Path:
        return self.root / ".osmosis" / "evals"

    def write_config(self, text: str) -> Path:
        self.config_path.write_text(text)
        return self.config_path

    def config(self, **overrides: Any) -> EvalConfig:
        dotted = {f"evaluation.{key}": value for key, value in overrides.items()}
        return load_config(self.config_path, overrides=dotted)

    def write_rows(self, rows: Iterable[Mapping[str, Any]]) -> None:
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (self.root / "data" / "hello.jsonl").write_text(lines)

    def dataset(self) -> Dataset:
        return load_dataset(find_dataset("hello", workspace=self.root))


def make_workspace(root: Path, *, rows: int = 4) -> Workspace:
    for directory in ("rollouts/hello", "configs/eval", "data"):
        (root / directory).mkdir(parents=True)
    (root / "rollouts" / "hello" / "main.py").write_text("backend = None\n")
    workspace = Workspace(root)
    workspace.write_config(MINIMAL)
    workspace.write_rows({"user_prompt": f"q{i}", "ground_truth": f"a{i}"} for i in range(rows))
    return workspace


def scored(reward: float, **usage: Any) -> ExecutionOutcome:
    """What a rollout that was graded ends as."""
    sample = RolloutSample(messages=[{"role": "assistant", "content": "x"}], reward=reward)
    result = ExecutionResult(status=RolloutStatus.SUCCESS, sample=sample)
    counted = ModelUsage(**usage) if usage else None
    return ExecutionOutcome(workflow=result, grader=result, usage=counted)


def failed(message: str = "boom", **fields: Any) -> ExecutionResult:
    """What user code that raised ends as."""
    category = fields.pop("err_category", RolloutErrorCategory.AGENT_ERROR)
    return ExecutionResult(
        status=RolloutStatus.FAILURE, err_message=message, err_category=category, **fields
    )


Behaviour = Callable[[ExecutionRequest, RolloutItem], ExecutionOutcome]


@dataclass
class FunctionDriver(RolloutDriver):
    """Answers each rollout with a function of it, after so many turns of the event loop."""

    behaviour: Behaviour = lambda request, item: scored(1.0)
    room: int | None = None
    turns: int = 1
    gate: asyncio.Event | None = None
    """Rollouts wait for it before they end."""
    full_at: int = 0
    full: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when so many rollouts run at once."""
    started: list[tuple[int, int]] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    remembers: bool = True
    """Whether `started` and `ids` are kept: a test of memory weighs them too."""
    probe_error: Exception | None = None
    probes: int = 0
    cancelled: int = 0
    running: int = 0
    peak: int = 0

    async def run(
        self, request: ExecutionRequest, *, item: RolloutItem | None = None
    ) -> ExecutionOutcome:
        assert item is not None
        if self.remembers:
            self.started.append((item.row, item.attempt))
            self.ids.append(request.id)
        self.running += 1
        self.peak = max(self.peak, self.running)
        if self.running == self.full_at:
            self.full.set()
        try:
            for _ in range(self.turns):
                await asyncio.sleep(0)
            if self.gate is not None:
                await self.gate.wait()
            return self.behaviour(request, item)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1

    async def probe(self) -> None:
        self.probes += 1
        if self.gate is not None:
            await self.gate.wait()
        if self.probe_error is not None:
            raise self.probe_error

    @property
    def max_in_flight(self) -> int | None:
        return self.room

    @property
    def description(self) -> str:
        return "function"
