"""Clause 3.8: what a rollout is given is its own."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from osmosis_ai.testing.contract.base import BackendClauses
from osmosis_ai.testing.contract_workflows import JudgeConfig, Player, PlayerConfig


class CopyClauses(BackendClauses):
    """Changing in place what was given changes nothing outside of the rollout."""

    async def test_3_8_each_execution_has_its_own_copy_of_the_workflow_config(
        self, tmp_path: Path
    ) -> None:
        """A deep one: what one execution changes, also deep inside, no other one sees."""
        config = PlayerConfig()
        async with self.bench(tmp_path, workflow_config=config) as bench:
            await bench.run(bench.request("a", options={"change": True}))
            await bench.run(bench.request("b"))
            assert (await bench.stage.told("b/workflow"))["notes"] == ["as configured"]
        assert config.notes == ["as configured"]

    async def test_3_8_constructor_and_context_are_given_the_same_copy(
        self, tmp_path: Path
    ) -> None:
        """`self.config` and `ctx.config` are one object: it does not matter which is used."""
        async with self.bench(tmp_path, workflow_config=PlayerConfig()) as bench:
            await bench.run(bench.request())
            told = await bench.stage.told("a/workflow")
        assert told["notes"] == ["as configured"]
        assert told["same_config"]

    async def test_3_8_a_workflow_config_that_cannot_be_copied_is_refused(
        self, tmp_path: Path
    ) -> None:
        """When the backend is built, not with the first rollout."""
        config = PlayerConfig.model_validate({"lock": threading.Lock()})
        with pytest.raises(ValueError, match="cannot be copied"):
            self.make_backend(workflow=Player, workflow_config=config)

    async def test_3_8_the_grader_config_is_passed_as_it_is(self, tmp_path: Path) -> None:
        """It may hold a limiter or a client that all graders share."""
        self.only_in_process("another process has its own object")
        config = JudgeConfig()
        async with self.bench(tmp_path, grader_config=config) as bench:
            await bench.grade(bench.request("a"))
            await bench.grade(bench.request("b"))
        assert config.seen == ["a", "b"]

    async def test_3_8_the_prompt_handed_to_a_rollout_is_its_own(self, tmp_path: Path) -> None:
        """A driver sends the same request again, or records it: it must be as it was."""
        async with self.bench(tmp_path) as bench:
            request = bench.request(options={"change": True})
            before = request.model_copy(deep=True)
            await bench.grade(request)
            told = await bench.stage.told("a/workflow")
        assert told["prompt"] == before.prompt
        assert request.prompt == before.prompt, "the workflow changed the request's prompt"

    async def test_3_8_the_metadata_handed_to_a_rollout_is_its_own(self, tmp_path: Path) -> None:
        """Rows share what a data set shares; no rollout may write to it."""
        async with self.bench(tmp_path) as bench:
            request = bench.request(options={"change": True}, metadata={"answers": [1]})
            await bench.grade(request)
            told = await bench.stage.told("a/workflow")
        assert told["metadata"] == {"answers": [1]}
        assert request.metadata == {"answers": [1]}, "the workflow changed the request's metadata"
