"""Archive a conversation for real, and read back what is on the disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from osmosis_ai.rollout.trajectory.report import TrajectoryReport
from osmosis_ai.rollout.trajectory.save import save_trajectory
from osmosis_ai.rollout.types import ExecutionResult, RolloutSample, RolloutStatus


async def archive(
    root: Path,
    messages: list[dict[str, Any]],
    *,
    report: TrajectoryReport | None = None,
    rollout_id: str = "r1",
    **sample: Any,
) -> dict[str, Any] | None:
    """The document that is written for a successful rollout, or None where there is none."""
    result = ExecutionResult(
        status=RolloutStatus.SUCCESS, sample=RolloutSample(messages=messages, **sample)
    )
    await save_trajectory(rollout_id=rollout_id, result=result, report=report, artifact_root=root)
    path = root / rollout_id / "trajectory.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
