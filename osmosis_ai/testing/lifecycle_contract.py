"""LifecycleContract: the life of a rollout, the same however it is reached.

Inherit it once for each way, and say how your backend is built:

    class TestMyBackend(LifecycleContract):
        def make_backend(self, **wiring):
            return MyBackend(**wiring)

    class TestMyBackendPolled(TestMyBackend):
        reached_by = "poll"

It wants pytest and pytest-asyncio. Each test's docstring says what is promised there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias

import pytest

from osmosis_ai.rollout.agent_workflow import AgentWorkflow
from osmosis_ai.rollout.artifacts import ARTIFACT_ROOT_VARIABLE
from osmosis_ai.rollout.backend.base import CancelDisposition, Capacity, ExecutionBackend
from osmosis_ai.rollout.server import create_rollout_server
from osmosis_ai.rollout.types import ExecutionRequest, RolloutStatus
from osmosis_ai.testing.contract.bench import make_request
from osmosis_ai.testing.contract.cancelling import limited_to
from osmosis_ai.testing.contract_workflows import Judge, JudgeConfig, Player, Stubborn
from osmosis_ai.testing.lifecycle.direct import DirectPlace
from osmosis_ai.testing.lifecycle.place import Place, Refused
from osmosis_ai.testing.lifecycle.served import serve_place
from osmosis_ai.testing.stage import Stage, within

Reach: TypeAlias = Literal["directly", "callback", "poll"]

QUEUED, RUNNING = CancelDisposition.CANCELLED_QUEUED, CancelDisposition.CANCELLED_RUNNING
GONE = CancelDisposition.NOT_FOUND


@dataclass(frozen=True, slots=True)
class LifeBench:
    """A place under test, and the stage of its rollouts."""

    place: Place
    stage: Stage
    patience_sec: float

    def request(self, rollout_id: str, **fields: Any) -> ExecutionRequest:
        """A request that the contract workflows understand."""
        return make_request(self.stage, rollout_id, **fields)

    async def start(self, *rollout_ids: str) -> None:
        """Start rollouts, one after the other."""
        for rollout_id in rollout_ids:
            await self.place.start(self.request(rollout_id))

    async def start_held(self, *scenes: str) -> None:
        """Start rollouts, and wait until each has come to its scene, where it stays."""
        self.stage.hold(*scenes)
        for scene in scenes:
            await self.start(scene.partition("/")[0])
            await self.stage.told(scene)

    async def ends(self, rollout_id: str) -> RolloutStatus:
        """How the workflow of a rollout ended, when its last answer is there."""
        return (await self.place.outcome(rollout_id)).workflow.status

    async def comes_to(self, rollout_id: str, status: RolloutStatus) -> None:
        """Wait until a rollout has a status: the last answer may be there a moment before."""

        async def look() -> None:
            while await self.place.status(rollout_id) is not status:
                await self.stage.settle()

        await within(self.patience_sec, look(), what=f"{rollout_id!r} becomes {status.value}")

    async def is_at_rest(self, capacity: Capacity) -> None:
        """Wait until the place is as full as this."""

        async def look() -> None:
            while await self.place.capacity() != capacity:
                await self.stage.settle()

        await within(self.patience_sec, look(), what=f"the place comes to {capacity}")


class LifecycleContract:
    """What a rollout goes through, and what can be asked and done meanwhile."""

    pytestmark = pytest.mark.asyncio

    reached_by: ClassVar[Reach] = "directly"
    """Whether there is a rollout server in between, and which protocol brings its answers."""

    patience_sec: ClassVar[float] = 20.0
    """How long a test waits for what must happen, before it fails instead of hanging."""

    stage_host: ClassVar[str] = "127.0.0.1"
    """The address of this machine under which user code reaches the test."""

    def make_backend(self, **wiring: Any) -> ExecutionBackend:
        """Build the backend under test from `wiring`, as `BackendContract.make_backend` does."""
        raise NotImplementedError("give your suite a make_backend() that builds your backend")

    @asynccontextmanager
    async def open_place(
        self, backend: ExecutionBackend, *, root: Path, **given: Any
    ) -> AsyncIterator[Place]:
        """The backend where the suite says it is; `given` are arguments of the server."""
        if self.reached_by == "directly":
            place = DirectPlace(backend, root=root, patience_sec=self.patience_sec)
            try:
                yield place
            finally:
                await place.close()
            return
        app = create_rollout_server(
            backend=backend, configure_logging=False, **{"journal": None, **given}
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(ARTIFACT_ROOT_VARIABLE, str(root))
            async with serve_place(
                app, protocol=self.reached_by, patience_sec=self.patience_sec
            ) as served:
                yield served

    @asynccontextmanager
    async def bench(
        self,
        root: Path,
        *,
        at_once: int = 1,
        workflow: type[AgentWorkflow[Any]] = Player,
        **given: Any,
    ) -> AsyncIterator[LifeBench]:
        """The place under test, which runs so many rollouts at once, with its stage."""
        async with Stage(host=self.stage_host, patience_sec=self.patience_sec) as stage:
            backend = self.make_backend(
                workflow=workflow,
                workflow_config=limited_to(at_once),
                grader=Judge,
                grader_config=JudgeConfig(stage=stage.address),
            )
            async with self.open_place(backend, root=root / "artifacts", **given) as place:
                try:
                    yield LifeBench(place, stage, self.patience_sec)
                finally:
                    stage.release_all()

    # From the queue to the end

    async def test_a_rollout_is_queued_runs_is_graded_and_ends(self, tmp_path: Path) -> None:
        """Each is a status of its own, so that whoever waits knows for what."""
        async with self.bench(tmp_path) as bench:
            await bench.start_held("first/workflow")
            bench.stage.hold("a/workflow", "a/grader")
            await bench.start("a")
            assert await bench.place.status("a") is RolloutStatus.QUEUED
            bench.stage.release("first/workflow")
            await bench.stage.told("a/workflow")
            assert await bench.place.status("a") is RolloutStatus.RUNNING
            bench.stage.release("a/workflow")
            await bench.stage.told("a/grader")
            assert await bench.place.status("a") is RolloutStatus.GRADING
            bench.stage.release("a/grader")
            assert (await bench.place.outcome("a")).reward == 1.0
            await bench.comes_to("a", self._after(RolloutStatus.SUCCESS))

    async def test_a_failed_rollout_ends_too(self, tmp_path: Path) -> None:
        """Its failure is its end, and the next one runs."""
        async with self.bench(tmp_path) as bench:
            await bench.place.start(bench.request("a", options={"error": "ValueError"}))
            await bench.start("b")
            assert await bench.ends("a") is RolloutStatus.FAILURE
            assert await bench.ends("b") is RolloutStatus.SUCCESS
            await bench.comes_to("a", self._after(RolloutStatus.FAILURE))

    async def test_an_unknown_rollout_is_unknown(self, tmp_path: Path) -> None:
        """That is an answer, and no error."""
        async with self.bench(tmp_path) as bench:
            assert await bench.place.status("unknown") is RolloutStatus.UNKNOWN

    async def test_capacity_counts_what_runs_and_what_waits(self, tmp_path: Path) -> None:
        """Whoever shares rollouts out goes by these numbers."""
        async with self.bench(tmp_path, at_once=2) as bench:
            await bench.start_held("a/workflow", "b/workflow")
            await bench.start("c")
            assert await bench.place.capacity() == Capacity(max=2, running=2, queued=1)
            bench.stage.release_all()
            for rollout_id in "abc":
                assert await bench.ends(rollout_id) is RolloutStatus.SUCCESS
            await bench.is_at_rest(Capacity(max=2, running=0, queued=0))

    # Cancelling

    @pytest.mark.parametrize(
        ("selector", "said"),
        [
            ({"ids": ["run-1", "run-2", "no"]}, {"run-1": RUNNING, "run-2": QUEUED, "no": GONE}),
            ({"prefix": "run-"}, {"run-1": RUNNING, "run-2": QUEUED}),
            ({"all": True}, {"run-1": RUNNING, "run-2": QUEUED, "other": QUEUED}),
        ],
        ids=["ids", "prefix", "all"],
    )
    async def test_cancel_takes_what_it_names_queued_or_running(
        self, tmp_path: Path, selector: dict[str, Any], said: dict[str, str]
    ) -> None:
        """And nothing else; a queued one never reaches user code."""
        async with self.bench(tmp_path) as bench:
            await bench.start_held("run-1/workflow")
            await bench.start("run-2", "other")
            assert await bench.place.cancel(**selector) == said
            for rollout_id in ("run-1", "run-2", "other"):
                is_named = said.get(rollout_id, GONE) is not GONE
                how = RolloutStatus.CANCELLED if is_named else RolloutStatus.SUCCESS
                assert await bench.ends(rollout_id) is how
                await bench.comes_to(rollout_id, self._after(how))
            assert "run-2/workflow" not in bench.stage.scenes

    async def test_a_cancelled_rollout_is_not_graded(self, tmp_path: Path) -> None:
        """Its grader answer is a failure without sample, and there is no reward."""
        async with self.bench(tmp_path) as bench:
            await bench.start_held("a/workflow")
            await bench.place.cancel(ids=["a"])
            outcome = await bench.place.outcome("a")
        assert outcome.grader is not None
        assert (outcome.grader.succeeded, outcome.grader.sample) == (False, None)
        assert outcome.reward is None

    async def test_cancelling_again_changes_nothing(self, tmp_path: Path) -> None:
        """While it stops and after it has: a cancel may be sent twice without harm."""
        async with self.bench(tmp_path, workflow=Stubborn) as bench:
            bench.stage.hold("a/interrupted")
            await bench.start_held("a/workflow")
            assert await bench.place.cancel(ids=["a"]) == {"a": RUNNING}
            await bench.stage.told("a/interrupted")
            assert await bench.place.cancel(ids=["a"]) == {"a": RUNNING}
            bench.stage.release("a/interrupted")
            assert await bench.ends("a") is RolloutStatus.CANCELLED
            await bench.comes_to("a", self._after(RolloutStatus.CANCELLED))
            assert await bench.place.cancel(ids=["a"]) == {"a": GONE}
            assert bench.stage.scenes == ["a/workflow", "a/interrupted"]

    async def test_a_cancelled_rollout_is_stopping_until_its_code_ends(
        self, tmp_path: Path
    ) -> None:
        """Being told to stop is not having stopped: the slot is taken, and the next one waits."""
        async with self.bench(tmp_path, workflow=Stubborn) as bench:
            bench.stage.hold("a/interrupted")
            await bench.start_held("a/workflow")
            await bench.start("next")
            await bench.place.cancel(ids=["a"])
            await bench.stage.told("a/interrupted")
            await bench.stage.settle()
            said = await bench.place.capacity()
            assert said == Capacity(max=1, running=1, queued=1, stopping=1)
            assert "next/workflow" not in bench.stage.scenes
            bench.stage.release("a/interrupted")
            assert await bench.ends("next") is RolloutStatus.SUCCESS
            await bench.is_at_rest(Capacity(max=1, running=0, queued=0))

    # What a server adds

    async def test_an_id_that_is_known_is_not_run_again(self, tmp_path: Path) -> None:
        """The same content means the same rollout, other content is refused."""
        self._only_served()
        async with self.bench(tmp_path) as bench:
            await bench.start_held("a/workflow")
            await bench.start("a")
            with pytest.raises(Refused) as refused:
                await bench.place.start(bench.request("a", metadata={"other": True}))
            bench.stage.release("a/workflow")
            await bench.comes_to("a", RolloutStatus.SUCCESS)
            assert refused.value.status == 409
            assert bench.stage.scenes == ["a/workflow", "a/grader"]

    async def test_a_full_queue_takes_no_more(self, tmp_path: Path) -> None:
        """429, and when to come again; what it had taken runs, and then there is room."""
        self._only_served()
        async with self.bench(tmp_path, max_queue_depth=1) as bench:
            await bench.start_held("a/workflow")
            await bench.start("b")
            with pytest.raises(Refused) as refused:
                await bench.start("c")
            bench.stage.release("a/workflow")
            assert await bench.ends("b") is RolloutStatus.SUCCESS
            await bench.start("c")
            assert await bench.ends("c") is RolloutStatus.SUCCESS
        assert refused.value.status == 429
        assert float(refused.value.retry_after or "nan") > 0

    async def test_how_a_rollout_ended_is_told_for_so_long(self, tmp_path: Path) -> None:
        """And no longer: a server's memory is bounded."""
        self._only_served()
        async with self.bench(tmp_path, result_retention_sec=0.2) as bench:
            await bench.start("a")
            await bench.comes_to("a", RolloutStatus.UNKNOWN)
        async with self.bench(tmp_path / "long") as bench:
            await bench.start("a", "b")
            assert await bench.ends("b") is RolloutStatus.SUCCESS
            assert await bench.place.status("a") is RolloutStatus.SUCCESS

    async def test_a_server_that_ends_finishes_what_runs_and_takes_no_more(
        self, tmp_path: Path
    ) -> None:
        """503 meanwhile; a rollout that runs has the time to end."""
        self._only_served()
        async with self.bench(tmp_path) as bench:
            await bench.start_held("a/workflow")
            ending = asyncio.create_task(bench.place.drain())
            refused = await within(
                self.patience_sec, _refusal(bench), what="the server takes no more"
            )
            assert not ending.done()
            bench.stage.release("a/workflow")
            await within(self.patience_sec, ending, what="the server ends")
            assert bench.stage.scenes == ["a/workflow", "a/grader"]
        assert refused == 503

    def _after(self, status: RolloutStatus) -> RolloutStatus:
        """What is said of a rollout that has ended so: a backend alone keeps nothing of it."""
        return RolloutStatus.UNKNOWN if self.reached_by == "directly" else status

    def _only_served(self) -> None:
        if self.reached_by == "directly":
            pytest.skip("this is what a server adds")


async def _refusal(bench: LifeBench) -> int:
    """The status with which a place that begins to end refuses a rollout, sooner or later."""
    number = 0
    while True:
        name = f"late-{number}"
        number += 1
        try:
            await bench.start(name)
        except Refused as refused:
            return refused.status
        await bench.place.cancel(ids=[name])
