"""The HTTP driver keeps the driver contract, on a server that serves the same entrypoint."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.launch import forgetting_modules, load_entrypoint
from osmosis_ai.rollout.artifacts import ARTIFACT_ROOT_VARIABLE
from osmosis_ai.rollout.driver.base import RolloutDriver
from osmosis_ai.rollout.driver.choose import open_driver
from osmosis_ai.testing.contract_workflows import read_note
from osmosis_ai.testing.driver_contract import DriverContract
from tests.rollout.driver.serving import serve


class TestHttpDriver(DriverContract):
    @asynccontextmanager
    async def open_driver(self, **given: Any) -> AsyncIterator[RolloutDriver]:
        """Serve the entrypoint's app, with the artifact root in its environment, and drive it."""
        roots: list[Path] = given["import_roots"]
        with pytest.MonkeyPatch.context() as patch, forgetting_modules(roots):
            patch.setenv(ARTIFACT_ROOT_VARIABLE, str(given["artifact_root"]))
            app = load_entrypoint(given["entrypoint"], roots).app
            with serve(app) as url:
                async with open_driver(server_url=url, **given) as driver:
                    yield driver

    async def test_a_rollout_without_reference_is_not_graded(self, tmp_path: Path) -> None:
        """The wire carries a sample in the grader's answer alone, and here it has none."""
        async with self.bench(tmp_path) as bench:
            outcome = await bench.run(bench.request(label=None))
        assert outcome.workflow.succeeded
        assert outcome.grader is not None
        assert outcome.grader.sample is None
        assert outcome.grader.err_message is None

    async def test_the_rollout_knows_its_project_and_its_folder(self, tmp_path: Path) -> None:
        """A server has its own: the driver's project path and artifact root stay here."""
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
