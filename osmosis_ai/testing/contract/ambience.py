"""Clause 3.6: each rollout has its own ambient context, and leaves the caller's as it was."""

from __future__ import annotations

import asyncio
from pathlib import Path

from osmosis_ai.rollout.context import RolloutContext, get_rollout_context
from osmosis_ai.testing.contract.base import BackendClauses
from osmosis_ai.testing.contract.bench import Flight
from osmosis_ai.testing.contract_workflows import describe


class AmbientClauses(BackendClauses):
    """Workflow, grader and their threads see the context of their own rollout, and no other."""

    async def test_3_6_workflow_and_grader_see_the_callers_context(self, tmp_path: Path) -> None:
        """The endpoint, key and folders a driver supplies are what user code finds, in both."""
        async with self.bench(tmp_path) as bench:
            await bench.grade(bench.request())
            in_workflow = await bench.stage.told("a/workflow")
            in_grader = await bench.stage.told("a/grader")
            supplied = describe(bench.context("a"))
        assert in_workflow["context"] == supplied
        assert in_grader["context"] == supplied

    async def test_3_6_the_grader_is_given_the_contexts_project_path(self, tmp_path: Path) -> None:
        """`ctx.project_path` is the rollout's directory, which the driver knows."""
        async with self.bench(tmp_path) as bench:
            await bench.grade(bench.request())
            assert (await bench.stage.told("a/grader"))["project_path"] == "/projects/a"

    async def test_3_6_a_context_without_an_id_becomes_the_rollouts_own(
        self, tmp_path: Path
    ) -> None:
        """User code that asks for its rollout's id gets it, whoever started the rollout."""
        async with self.bench(tmp_path) as bench:
            context = RolloutContext(artifact_root=bench.root)
            await bench.grade(bench.request(), context=context)
            for scene in ("a/workflow", "a/grader"):
                told = await bench.stage.told(scene)
                assert told["context"]["rollout_id"] == "a"

    async def test_3_6_concurrent_rollouts_never_see_each_others_context(
        self, tmp_path: Path
    ) -> None:
        """One rollout's calls must not go out under another's id and key."""
        async with self.bench(tmp_path) as bench:
            bench.stage.hold("a/workflow", "b/workflow")
            flights = [bench.start(bench.request(name)) for name in "ab"]
            await bench.stage.told("a/workflow")
            await bench.stage.told("b/workflow")
            bench.stage.release_all()
            await asyncio.gather(*(flight.ended() for flight in flights))
            for name in "ab":
                for scene in (f"{name}/workflow", f"{name}/grader"):
                    told = await bench.stage.told(scene)
                    assert told["context"] == describe(bench.context(name)), scene

    async def test_3_6_a_thread_sees_the_context_of_its_rollout(self, tmp_path: Path) -> None:
        """Synchronous clients are called with `asyncio.to_thread`, and need endpoint and key."""
        async with self.bench(tmp_path) as bench:
            await bench.run(bench.request(options={"thread": True}))
            told = await bench.stage.told("a/workflow")
            assert told["in_thread"] == describe(bench.context("a"))

    async def test_3_6_the_callers_context_is_restored(self, tmp_path: Path) -> None:
        """Contexts nest: after a rollout, ambient is what was ambient before it."""
        self.only_in_process("it cannot touch the caller's context")
        async with self.bench(tmp_path) as bench:
            with RolloutContext(rollout_id="outer", artifact_root=bench.root) as outer:
                await Flight(bench.request(), True, self.patience_sec).execute(bench.backend)
                assert get_rollout_context() is outer
                request = bench.request("fails", options={"error": "RuntimeError"})
                await Flight(request, True, self.patience_sec).execute(bench.backend)
                assert get_rollout_context() is outer
            assert get_rollout_context() is None
