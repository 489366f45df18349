"""DriverContract: the tests that every driver passes.

Inherit it, and name the driver as `open_driver` knows it, or open your own:

    class TestMyDriver(DriverContract):
        driver = "my-driver"

It wants pytest and pytest-asyncio. Each test's docstring says what is promised there.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest

from osmosis_ai.rollout.agent_workflow import AgentWorkflow
from osmosis_ai.rollout.driver import choose
from osmosis_ai.rollout.driver.base import (
    Deadline,
    ModelSpec,
    RolloutDriver,
    RolloutItem,
    deadline_sec,
)
from osmosis_ai.rollout.grader import Grader
from osmosis_ai.rollout.types import (
    ExecutionRequest,
    RolloutErrorCategory,
    RolloutSample,
    RolloutStatus,
)
from osmosis_ai.testing.contract.asking import PREFIX, Asking, AskingInTheWay
from osmosis_ai.testing.contract.deadlines import expect_timeout
from osmosis_ai.testing.contract.driving import (
    DrivingBench,
    after,
    asking_status,
    contents,
    read,
    usage_of,
    write_entrypoint,
)
from osmosis_ai.testing.contract.failures import expect_failure
from osmosis_ai.testing.contract_workflows import (
    Judge,
    Player,
    Strange,
    Stubborn,
    StubbornJudge,
    an_answer,
    read_note,
)
from osmosis_ai.testing.stage import Stage

SHORT_SEC = 0.2


class DriverContract:
    """What a driver promises of the rollouts it is given."""

    pytestmark = pytest.mark.asyncio

    driver: ClassVar[str | None] = None
    """The driver's name for `open_driver`; None is what an entrypoint with a backend gets."""

    patience_sec: ClassVar[float] = 20.0
    """How long a test waits for what must happen, before it fails instead of hanging."""

    stage_host: ClassVar[str] = "127.0.0.1"
    """The address of this machine under which user code reaches the test."""

    def open_driver(self, **given: Any) -> AbstractAsyncContextManager[RolloutDriver]:
        """Open the driver under test; `given` are the arguments of `choose.open_driver`."""
        return choose.open_driver(driver=self.driver, **given)

    @asynccontextmanager
    async def bench(
        self,
        root: Path,
        *,
        workflow: type[AgentWorkflow[Any]] = Asking,
        grader: type[Grader] = Judge,
        max_concurrent: int | None = None,
        policy: str = "answers",
        deadline: Deadline = deadline_sec,
        **given: Any,
    ) -> AsyncIterator[DrivingBench]:
        """The driver under test on an entrypoint of its own, with its stage."""
        project, artifacts = root / "project", root / "artifacts"
        async with Stage(host=self.stage_host, patience_sec=self.patience_sec) as stage:
            entrypoint = write_entrypoint(
                project,
                workflow=workflow,
                grader=grader,
                stage=stage.address,
                max_concurrent=max_concurrent,
            )
            async with self.open_driver(
                entrypoint=entrypoint,
                project_path=project,
                import_roots=[project],
                model=ModelSpec(PREFIX + policy),
                artifact_root=artifacts,
                deadline=deadline,
                **given,
            ) as driver:
                bench = DrivingBench(driver, stage, project, artifacts, self.patience_sec)
                try:
                    yield bench
                finally:
                    await bench.close()

    # What comes out

    async def test_a_graded_rollout_has_both_results(self, tmp_path: Path) -> None:
        """The workflow's with its sample, the grader's with the reward, and how long it took."""
        async with self.bench(tmp_path) as bench:
            outcome = await bench.run(bench.request())
        assert outcome.workflow.status is RolloutStatus.SUCCESS, outcome.workflow.err_message
        assert outcome.grader is not None
        assert outcome.grader.status is RolloutStatus.SUCCESS, outcome.grader.err_message
        assert outcome.result.sample is not None
        assert outcome.result.sample.reward == 1.0
        assert outcome.duration_sec is not None
        assert outcome.duration_sec > 0

    async def test_a_rollout_without_reference_is_not_graded(self, tmp_path: Path) -> None:
        """Neither label nor metadata: no grade, no reward, and no failure of the workflow."""
        async with self.bench(tmp_path) as bench:
            outcome = await bench.run(bench.request(label=None))
        assert outcome.workflow.status is RolloutStatus.SUCCESS
        assert outcome.workflow.sample is not None
        assert outcome.workflow.sample.reward is None
        assert outcome.grader is None or not outcome.grader.succeeded

    async def test_a_failed_workflow_is_a_value(self, tmp_path: Path) -> None:
        """With category and text, where a raised exception would end a whole evaluation."""
        async with self.bench(tmp_path, workflow=Player) as bench:
            outcome = await bench.run(bench.request(options={"error": "ValueError"}))
        expect_failure(outcome.workflow, RolloutErrorCategory.VALIDATION_ERROR, "boom")
        assert outcome.workflow.no_result is None, "the agent's own failure is a result"
        assert outcome.grader is None or not outcome.grader.succeeded

    async def test_a_strange_sample_comes_with_its_reward(self, tmp_path: Path) -> None:
        """What JSON does not know costs no result on the way."""
        async with self.bench(tmp_path, workflow=Strange) as bench:
            outcome = await bench.run(bench.request())
        assert outcome.result.sample is not None
        assert outcome.result.sample.reward == 1.0

    async def test_the_sample_is_shown_before_it_is_graded(self, tmp_path: Path) -> None:
        """What the grader received is kept as it was then."""
        shown: list[tuple[str, object]] = []

        def on_sample(request: ExecutionRequest, sample: RolloutSample | None) -> None:
            shown.append((request.id, None if sample is None else sample.reward))

        async with self.bench(tmp_path, on_sample=on_sample) as bench:
            await bench.run(bench.request())
        assert shown == [("a", None)]

    # The model

    async def test_the_policy_answers_for_the_rollouts_item(self, tmp_path: Path) -> None:
        """A scripted policy depends on row, attempt, seed and turn, and on nothing else."""
        async with self.bench(tmp_path) as bench:
            item = RolloutItem(row=7, attempt=2, seed=11)
            outcome = await bench.run(bench.request(options={"turns": 2}), item=item)
        assert contents(outcome)[1:] == [
            "row 7 attempt 2 seed 11 turn 0",
            "row 7 attempt 2 seed 11 turn 1",
        ]

    async def test_model_calls_and_tokens_are_counted(self, tmp_path: Path) -> None:
        """For each rollout its own."""
        async with self.bench(tmp_path) as bench:
            tasks = [bench.start(bench.request(str(n), options={"turns": n})) for n in (1, 3)]
            once, thrice = [usage_of(await bench.outcome(task)) for task in tasks]
        assert (once.calls, thrice.calls) == (1, 3)
        assert 0 < once.total_tokens < thrice.total_tokens
        assert thrice.total_tokens == thrice.prompt_tokens + thrice.completion_tokens
        assert (thrice.failed_calls, thrice.last_error) == (0, None)

    async def test_a_model_that_is_down_is_told_from_a_failed_agent(self, tmp_path: Path) -> None:
        """The workflow failed, and the last error of its usage says for whose reason."""
        async with self.bench(tmp_path, policy="is_down") as bench:
            outcome = await bench.run(bench.request())
        assert outcome.workflow.status is RolloutStatus.FAILURE
        usage = usage_of(outcome)
        assert (usage.calls, usage.failed_calls) == (1, 1)
        assert "the policy is down" in (usage.last_error or ""), usage.last_error

    async def test_a_workflow_that_survives_a_failed_call_is_graded(self, tmp_path: Path) -> None:
        """The failed call is counted, and is not the last word where a later one was answered."""
        async with self.bench(tmp_path, policy="is_down_at_first") as bench:
            options = {"turns": 2, "survives": True}
            outcome = await bench.run(bench.request(options=options))
        assert outcome.result.sample is not None
        assert outcome.result.sample.reward == 1.0
        usage = usage_of(outcome)
        assert (usage.calls, usage.failed_calls, usage.last_error) == (2, 1, None)

    async def test_synchronous_clients_finish(self, tmp_path: Path) -> None:
        """They block the loop they run in, and the model must answer all the same."""
        async with self.bench(tmp_path, workflow=AskingInTheWay) as bench:
            options = {"patience_sec": self.patience_sec}
            tasks = [bench.start(bench.request(str(n), options=options)) for n in range(8)]
            outcomes = [await bench.outcome(task) for task in tasks]
        assert [usage_of(outcome).calls for outcome in outcomes] == [1] * 8
        assert {outcome.workflow.status for outcome in outcomes} == {RolloutStatus.SUCCESS}

    # What a rollout is given

    async def test_a_rollout_cannot_use_anothers_endpoint(self, tmp_path: Path) -> None:
        """Each has a URL and a key of its own, and the key opens no other URL."""
        async with self.bench(tmp_path) as bench:
            bench.stage.hold("a/workflow", "b/workflow")
            tasks = [bench.start(bench.request(name)) for name in "ab"]
            seen = {name: await bench.stage.told(f"{name}/workflow") for name in "ab"}
            one, other = seen["a"]["context"], seen["b"]["context"]
            assert one["chat_completions_url"] != other["chat_completions_url"]
            assert one["api_key"] != other["api_key"]
            status = await asking_status(one["chat_completions_url"], other["api_key"])
            assert status in (401, 403, 404), f"the other's key was answered with {status}"
            bench.stage.release_all()
            outcomes = [await bench.outcome(task) for task in tasks]
        assert [usage_of(outcome).calls for outcome in outcomes] == [1, 1]

    async def test_an_endpoint_ends_with_its_rollout(self, tmp_path: Path) -> None:
        """Code that goes on in a thread must not ask, and be paid for, in another's name."""
        async with self.bench(tmp_path) as bench:
            await bench.run(bench.request())
            context = (await bench.stage.told("a/workflow"))["context"]
            status = await asking_status(context["chat_completions_url"], context["api_key"])
        assert status in (401, 403, 404, 410), f"a call after the end was answered with {status}"

    async def test_the_rollout_knows_its_project_and_its_folder(self, tmp_path: Path) -> None:
        """In the ambient context of workflow and grader, and in the grader's own."""
        async with self.bench(tmp_path) as bench:
            await bench.run(bench.request())
            in_workflow = await bench.stage.told("a/workflow")
            in_grader = await bench.stage.told("a/grader")
        for context in (in_workflow["context"], in_grader["context"]):
            assert context["rollout_id"] == "a"
            assert context["project_path"] == str(bench.project_path)
            assert context["artifact_root"] == str(bench.root)
        assert in_grader["project_path"] == str(bench.project_path)

    # What is left behind

    async def test_artifacts_and_trajectory_lie_in_the_rollouts_folder(
        self, tmp_path: Path
    ) -> None:
        """`<artifact root>/<rollout id>/`: the files, and the conversation with its reward."""
        async with self.bench(tmp_path) as bench:
            await bench.run(bench.request())
            folder = bench.root / "a"
            assert read_note(folder / "artifacts") == "a"
            trajectory = json.loads(read(folder / "trajectory.json"))
        assert str(trajectory.get("schema_version")).startswith("ATIF-"), (
            "no trajectory was written"
        )
        assert "row 0 attempt 0" in json.dumps(trajectory["steps"])

    # Deadlines

    async def test_a_deadline_ends_the_workflow_as_a_timeout(self, tmp_path: Path) -> None:
        """The user's code is interrupted, and the outcome comes without waiting for more."""
        async with self.bench(tmp_path, workflow=Stubborn, deadline=after(SHORT_SEC)) as bench:
            bench.stage.hold("a/workflow")
            outcome = await bench.run(bench.request())
            await bench.stage.told("a/interrupted")
        expect_timeout(outcome.workflow)
        assert outcome.workflow.no_result is None, "passing a deadline is a result"
        assert outcome.grader is None or not outcome.grader.succeeded

    async def test_a_deadline_ends_the_grader_as_a_timeout(self, tmp_path: Path) -> None:
        """The workflow's success stands, and a reward that comes too late does not count."""
        wiring: dict[str, Any] = {"grader": StubbornJudge, "deadline": after(5 * SHORT_SEC)}
        async with self.bench(tmp_path, workflow=Player, **wiring) as bench:
            bench.stage.hold("a/grader")
            outcome = await bench.run(bench.request())
            await bench.stage.told("a/interrupted")
        assert outcome.workflow.status is RolloutStatus.SUCCESS, outcome.workflow.err_message
        assert outcome.grader is not None
        expect_timeout(outcome.grader)

    async def test_a_deadline_frees_the_slot(self, tmp_path: Path) -> None:
        """The next rollout runs, with a deadline of its own."""

        def deadline(request: ExecutionRequest) -> float:
            return SHORT_SEC if request.id == "late" else self.patience_sec

        wiring: dict[str, Any] = {"max_concurrent": 1, "deadline": deadline}
        async with self.bench(tmp_path, workflow=Player, **wiring) as bench:
            bench.stage.hold("late/workflow")
            expect_timeout((await bench.run(bench.request("late"))).workflow)
            outcome = await bench.run(bench.request("next"))
        assert outcome.workflow.status is RolloutStatus.SUCCESS

    # Capacity

    async def test_as_many_rollouts_are_in_flight_as_the_backend_runs(self, tmp_path: Path) -> None:
        """More are not sent: they would wait in the backend's queue, on their own time."""
        async with self.bench(tmp_path, max_concurrent=2) as bench:
            assert bench.driver.max_in_flight == 2
            names = [str(number) for number in range(4)]
            bench.stage.hold(*(f"{name}/workflow" for name in names))
            tasks = [bench.start(bench.request(name)) for name in names]
            await bench.stage.told("0/workflow")
            await bench.stage.told("1/workflow")
            await bench.stage.settle()
            assert sorted(bench.stage.scenes) == ["0/workflow", "1/workflow"]
            bench.stage.release_all()
            outcomes = [await bench.outcome(task) for task in tasks]
        assert {outcome.workflow.status for outcome in outcomes} == {RolloutStatus.SUCCESS}

    async def test_a_backend_without_a_limit_is_sent_all(self, tmp_path: Path) -> None:
        """None is no "some default"."""
        async with self.bench(tmp_path, max_concurrent=None) as bench:
            assert bench.driver.max_in_flight is None
            names = [str(number) for number in range(12)]
            bench.stage.hold(*(f"{name}/workflow" for name in names))
            tasks = [bench.start(bench.request(name)) for name in names]
            for name in names:
                await bench.stage.told(f"{name}/workflow")
            bench.stage.release_all()
            for task in tasks:
                await bench.outcome(task)

    async def test_a_deadline_starts_with_the_execution(self, tmp_path: Path) -> None:
        """Waiting for room costs a rollout nothing of its time."""

        def deadline(request: ExecutionRequest) -> float:
            return self.patience_sec if request.id == "first" else 5 * SHORT_SEC

        wiring: dict[str, Any] = {"max_concurrent": 1, "deadline": deadline}
        async with self.bench(tmp_path, workflow=Player, **wiring) as bench:
            bench.stage.hold("first/workflow")
            first = bench.start(bench.request("first"))
            await bench.stage.told("first/workflow")
            second = bench.start(bench.request("second"))
            await asyncio.sleep(6 * SHORT_SEC)  # real time: the deadline is kept by a real clock
            bench.stage.release("first/workflow")
            await bench.outcome(first)
            outcome = await bench.outcome(second)
        assert outcome.workflow.status is RolloutStatus.SUCCESS, outcome.workflow.err_message

    # Cancelling

    async def test_cancelling_the_task_cancels_the_rollout(self, tmp_path: Path) -> None:
        """User code is interrupted, and its slot is free for the next rollout."""
        wiring: dict[str, Any] = {"workflow": Stubborn, "max_concurrent": 1}
        async with self.bench(tmp_path, **wiring) as bench:
            bench.stage.hold("a/workflow")
            task = bench.start(bench.request("a"))
            await bench.stage.told("a/workflow")
            task.cancel()
            await asyncio.wait([task], timeout=self.patience_sec)
            assert task.cancelled(), "the cancellation did not pass through run()"
            await bench.stage.told("a/interrupted")
            outcome = await bench.run(bench.request("b"))
        assert outcome.workflow.status is RolloutStatus.SUCCESS
        assert contents(outcome) == [message["content"] for message in an_answer()]

    async def test_cancelling_one_that_waits_for_room_leaves_the_others_alone(
        self, tmp_path: Path
    ) -> None:
        """It never runs, and takes no slot with it."""
        async with self.bench(tmp_path, max_concurrent=1) as bench:
            bench.stage.hold("a/workflow")
            first = bench.start(bench.request("a"))
            await bench.stage.told("a/workflow")
            waiting, last = (bench.start(bench.request(name)) for name in "bc")
            await bench.stage.settle()
            waiting.cancel()
            await asyncio.wait([waiting], timeout=self.patience_sec)
            bench.stage.release("a/workflow")
            outcomes = [await bench.outcome(task) for task in (first, last)]
            assert "b/workflow" not in bench.stage.scenes
        assert {outcome.workflow.status for outcome in outcomes} == {RolloutStatus.SUCCESS}

    # For the run header

    async def test_the_description_is_one_line(self, tmp_path: Path) -> None:
        """It stands in the header of a run."""
        async with self.bench(tmp_path) as bench:
            assert bench.driver.description.strip()
            assert len(bench.driver.description.splitlines()) == 1
