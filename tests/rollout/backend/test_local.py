"""LocalBackend runs a rollout in a slot, answers once for each half, and keeps rollouts apart."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.rollout.agent_workflow import AgentWorkflowOutput
from osmosis_ai.rollout.artifacts import ARTIFACT_ROOT_VARIABLE
from osmosis_ai.rollout.backend.base import Capacity, ExecutionBackend, RolloutState
from osmosis_ai.rollout.backend.local import LocalBackend
from osmosis_ai.rollout.context import (
    AgentWorkflowContext,
    GraderContext,
    RolloutContext,
    SampleSource,
    get_rollout_context,
)
from osmosis_ai.rollout.types import (
    AgentWorkflowConfig,
    ExecutionRequest,
    ExecutionResult,
    RolloutSample,
    RolloutStatus,
)
from tests.rollout.programs import (
    BARE_FAILURE,
    SAID,
    Answering,
    Answers,
    RewardOne,
    a_request,
    ambient,
    execute,
    expect_idle,
    grader_of,
    limited,
    turns,
    workflow_of,
)


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(ARTIFACT_ROOT_VARIABLE, str(tmp_path))
    return tmp_path


async def fail(ctx: Any) -> None:
    raise ValueError("boom")


async def answer_nothing(ctx: Any) -> AgentWorkflowOutput:
    return AgentWorkflowOutput(messages=None)


TRACE: ContextVar[str] = ContextVar("trace", default="of")


class TestAnswers:
    """Contract 3.4 and facts 10.3."""

    async def test_both_halves_are_answered_in_order(self) -> None:
        answers = await execute(LocalBackend(workflow=Answering, grader=RewardOne), a_request())
        assert answers.kinds == ["workflow", "grader"]
        assert answers.workflow.succeeded
        assert answers.grader.succeeded
        assert answers.grader.sample == RolloutSample(messages=SAID, label="4", reward=1.0)

    async def test_a_graded_sample_is_the_workflows(self) -> None:
        answers = await execute(LocalBackend(workflow=Answering, grader=RewardOne), a_request())
        assert answers.grader.sample is answers.workflow.sample

    async def test_without_a_grader_callback_nothing_is_graded(self) -> None:
        graded: list[Any] = []

        async def judge(ctx: GraderContext) -> None:
            graded.append(ctx)

        backend = LocalBackend(workflow=Answering, grader=grader_of(judge))
        answers = await execute(backend, a_request(), graded=False)
        assert answers.kinds == ["workflow"]
        assert graded == []

    @pytest.mark.parametrize(
        "fields",
        [{"label": ""}, {"label": None, "metadata": {}}, {"label": None, "metadata": {"a": 1}}],
    )
    async def test_an_empty_label_or_metadata_is_graded(self, fields: dict[str, Any]) -> None:
        backend = LocalBackend(workflow=Answering, grader=RewardOne)
        assert (await execute(backend, a_request(**fields))).grader.succeeded

    async def test_neither_label_nor_metadata_is_a_bare_failure(self) -> None:
        backend = LocalBackend(workflow=Answering, grader=RewardOne)
        answers = await execute(backend, a_request(label=None))
        assert answers.workflow.succeeded
        assert answers.grader == BARE_FAILURE

    async def test_no_grader_is_a_bare_failure_beside_a_success(self) -> None:
        answers = await execute(LocalBackend(workflow=Answering), a_request())
        assert answers.workflow.succeeded
        assert answers.grader == BARE_FAILURE

    async def test_a_failed_workflow_is_not_graded(self) -> None:
        backend = LocalBackend(workflow=workflow_of(fail), grader=RewardOne)
        answers = await execute(backend, a_request())
        assert (answers.workflow.err_message, answers.grader) == ("boom", BARE_FAILURE)

    async def test_a_failed_grade_keeps_the_sample(self) -> None:
        backend = LocalBackend(workflow=Answering, grader=grader_of(fail))
        answers = await execute(backend, a_request())
        assert answers.workflow.succeeded
        assert answers.grader.err_message == "boom"
        assert answers.grader.sample is answers.workflow.sample

    async def test_a_workflow_without_a_sample_is_graded_and_fails_there(self) -> None:
        """A grader may judge what the workflow left in its artifacts, and then says so itself."""
        backend = LocalBackend(workflow=workflow_of(answer_nothing), grader=RewardOne)
        answers = await execute(backend, a_request())
        assert answers.workflow.succeeded
        assert answers.workflow.sample is None
        assert "no sample to reward" in str(answers.grader.err_message)

    async def test_grading_waits_for_the_workflows_callback(self) -> None:
        """A driver takes its snapshot of the sample there, before a grader can touch it."""
        order: list[str] = []

        async def judge(ctx: GraderContext) -> None:
            order.append("judge")
            ctx.set_reward(1.0)

        async def slow(result: ExecutionResult) -> None:
            await asyncio.sleep(0)
            order.append("answered")

        backend = LocalBackend(workflow=Answering, grader=grader_of(judge))
        await backend.execute(a_request(), slow, slow)
        assert order == ["answered", "judge", "answered"]

    @pytest.mark.parametrize("half", ["workflow", "grader"])
    async def test_a_callback_that_raises_ends_the_rollout_and_frees_its_slot(
        self, half: str
    ) -> None:
        async def broken(result: ExecutionResult) -> None:
            raise OSError("controller is gone")

        backend = LocalBackend(workflow=Answering, grader=RewardOne)
        answers = Answers()
        with pytest.raises(OSError, match="controller is gone"):
            await backend.execute(
                a_request(),
                broken if half == "workflow" else answers.on_workflow,
                broken if half == "grader" else answers.on_grader,
            )
        assert answers.kinds == ([] if half == "workflow" else ["workflow"])
        expect_idle(backend)

    async def test_a_callbacks_own_cancellation_is_passed_on(self) -> None:
        """It is the caller's failure, as any other: nothing was asked to stop here."""

        async def broken(result: ExecutionResult) -> None:
            raise asyncio.CancelledError

        backend, answers = LocalBackend(workflow=Answering, grader=RewardOne), Answers()
        with pytest.raises(asyncio.CancelledError):
            await backend.execute(a_request(), broken, answers.on_grader)
        assert answers.said == []
        expect_idle(backend)


class TestRunHalves:
    """`run_workflow` and `run_grader` for a harness of one's own."""

    async def test_each_half_alone(self) -> None:
        backend = LocalBackend(workflow=Answering, grader=RewardOne)
        result = await backend.run_workflow(a_request())
        assert result.sample == RolloutSample(messages=SAID, label="4")
        graded = await backend.run_grader(a_request(), result)
        assert graded.sample is not None
        assert graded.sample.reward == 1.0

    async def test_without_a_grader_the_result_comes_back_as_it_is(self) -> None:
        backend = LocalBackend(workflow=Answering)
        result = await backend.run_workflow(a_request())
        assert await backend.run_grader(a_request(), result) is result

    async def test_they_take_no_slot(self) -> None:
        seen: list[int] = []

        async def run(ctx: Any) -> Any:
            seen.append(backend.capacity().running)

        backend = LocalBackend(workflow=workflow_of(run))
        await backend.run_workflow(a_request())
        assert seen == [0]

    async def test_a_source_of_the_ambient_context_gives_the_sample(self) -> None:
        sample = RolloutSample(messages=SAID)

        class Session(SampleSource):
            async def get_sample(self) -> RolloutSample:
                return sample

        async def run(ctx: Any) -> None:
            ambient().set_sample_source(Session())

        backend = LocalBackend(workflow=workflow_of(run))
        with RolloutContext(rollout_id="r") as context:
            assert (await backend.run_workflow(a_request())).sample is sample
            assert context.sample_source is not None


class TestContext:
    """Contract 3.6, 3.8 and 3.11."""

    async def test_each_rollout_has_a_context_of_its_own_name(self) -> None:
        seen: list[RolloutContext] = []

        async def see(ctx: Any) -> Any:
            seen.append(ambient())
            return SAID

        async def judge(ctx: GraderContext) -> None:
            seen.append(ambient())
            ctx.set_reward(1.0)

        backend = LocalBackend(workflow=workflow_of(see), grader=grader_of(judge))
        await execute(backend, a_request("mine"))
        assert seen[0] is seen[1]
        assert seen[0].rollout_id == "mine"
        assert get_rollout_context() is None

    async def test_the_ambient_context_of_this_rollout_is_used_as_it_is(self) -> None:
        seen: list[RolloutContext] = []

        async def see(ctx: Any) -> Any:
            seen.append(ambient())

        with RolloutContext("http://model", "key", "r") as context:
            await execute(LocalBackend(workflow=workflow_of(see)), a_request("r"))
            assert get_rollout_context() is context
        assert seen == [context]
        assert seen[0] is context

    async def test_a_harness_context_serves_many_rollouts(self, root: Path) -> None:
        """Its model, project and root are theirs; each has its own name and source."""
        seen: dict[str, RolloutContext] = {}

        async def see(ctx: AgentWorkflowContext[Any]) -> Any:
            context = ambient()
            context.set_sample_source(Fixed())
            seen[context.rollout_id] = context

        async def judge(ctx: GraderContext) -> None:
            assert ctx.project_path == "/project"
            ctx.set_reward(1.0)

        backend = LocalBackend(workflow=workflow_of(see), grader=grader_of(judge))
        with RolloutContext(
            "http://model", "key", project_path="/project", artifact_root=root / "runs"
        ):
            said = await asyncio.gather(*(execute(backend, a_request(name)) for name in "abc"))
        assert all(answers.grader.succeeded for answers in said)
        assert sorted(seen) == ["a", "b", "c"]
        assert {context.chat_completions_url for context in seen.values()} == {"http://model"}
        assert (root / "runs" / "a" / "artifacts").is_dir()

    async def test_a_rollout_inside_a_rollout_has_its_own_source(self) -> None:
        async def inner(ctx: Any) -> Any:
            ambient().set_sample_source(Fixed())

        async def outer(ctx: Any) -> Any:
            ambient().set_sample_source(Fixed())
            before = ambient()
            answers = await execute(LocalBackend(workflow=workflow_of(inner)), a_request("inner"))
            assert ambient() is before
            assert answers.workflow.succeeded, answers.workflow.err_message
            return SAID

        answers = await execute(LocalBackend(workflow=workflow_of(outer)), a_request("outer"))
        assert answers.workflow.succeeded, answers.workflow.err_message

    async def test_concurrent_rollouts_never_see_each_others(self) -> None:
        async def see(ctx: AgentWorkflowContext[Any]) -> Any:
            for _ in range(3):
                await asyncio.sleep(0)
                assert ctx.metadata is not None
                assert ambient().rollout_id == ctx.metadata["id"]
            return [{"seen": ambient().rollout_id}]

        async def judge(ctx: GraderContext) -> None:
            await asyncio.sleep(0)
            assert ctx.sample is not None
            assert ctx.metadata is not None
            assert ambient().rollout_id == ctx.metadata["id"] == ctx.sample.messages[0]["seen"]
            ctx.set_reward(1.0)

        backend = LocalBackend(
            workflow=workflow_of(see), grader=grader_of(judge), workflow_config=limited(64)
        )
        requests = [a_request(str(index), metadata={"id": str(index)}) for index in range(500)]
        said = await asyncio.gather(*(execute(backend, request) for request in requests))
        assert [answers.grader.err_message for answers in said] == [None] * 500
        expect_idle(backend)

    async def test_a_grader_sees_the_variables_its_workflow_set(self) -> None:
        """A log line of either half can carry the same trace; the next rollout starts anew."""
        seen: list[str] = []

        async def run(ctx: Any) -> Any:
            TRACE.set(f"{TRACE.get()} {ambient().rollout_id}")
            return SAID

        async def judge(ctx: GraderContext) -> None:
            seen.append(TRACE.get())
            ctx.set_reward(1.0)

        backend = LocalBackend(workflow=workflow_of(run), grader=grader_of(judge))
        for name in "ab":
            await execute(backend, a_request(name))
        assert seen == ["of a", "of b"]
        assert TRACE.get() == "of"

    async def test_a_thread_sees_the_context_it_was_started_in(self) -> None:
        async def see(ctx: Any) -> Any:
            context = await asyncio.to_thread(get_rollout_context)
            return [{"seen": context.rollout_id if context else None}]

        backend = LocalBackend(workflow=workflow_of(see))
        answers = await execute(backend, a_request("mine"))
        assert answers.workflow.sample is not None
        assert answers.workflow.sample.messages == [{"seen": "mine"}]

    async def test_workflow_and_grader_share_the_artifacts(self, root: Path) -> None:
        async def write(ctx: AgentWorkflowContext[Any]) -> Any:
            assert ctx.artifacts_dir is not None
            (ctx.artifacts_dir / "note.txt").write_text("4")
            return SAID

        async def read(ctx: GraderContext) -> None:
            assert ctx.artifacts_dir == root / "r" / "artifacts"
            ctx.set_reward(float((ctx.artifacts_dir / "note.txt").read_text()))

        backend = LocalBackend(workflow=workflow_of(write), grader=grader_of(read))
        answers = await execute(backend, a_request())
        assert answers.grader.sample is not None
        assert answers.grader.sample.reward == 4.0

    async def test_an_unwritable_root_costs_the_directory_alone(self) -> None:
        seen: list[Path | None] = []

        async def see(ctx: Any) -> Any:
            seen.append(ctx.artifacts_dir)
            if isinstance(ctx, GraderContext):
                ctx.set_reward(1.0)
            return SAID

        backend = LocalBackend(workflow=workflow_of(see), grader=grader_of(see))
        with RolloutContext(artifact_root=Path("/dev/null/root")):
            answers = await execute(backend, a_request())
        assert seen == [None, None]
        assert answers.grader.succeeded

    async def test_the_root_is_resolved_for_each_execution(
        self, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        backend = LocalBackend(workflow=Answering)
        await execute(backend, a_request("first"))
        monkeypatch.setenv(ARTIFACT_ROOT_VARIABLE, str(root / "moved"))
        await execute(backend, a_request("second"))
        assert (root / "first" / "artifacts").is_dir()
        assert (root / "moved" / "second" / "artifacts").is_dir()

    async def test_no_trajectory_is_written(self, root: Path) -> None:
        """That is the server's, or the driver's."""
        await execute(LocalBackend(workflow=Answering, grader=RewardOne), a_request())
        assert [path.name for path in (root / "r").iterdir()] == ["artifacts"]


class TestSlots:
    """Contract 3.9."""

    @pytest.mark.parametrize(
        ("config", "at_once"), [(None, 4), (limited(1), 1), (limited(7), 7), (limited(None), 20)]
    )
    async def test_so_many_run_at_once(
        self, config: AgentWorkflowConfig | None, at_once: int
    ) -> None:
        hold = asyncio.Event()

        async def run(ctx: Any) -> Any:
            await hold.wait()
            return SAID

        backend = LocalBackend(workflow=workflow_of(run), workflow_config=config)
        started = [asyncio.create_task(execute(backend, a_request(str(i)))) for i in range(20)]
        await turns(3)
        max_concurrent = None if at_once == 20 else at_once
        assert backend.capacity() == Capacity(max_concurrent, at_once, 20 - at_once)
        assert backend.health() == {
            "status": "ok",
            "concurrency": {
                "max_concurrent": max_concurrent,
                "queued": 20 - at_once,
                "running": at_once,
            },
        }
        hold.set()
        assert all(answers.workflow.succeeded for answers in await asyncio.gather(*started))
        expect_idle(backend)

    async def test_the_queue_is_served_in_order(self) -> None:
        order: list[str] = []

        async def run(ctx: Any) -> Any:
            order.append(ambient().rollout_id)
            await asyncio.sleep(0)

        backend = LocalBackend(workflow=workflow_of(run), workflow_config=limited(2))
        names = [str(index) for index in range(9)]
        await asyncio.gather(*(execute(backend, a_request(name)) for name in names))
        assert order == names

    async def test_a_newcomer_does_not_overtake_the_queue(self) -> None:
        order: list[str] = []

        async def run(ctx: Any) -> Any:
            order.append(ambient().rollout_id)

        async def late(result: ExecutionResult) -> None:
            started.append(asyncio.create_task(execute(backend, a_request("late"))))

        backend = LocalBackend(workflow=workflow_of(run), workflow_config=limited(1))
        started = [
            asyncio.create_task(backend.execute(a_request("first"), late)),
            asyncio.create_task(execute(backend, a_request("waiting"))),
        ]
        await asyncio.gather(*started[:2])
        await started[2]
        assert order == ["first", "waiting", "late"]

    async def test_a_slot_is_held_until_the_last_callback_has_ended(self) -> None:
        running: list[int] = []

        async def watch(result: ExecutionResult) -> None:
            await asyncio.sleep(0)
            running.append(backend.capacity().running)

        async def judge(ctx: GraderContext) -> None:
            running.append(backend.capacity().running)
            ctx.set_reward(1.0)

        backend = LocalBackend(workflow=Answering, grader=grader_of(judge))
        await backend.execute(a_request(), watch, watch)
        assert running == [1, 1, 1]
        expect_idle(backend)

    async def test_a_status_follows_the_rollout(self) -> None:
        states: list[RolloutState | None] = []

        async def look(*_: Any) -> None:
            states.append(backend.rollout_status("r"))

        async def run(ctx: Any) -> Any:
            await look()
            return SAID

        async def judge(ctx: GraderContext) -> None:
            await look()
            ctx.set_reward(1.0)

        backend = LocalBackend(
            workflow=workflow_of(run), grader=grader_of(judge), workflow_config=limited(1)
        )
        await backend.execute(a_request(), look, look)
        await look()
        assert [state and state.status for state in states] == [
            *("running", "running", "grading", "grading", None)
        ]

    async def test_a_waiting_rollout_is_queued(self) -> None:
        hold = asyncio.Event()

        async def run(ctx: Any) -> Any:
            await hold.wait()

        backend = LocalBackend(workflow=workflow_of(run), workflow_config=limited(1))
        started = [asyncio.create_task(execute(backend, a_request(name))) for name in "ab"]
        await turns(3)
        assert backend.rollout_status("b") == RolloutState(RolloutStatus.QUEUED)
        assert backend.rollout_status("nobody") is None
        assert backend.has_capacity()
        hold.set()
        await asyncio.gather(*started)

    def test_one_backend_serves_several_event_loops(self) -> None:
        """A notebook or a script calls `asyncio.run` more than once."""
        backend = LocalBackend(workflow=Answering, grader=RewardOne, workflow_config=limited(2))

        async def run_some() -> list[Answers]:
            return await asyncio.gather(*(execute(backend, a_request(name)) for name in "abcde"))

        for _ in range(3):
            assert all(answers.grader.succeeded for answers in asyncio.run(run_some()))
            expect_idle(backend)

    def test_a_loop_that_ended_early_leaves_no_slot_taken(self) -> None:
        async def wait(ctx: Any) -> None:
            await asyncio.Event().wait()

        backend = LocalBackend(workflow=workflow_of(wait), workflow_config=limited(1))

        async def leave() -> None:
            started.extend(asyncio.create_task(execute(backend, a_request(name))) for name in "abc")
            await turns(3)

        started: list[asyncio.Task[Answers]] = []
        asyncio.run(leave())
        assert all(task.cancelled() for task in started)
        expect_idle(backend)


class TestCopies:
    async def test_a_repeated_prompt_is_not_changed_by_its_rollouts(self) -> None:
        async def run(ctx: AgentWorkflowContext[Any]) -> Any:
            ctx.prompt.append({"role": "assistant", "content": "4"})
            return ctx.prompt

        backend = LocalBackend(workflow=workflow_of(run))
        request = a_request()
        for _ in range(2):
            sample = (await execute(backend, request)).workflow.sample
            assert sample is not None
            assert len(sample.messages) == 2
        assert len(request.prompt) == 1


class TestBase:
    """What a backend does that implements `execute` alone."""

    async def test_everything_but_execute_has_an_answer(self) -> None:
        class Least(ExecutionBackend):
            async def execute(
                self,
                request: ExecutionRequest,
                on_workflow_complete: Any,
                on_grader_complete: Any = None,
            ) -> None: ...

        backend = Least()
        await execute(backend, a_request())
        assert not backend.capture_final_result
        assert backend.has_capacity()
        assert backend.capacity() is None
        assert backend.rollout_status("r") is None
        assert await backend.cancel_rollouts(all=True) == {}
        assert backend.health() == {"status": "ok"}
        await backend.shutdown()


class Fixed(SampleSource):
    async def get_sample(self) -> RolloutSample:
        return RolloutSample(messages=SAID)
