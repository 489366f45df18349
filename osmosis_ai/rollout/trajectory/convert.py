"""A sample becomes an ATIF document, with what the controller reported of its model calls."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import orjson
from pydantic import ValidationError

from osmosis_ai import __version__
from osmosis_ai.rollout.safe_json import dump_json
from osmosis_ai.rollout.trajectory.atif import (
    SCHEMA_VERSION,
    FinalMetrics,
    Metrics,
    Step,
    Trajectory,
)
from osmosis_ai.rollout.trajectory.report import LlmCallMetrics, ReportedTotals, SampleReport
from osmosis_ai.rollout.trajectory.steps import Message, steps_from_messages
from osmosis_ai.rollout.types import RolloutSample

logger = logging.getLogger(__name__)

AGENT_NAME = "osmosis-rollout-sdk"
"""What the archive calls the producer of its documents."""

_NO_REPORT = SampleReport()
_REPORTED_KEYS = ("unmatched_llm_call_metrics", "unmatched_sample_reports")


def convert_sample_to_trajectory(
    sample: RolloutSample,
    *,
    rollout_id: str,
    request_label: str | None = None,
    request_metadata: Mapping[str, Any] | None = None,
    request_extra_fields: Mapping[str, Any] | None = None,
    report: SampleReport | None = None,
    default_model_name: str | None = None,
    unmatched_sample_reports: Mapping[str, SampleReport] | None = None,
    messages: Sequence[Message] | None = None,
) -> Trajectory:
    """The ATIF document of one rollout.

    `report` are the controller's numbers for this sample. `messages`, of plain JSON values, stand
    for the sample's own where a grader may have changed those. Raises ValueError where the sample
    is not to be archived or has no messages.
    """
    steps = steps_from_messages(_plain_messages(sample) if messages is None else messages)
    if not steps:
        raise ValueError("there are no messages, and an ATIF document has at least one step")
    block: dict[str, Any] = {"rollout_id": rollout_id}
    _keep(block, "label", request_label if sample.label is None else sample.label)
    _keep(block, "reward", sample.reward)
    _keep(block, "sample_metrics", sample.metrics or None)
    _keep(block, "sample_extra_fields", sample.extra_fields or None)
    _keep(block, "request_metadata", request_metadata or None)
    _keep(block, "request_extra_fields", request_extra_fields or None)
    trajectory: Trajectory = {
        "schema_version": SCHEMA_VERSION,
        "session_id": rollout_id,
        "trajectory_id": rollout_id,
        "agent": {"name": AGENT_NAME, "version": __version__},
        "steps": steps,
        "final_metrics": {},
        "extra": {"osmosis": block},
    }
    merge_report(
        trajectory,
        report,
        default_model_name=default_model_name,
        unmatched_sample_reports=unmatched_sample_reports,
    )
    return trajectory


def merge_report(
    trajectory: Trajectory,
    report: SampleReport | None,
    *,
    default_model_name: str | None = None,
    unmatched_sample_reports: Mapping[str, SampleReport] | None = None,
) -> None:
    """Put the controller's numbers into a document, in place of those of an earlier report."""
    report = report or _NO_REPORT
    block = trajectory["extra"]["osmosis"]
    for key in _REPORTED_KEYS:
        block.pop(key, None)
    unmatched = _merge_calls(trajectory["steps"], report.llm_call_metrics)
    if unmatched:
        block["unmatched_llm_call_metrics"] = [_dump(call) for call in unmatched]
    if unmatched_sample_reports:
        block["unmatched_sample_reports"] = {
            key: _dump(one) for key, one in unmatched_sample_reports.items()
        }
    model_name = report.model_name or default_model_name
    if model_name is not None:
        trajectory["agent"]["model_name"] = model_name
    trajectory["final_metrics"] = _final_metrics(trajectory["steps"], unmatched, report)


def _keep(block: dict[str, Any], key: str, value: Any) -> None:
    if value is not None:
        block[key] = value


def _plain_messages(sample: RolloutSample) -> list[Message]:
    if sample.archived_messages is None:
        raise ValueError("trajectory_messages is None: this sample is not to be archived")
    messages: list[Message] = orjson.loads(dump_json(sample.archived_messages).data)
    return messages


def _dump(model: LlmCallMetrics | SampleReport) -> dict[str, Any]:
    return model.model_dump(exclude_none=True)


def _merge_calls(steps: list[Step], calls: list[LlmCallMetrics]) -> list[LlmCallMetrics]:
    """Give each agent step its reported call where there are as many; return what has no step."""
    agent_steps = [step for step in steps if step["source"] == "agent"] if calls else []
    if len(agent_steps) != len(calls):
        return calls
    for step, call in zip(agent_steps, calls, strict=True):
        reported = cast(Metrics, call.model_dump(exclude_none=True, exclude={"model_name"}))
        if reported:
            step["metrics"] = {**step.get("metrics", {}), **reported}
        step["llm_call_count"] = 1
        if call.model_name is not None:
            step["model_name"] = call.model_name
    return []


_TOTALS: dict[str, Callable[[list[Any]], int | float]] = {
    "prompt_tokens": sum,
    "completion_tokens": sum,
    "cached_tokens": sum,
    "cost_usd": math.fsum,
}


def _final_metrics(
    steps: list[Step], unmatched: list[LlmCallMetrics], report: SampleReport
) -> FinalMetrics:
    """Totals as the controller gives them, else summed over its calls, else over the steps."""
    totals: dict[str, Any] = {}
    inline: list[Mapping[str, Any]] = [step["metrics"] for step in steps if "metrics" in step]
    if inline or unmatched:
        reported = [_dump(call) for call in unmatched]
        for name, add in _TOTALS.items():
            values = _values(name, reported) or _values(name, inline)
            if values:
                totals[f"total_{name}"] = add(values)
    if report.final_metrics is not None:
        totals.update(_reported_totals(report.final_metrics))
    totals["total_steps"] = len(steps)
    return cast(FinalMetrics, totals)


def _values(name: str, metrics: Sequence[Mapping[str, Any]]) -> list[Any]:
    return [one[name] for one in metrics if name in one]


def _reported_totals(final_metrics: dict[str, Any]) -> dict[str, Any]:
    try:
        return ReportedTotals.model_validate(final_metrics).model_dump(exclude_none=True)
    except ValidationError as exc:
        logger.warning("the controller's final_metrics are ignored, sums stand for them: %s", exc)
        return {}
