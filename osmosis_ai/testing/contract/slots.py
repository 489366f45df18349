"""Clause 3.9: so many rollouts at once, and what one slot covers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from osmosis_ai.rollout.types import (
    ConcurrencyConfig,
    ExecutionResult,
    RolloutStatus,
)
from osmosis_ai.testing.contract.base import BackendClauses
from osmosis_ai.testing.contract.bench import Answer, Bench, Flight
from osmosis_ai.testing.contract.cancelling import limited_to
from osmosis_ai.testing.contract_workflows import JudgeConfig, PlayerConfig

MANY = 12


class SlotClauses(BackendClauses):
    """The workflow config alone limits, and a slot is held until all that it covers is done."""

    @pytest.mark.parametrize(
        ("config", "limit"),
        [(None, 4), (limited_to(1), 1), (limited_to(3), 3)],
        ids=["no config", "one", "three"],
    )
    async def test_3_9_no_more_run_at_once_than_the_limit(
        self, tmp_path: Path, config: PlayerConfig | None, limit: int
    ) -> None:
        """Four without a config, else what `max_concurrent` says: all of them, and no more."""
        async with self.bench(tmp_path, workflow_config=config) as bench:
            flights = await start_all_held(bench, limit + 2, reach=limit)
            assert len(bench.stage.scenes) == limit
            bench.stage.release_all()
            await asyncio.gather(*(flight.ended() for flight in flights))
            assert len(bench.stage.scenes) == 2 * (limit + 2)

    async def test_3_9_a_config_without_a_limit_is_unlimited(self, tmp_path: Path) -> None:
        """`max_concurrent=None` is no "some default": all run at once, and none is queued."""
        async with self.bench(tmp_path, workflow_config=PlayerConfig()) as bench:
            flights = await start_all_held(bench, MANY, reach=MANY)
            assert (bench.capacity.max, bench.capacity.queued) == (None, 0)
            bench.stage.release_all()
            await asyncio.gather(*(flight.ended() for flight in flights))

    async def test_3_9_the_grader_config_limits_nothing(self, tmp_path: Path) -> None:
        """`GraderConfig.concurrency` is present, and no backend reads it."""
        config = JudgeConfig(concurrency=ConcurrencyConfig(max_concurrent=1))
        async with self.bench(tmp_path, grader_config=config) as bench:
            bench.stage.hold("a/grader", "b/grader")
            flights = [bench.start(bench.request(name)) for name in "ab"]
            await bench.stage.told("a/grader")
            await bench.stage.told("b/grader")
            bench.stage.release_all()
            await asyncio.gather(*(flight.ended() for flight in flights))

    @pytest.mark.parametrize("part", ["workflow", "grader"])
    async def test_3_9_the_slot_covers_user_code(self, tmp_path: Path, part: str) -> None:
        """The workflow and its grader: a limit of one means one of both together."""
        async with self.bench(tmp_path, workflow_config=limited_to(1)) as bench:
            bench.stage.hold(f"a/{part}")
            first = bench.start(bench.request("a"))
            await bench.stage.told(f"a/{part}")
            following = bench.start(bench.request("b"))
            await expect_waiting(bench)
            bench.stage.release_all()
            await asyncio.gather(first.ended(), following.ended())

    @pytest.mark.parametrize("kind", ["workflow", "grader"])
    async def test_3_9_the_slot_covers_the_callbacks(self, tmp_path: Path, kind: Answer) -> None:
        """Answers that are delivered slowly hold the next rollouts back, instead of piling up."""
        async with self.bench(tmp_path, workflow_config=limited_to(1)) as bench:
            first = bench.start(bench.request("a"), hold=[kind])
            await first.answer(kind)
            following = bench.start(bench.request("b"))
            await expect_waiting(bench)
            first.acknowledge(kind)
            await asyncio.gather(first.ended(), following.ended())

    async def test_3_9_a_callback_that_fails_frees_the_slot(self, tmp_path: Path) -> None:
        """Its error is the caller's to see; the next rollout runs."""

        async def refuse(result: ExecutionResult) -> None:
            raise ConnectionError("nobody takes the answer")

        async with self.bench(tmp_path, workflow_config=limited_to(1)) as bench:
            with bench.context("a"), pytest.raises(ConnectionError):
                await bench.backend.execute(bench.request("a"), refuse)
            assert bench.capacity.running == 0
            assert (await bench.run(bench.request("b"))).status is RolloutStatus.SUCCESS

    async def test_3_9_health_reports_limit_queued_and_running(self, tmp_path: Path) -> None:
        """In exactly this form, which controllers read."""
        async with self.bench(tmp_path, workflow_config=limited_to(2)) as bench:
            assert bench.backend.health() == health(2, queued=0, running=0)
            flights = await start_all_held(bench, 3, reach=2)
            assert bench.backend.health() == health(2, queued=1, running=2)
            bench.stage.release_all()
            await asyncio.gather(*(flight.ended() for flight in flights))
            assert bench.backend.health() == health(2, queued=0, running=0)

    async def test_3_9_health_says_unlimited_as_null(self, tmp_path: Path) -> None:
        """A number would be read as a limit."""
        async with self.bench(tmp_path, workflow_config=PlayerConfig()) as bench:
            assert bench.backend.health() == health(None, queued=0, running=0)


async def start_all_held(bench: Bench, count: int, *, reach: int) -> list[Flight]:
    """Start so many rollouts, held in their workflows, and wait until `reach` of them are there."""
    names = [str(index) for index in range(count)]
    bench.stage.hold(*(f"{name}/workflow" for name in names))
    flights = [bench.start(bench.request(name)) for name in names]
    for name in names[:reach]:
        await bench.stage.told(f"{name}/workflow")
    await bench.stage.settle()
    return flights


async def expect_waiting(bench: Bench) -> None:
    """Rollout `b` has had every opportunity to begin, and has not."""
    await bench.stage.settle()
    assert "b/workflow" not in bench.stage.scenes, "the slot was freed too early"
    assert (bench.capacity.running, bench.capacity.queued) == (1, 1)


def health(limit: int | None, *, queued: int, running: int) -> dict[str, object]:
    """The documented form of `health()`."""
    concurrency = {"max_concurrent": limit, "queued": queued, "running": running}
    return {"status": "ok", "concurrency": concurrency}
