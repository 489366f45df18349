"""Each recipe of examples/agents solves its rows through the in-process driver."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from atif import Trajectory

from osmosis_ai.rollout import ExecutionRequest, RolloutSample
from osmosis_ai.rollout.driver.base import ModelSpec, RolloutItem
from osmosis_ai.rollout.driver.choose import open_driver

EXAMPLES = Path(__file__).parents[2] / "examples"
WORKSPACE = EXAMPLES / "agents"
MULTIPLY = EXAMPLES / "multiply/data/multiply.jsonl"


async def solve(
    name: str,
    artifact_root: Path,
    *,
    data: Path = WORKSPACE / "data/multiply.jsonl",
    **chosen: str | None,
) -> list[RolloutSample]:
    """Run every row at once; each must have its reward and a valid trajectory.

    `chosen` says which driver, else it is the one in this process.
    """
    project = WORKSPACE / "rollouts" / name
    rows = _load(data)
    async with open_driver(
        entrypoint=project / "main.py",
        project_path=project,
        import_roots=[project, WORKSPACE],
        model=ModelSpec("scripted:policy:reply"),
        artifact_root=artifact_root,
        **chosen,
    ) as driver:
        work = [
            driver.run(_request(number, row), item=RolloutItem(row=number, attempt=0, seed=number))
            for number, row in enumerate(rows)
        ]
        outcomes = await asyncio.gather(*work)
    samples = []
    for number, (row, outcome) in enumerate(zip(rows, outcomes, strict=True)):
        assert outcome.workflow.succeeded, outcome.workflow.err_message
        sample = outcome.result.sample
        assert sample is not None, outcome.result.err_message
        assert sample.reward == 1.0, (outcome.result.err_message, list(sample.messages))
        assert row["user_prompt"].split()[2] in json.dumps(list(sample.messages))
        document = json.loads((artifact_root / f"r{number}" / "trajectory.json").read_text())
        Trajectory.model_validate(document)
        samples.append(sample)
    return samples


def said_of(samples: list[RolloutSample]) -> set[tuple[str, str]]:
    """The recorder's verdicts and their reasons."""
    said = [sample.extra_fields["endpoint"] for sample in samples]
    assert {(len(one["turns"]), one["side_calls"]) for one in said} == {(2, 0)}
    return {(one["verdict"], one["reason"]) for one in said}


def _load(data: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in data.read_text().splitlines()]


def _request(number: int, row: dict[str, Any]) -> ExecutionRequest:
    prompt = [
        {"role": "system", "content": row["system_prompt"]},
        {"role": "user", "content": row["user_prompt"]},
    ]
    return ExecutionRequest(id=f"r{number}", prompt=prompt, label=row["ground_truth"])
