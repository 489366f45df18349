"""Clauses 3.11 and 3.12: the artifacts directory of a rollout, and no trajectory beside it."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from osmosis_ai.rollout.artifacts import ARTIFACT_ROOT_VARIABLE
from osmosis_ai.rollout.context import RolloutContext
from osmosis_ai.rollout.types import RolloutStatus
from osmosis_ai.testing.contract.base import BackendClauses
from osmosis_ai.testing.contract.failures import logged
from osmosis_ai.testing.contract_workflows import read_note


class FolderClauses(BackendClauses):
    """Files of a rollout lie in its own folder; not being able to write them fails nothing."""

    async def test_3_11_files_lie_in_the_rollouts_artifacts_directory(self, tmp_path: Path) -> None:
        """`<root>/<rollout-id>/artifacts`, each rollout its own."""
        async with self.bench(tmp_path) as bench:
            await bench.run(bench.request("a"))
            await bench.run(bench.request("b"))
            for name in "ab":
                assert read_note(bench.artifacts(name)) == name

    async def test_3_11_workflow_and_grader_share_the_directory(self, tmp_path: Path) -> None:
        """The grader reads what the workflow wrote."""
        async with self.bench(tmp_path) as bench:
            await bench.grade(bench.request())
            assert (await bench.stage.told("a/grader"))["note"] == "a"

    async def test_3_11_the_root_is_resolved_for_each_execution(self, tmp_path: Path) -> None:
        """One backend serves several drivers, each with a root of its own."""
        async with self.bench(tmp_path) as bench:
            for name in ("one", "two"):
                context = replace(bench.context(name), artifact_root=tmp_path / name)
                await bench.run(bench.request(name), context=context)
                assert read_note(tmp_path / name / name / "artifacts") == name

    async def test_3_11_without_a_contexts_root_the_environment_names_it(
        self, tmp_path: Path
    ) -> None:
        """And without either it is `~/.osmosis`; both are looked up for each execution."""
        self.only_in_process("it has an environment of its own")
        async with self.bench(tmp_path) as bench:
            for name in ("one", "two"):
                with environment(ARTIFACT_ROOT_VARIABLE, str(tmp_path / name)):
                    await bench.run(bench.request(name), context=RolloutContext())
                assert read_note(tmp_path / name / name / "artifacts") == name
            home = tmp_path / "home"
            with environment(ARTIFACT_ROOT_VARIABLE, ""), environment("HOME", str(home)):
                await bench.run(bench.request("three"), context=RolloutContext())
        assert read_note(home / ".osmosis" / "three" / "artifacts") == "three"

    async def test_3_11_an_unusable_root_fails_no_rollout(self, tmp_path: Path) -> None:
        """The directory is None then, with one warning and not one for each rollout."""
        no_directory = tmp_path / "a-file"
        no_directory.write_text("here lies a file")
        async with self.bench(tmp_path) as bench:
            with logged() as records:
                for name in ("a", "b"):
                    context = replace(bench.context(name), artifact_root=no_directory)
                    workflow, grade = await bench.grade(bench.request(name), context=context)
                    assert workflow.status is RolloutStatus.SUCCESS, workflow.err_message
                    assert grade.status is RolloutStatus.SUCCESS, grade.err_message
                    told = await bench.stage.told(f"{name}/workflow")
                    assert not told["has_artifacts_dir"]
        warnings = [record for record in records if record.levelno >= logging.WARNING]
        assert len(warnings) == 1, [record.getMessage() for record in warnings]
        assert str(no_directory) in warnings[0].getMessage()

    async def test_3_12_a_backend_writes_no_trajectory(self, tmp_path: Path) -> None:
        """The archive is the caller's to write, once, when the grade is known."""
        async with self.bench(tmp_path) as bench:
            await bench.grade(bench.request())
            written = {path.name for path in (bench.root / "a").rglob("*")}
        assert "trajectory.json" not in written


@contextmanager
def environment(name: str, value: str) -> Iterator[None]:
    """Set an environment variable, and put back what it was."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
