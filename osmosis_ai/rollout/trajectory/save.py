"""Write the trajectory of a rollout; whatever goes wrong costs a warning, never the rollout."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any

import orjson

from osmosis_ai.rollout import artifacts
from osmosis_ai.rollout.context import get_rollout_context
from osmosis_ai.rollout.protocol import MADE_SAFE_KEY
from osmosis_ai.rollout.safe_json import SafeJson, dump_json, make_safe
from osmosis_ai.rollout.trajectory.atif import Trajectory, format_json
from osmosis_ai.rollout.trajectory.convert import convert_sample_to_trajectory, merge_report
from osmosis_ai.rollout.trajectory.report import SampleReport, TrajectoryReport
from osmosis_ai.rollout.types import ExecutionResult, RolloutSample, check_path_segment

logger = logging.getLogger(__name__)


def snapshot_messages(sample: RolloutSample | None) -> SafeJson | None:
    """The conversation as it stands, for `save_trajectory`: a grader may change it afterwards.

    None where there is no sample, or it is not to be archived.
    """
    if sample is None or sample.archived_messages is None:
        return None
    return dump_json(sample.archived_messages, at="messages")


async def save_trajectory(
    *,
    rollout_id: str,
    result: ExecutionResult,
    request_label: str | None = None,
    request_metadata: Mapping[str, Any] | None = None,
    request_extra_fields: Mapping[str, Any] | None = None,
    report: TrajectoryReport | None = None,
    artifact_root: str | os.PathLike[str] | None = None,
    diagnostics: Mapping[str, Any] | None = None,
    messages: SafeJson | None = None,
) -> None:
    """Write `<root>/<rollout-id>/trajectory.json`, and `diagnostics.json` where there are any.

    `messages` is the snapshot taken before grading; without one the sample's own are archived.
    Nothing is written for a rollout without a sample, or one whose sample is not to be archived.
    Files are replaced as a whole. Never raises.
    """
    try:
        folder = _folder(rollout_id, artifact_root)
        if diagnostics:
            artifacts.replace_file(folder, "diagnostics.json", _diagnostics(diagnostics))
        if messages is None:
            messages = snapshot_messages(result.sample)
        if result.sample is None or messages is None:
            logger.info("rollout %s: nothing to archive", rollout_id)
            return
        matched, unmatched = _split(report)
        trajectory = convert_sample_to_trajectory(
            result.sample,
            rollout_id=rollout_id,
            request_label=request_label,
            request_metadata=request_metadata,
            request_extra_fields=request_extra_fields,
            report=matched,
            default_model_name=None if report is None else report.model_name,
            unmatched_sample_reports=unmatched,
            messages=orjson.loads(messages.data),
        )
        artifacts.replace_file(folder, "trajectory.json", _encode(trajectory, messages.changes))
    except Exception as exc:  # what users, controllers and file systems left must not cost more
        logger.warning("rollout %s: its trajectory is not saved: %s", rollout_id, exc)


def add_report(
    rollout_id: str,
    report: TrajectoryReport,
    *,
    artifact_root: str | os.PathLike[str] | None = None,
) -> None:
    """Put a report that came late into a trajectory that is on disk, where there is one.

    The file is replaced as a whole. Never raises.
    """
    try:
        folder = _folder(rollout_id, artifact_root)
        trajectory = _read(f"{folder}/trajectory.json")
        matched, unmatched = _split(report)
        merge_report(
            trajectory,
            matched,
            default_model_name=report.model_name,
            unmatched_sample_reports=unmatched,
        )
        # What had to change before, the document says already.
        artifacts.replace_file(folder, "trajectory.json", format_json(trajectory).data)
    except FileNotFoundError:
        logger.info("rollout %s: it has no trajectory for the controller's report", rollout_id)
    except Exception as exc:  # what is on the disk may be anything by now, and costs a report
        logger.warning("rollout %s: the late report is not saved: %s", rollout_id, exc)


def _read(path: str) -> Trajectory:
    # Not through a link: a rollout's own code may have put one there.
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        trajectory: Trajectory = orjson.loads(file.read())
    return trajectory


def _folder(rollout_id: str, root: str | os.PathLike[str] | None) -> str:
    root = root or artifacts.artifact_root(get_rollout_context())
    return f"{os.fspath(root)}/{check_path_segment(rollout_id)}"


def _split(
    report: TrajectoryReport | None,
) -> tuple[SampleReport | None, dict[str, SampleReport] | None]:
    """The report on the rollout's one sample, or all of them where it cannot be told apart."""
    if report is None or not report.samples:
        return None, None
    if len(report.samples) == 1:
        return next(iter(report.samples.values())), None
    return None, report.samples


def _encode(trajectory: Trajectory, changes: tuple[str, ...]) -> bytes:
    """The document as it goes to disk; it names what had to change to be valid JSON."""
    data, further = format_json(trajectory)
    changes += further
    if not changes:
        return data
    document = orjson.loads(data)
    document["extra"]["osmosis"][MADE_SAFE_KEY] = changes
    return format_json(document).data


def _diagnostics(diagnostics: Mapping[str, Any]) -> bytes:
    safe, changes = make_safe(diagnostics)
    if changes:
        safe[MADE_SAFE_KEY] = changes
    return orjson.dumps(safe, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS)
