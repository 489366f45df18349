"""The driver contract of drivers behind a wire: what the wire does not carry is not asked for."""

from __future__ import annotations

import json
from pathlib import Path

from osmosis_ai.testing.contract_workflows import read_note
from osmosis_ai.testing.driver_contract import DriverContract


class RemoteDriverContract(DriverContract):
    """Every promise of a driver, three of them as a rollout server can keep them."""

    async def test_a_rollout_without_reference_is_not_graded(self, tmp_path: Path) -> None:
        """The wire carries a sample in the grader's answer alone, and here it has none."""
        async with self.bench(tmp_path) as bench:
            outcome = await bench.run(bench.request(label=None))
        assert outcome.workflow.succeeded
        assert outcome.grader is not None
        assert outcome.grader.sample is None
        assert outcome.grader.err_message is None

    async def test_the_rollout_knows_its_project_and_its_folder(self, tmp_path: Path) -> None:
        """A server has its own: its context names no path of the driver's."""
        async with self.bench(tmp_path) as bench:
            await bench.run(bench.request())
            told = await bench.stage.told("a/workflow")
        assert told["context"]["rollout_id"] == "a"
        assert told["context"]["project_path"] is None

    async def test_artifacts_and_trajectory_lie_in_the_rollouts_folder(
        self, tmp_path: Path
    ) -> None:
        """The server writes the trajectory when its answers are acknowledged."""
        async with self.bench(tmp_path) as bench:
            await bench.run(bench.request())
        folder = bench.root / "a"
        assert read_note(folder / "artifacts") == "a"
        trajectory = json.loads((folder / "trajectory.json").read_text())
        assert trajectory["schema_version"].startswith("ATIF-")
