"""Clause 3.10: status, cancelling by ids, prefix or all, and capacity."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.rollout.backend.base import CancelDisposition, Capacity
from osmosis_ai.rollout.types import RolloutStatus
from osmosis_ai.testing.contract.base import BackendClauses
from osmosis_ai.testing.contract.bench import Bench
from osmosis_ai.testing.contract.cancelling import expect_cancelled, limited_to, start_held
from osmosis_ai.testing.contract.slots import start_all_held

CANCELLED = CancelDisposition.CANCELLED_RUNNING


class ControlClauses(BackendClauses):
    """A backend can be asked where a rollout is, how full it is, and to stop some."""

    async def test_3_10_status_follows_the_rollout(self, tmp_path: Path) -> None:
        """Queued, running, grading, and not here any more."""
        async with self.bench(tmp_path, workflow_config=limited_to(1)) as bench:
            first = await start_held(bench, "first/workflow")
            bench.stage.hold("a/workflow", "a/grader")
            flight = bench.start(bench.request("a"))
            await bench.stage.settle()
            assert status(bench, "a") is RolloutStatus.QUEUED
            bench.stage.release("first/workflow")
            await first.ended()
            await bench.stage.told("a/workflow")
            assert status(bench, "a") is RolloutStatus.RUNNING
            bench.stage.release("a/workflow")
            await bench.stage.told("a/grader")
            assert status(bench, "a") is RolloutStatus.GRADING
            bench.stage.release("a/grader")
            await flight.ended()
            assert bench.backend.rollout_status("a") is None

    async def test_3_10_an_unknown_rollout_has_no_status(self, tmp_path: Path) -> None:
        """None says that it is not here, which no status could say."""
        async with self.bench(tmp_path) as bench:
            assert bench.backend.rollout_status("unknown") is None

    async def test_3_10_a_running_rollout_is_not_stopping(self, tmp_path: Path) -> None:
        """`stopping` is for what was cancelled and goes on."""
        async with self.bench(tmp_path) as bench:
            flight = await start_held(bench, "a/workflow")
            state = bench.backend.rollout_status("a")
            assert state is not None, "user code of the rollout runs"
            assert (state.status, state.stopping) == (RolloutStatus.RUNNING, False)
            bench.stage.release("a/workflow")
            await flight.ended()

    async def test_3_10_capacity_counts_what_runs_and_what_waits(self, tmp_path: Path) -> None:
        """A driver dispatches by these numbers."""
        async with self.bench(tmp_path, workflow_config=limited_to(2)) as bench:
            assert bench.capacity == Capacity(max=2, running=0, queued=0)
            flights = await start_all_held(bench, 5, reach=2)
            assert bench.capacity == Capacity(max=2, running=2, queued=3)
            assert bench.backend.has_capacity() in (True, False)
            bench.stage.release_all()
            await asyncio.gather(*(flight.ended() for flight in flights))
            assert bench.capacity == Capacity(max=2, running=0, queued=0)
            assert bench.backend.has_capacity()

    async def test_3_10_cancel_by_ids_takes_those(self, tmp_path: Path) -> None:
        """And answers for each id that was named."""
        async with self.bench(tmp_path) as bench:
            said = await self._cancel(bench, {"run-1", "run-3"}, ids=["run-1", "run-3", "no"])
        assert said == {
            "run-1": CANCELLED,
            "run-3": CANCELLED,
            "no": CancelDisposition.NOT_FOUND,
        }

    async def test_3_10_cancel_by_prefix_takes_what_begins_with_it(self, tmp_path: Path) -> None:
        """And answers for each rollout that it found."""
        async with self.bench(tmp_path) as bench:
            said = await self._cancel(bench, {"run-1", "run-3"}, prefix="run-")
        assert said == {"run-1": CANCELLED, "run-3": CANCELLED}

    async def test_3_10_cancel_all_takes_every_rollout(self, tmp_path: Path) -> None:
        """Those of other controllers too."""
        async with self.bench(tmp_path) as bench:
            said = await self._cancel(bench, {"run-1", "other", "run-3"}, all=True)
        assert said == {"run-1": CANCELLED, "other": CANCELLED, "run-3": CANCELLED}

    async def test_3_10_cancel_with_nothing_to_stop_says_so(self, tmp_path: Path) -> None:
        """A prefix or `all` that finds nothing is no error."""
        async with self.bench(tmp_path) as bench:
            assert await bench.cancel_by(prefix="no-") == {}
            assert await bench.cancel_by(all=True) == {}
            assert await bench.cancel_by(ids=[]) == {}

    @pytest.mark.parametrize(
        "selectors",
        [{}, {"ids": ["a"], "all": True}, {"prefix": "a", "all": True}, {"ids": [], "prefix": ""}],
        ids=["none", "ids and all", "prefix and all", "ids and prefix"],
    )
    async def test_3_10_cancel_takes_exactly_one_selector(
        self, tmp_path: Path, selectors: dict[str, Any]
    ) -> None:
        """A call that could mean two things stops nothing."""
        async with self.bench(tmp_path) as bench:
            flight = await start_held(bench, "a/workflow")
            with pytest.raises(ValueError, match="exactly one selector"):
                await bench.backend.cancel_rollouts(**selectors)
            bench.stage.release("a/workflow")
            await flight.ended()
            assert (await flight.answer("workflow")).status is RolloutStatus.SUCCESS

    async def _cancel(
        self, bench: Bench, stopped: set[str], **selector: Any
    ) -> dict[str, CancelDisposition]:
        """Cancel among three held rollouts; exactly the `stopped` ones must be cancelled."""
        flights = {
            name: await start_held(bench, f"{name}/workflow")
            for name in ("run-1", "other", "run-3")
        }
        said = await bench.cancel_by(**selector)
        bench.stage.release_all()
        for name, flight in flights.items():
            await flight.ended()
            answer = await flight.answer("workflow")
            if name in stopped:
                expect_cancelled(answer)
            else:
                assert answer.status is RolloutStatus.SUCCESS, f"{name} was stopped too"
        return said


def status(bench: Bench, rollout_id: str) -> RolloutStatus | None:
    """The status a backend tells of a rollout."""
    state = bench.backend.rollout_status(rollout_id)
    return None if state is None else state.status
