"""The archive: each rollout's conversation as an ATIF document."""

from osmosis_ai.rollout.trajectory.convert import convert_sample_to_trajectory
from osmosis_ai.rollout.trajectory.report import TrajectoryReport, report_from_response
from osmosis_ai.rollout.trajectory.save import save_trajectory, snapshot_messages

__all__ = [
    "TrajectoryReport",
    "convert_sample_to_trajectory",
    "report_from_response",
    "save_trajectory",
    "snapshot_messages",
]
