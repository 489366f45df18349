"""What user code does becomes one structured result, and only a requested cancellation passes."""

from __future__ import annotations

import asyncio
import copy
import gc
import logging
import re
import sys
from bdb import BdbQuit
from collections import OrderedDict, UserDict
from contextvars import Context, ContextVar, copy_context
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from osmosis_ai.rollout.agent_workflow import AgentWorkflow, AgentWorkflowOutput
from osmosis_ai.rollout.context import (
    AgentWorkflowContext,
    GraderContext,
    RolloutContext,
    SampleSource,
    get_rollout_context,
)
from osmosis_ai.rollout.execution import (
    categorize,
    failure_from,
    own_copy,
    run_grader,
    run_workflow,
)
from osmosis_ai.rollout.grader import Grader, NoResult
from osmosis_ai.rollout.program import Program
from osmosis_ai.rollout.raised import error_text
from osmosis_ai.rollout.types import (
    AgentWorkflowConfig,
    ExecutionRequest,
    ExecutionResult,
    GraderConfig,
    RolloutErrorCategory,
    RolloutSample,
    RolloutStatus,
)
from tests.rollout.programs import (
    SAID,
    Answering,
    Grade,
    Run,
    a_request,
    ambient,
    grader_of,
    workflow_of,
)

TIMEOUT = RolloutErrorCategory.TIMEOUT
INVALID = RolloutErrorCategory.VALIDATION_ERROR
AGENT = RolloutErrorCategory.AGENT_ERROR


class Own(BaseException):
    """Neither an Exception nor one of Python's own."""


class BadText(ValueError):
    def __str__(self) -> str:
        raise RuntimeError("no text")


ERRORS: list[tuple[BaseException, RolloutErrorCategory, str]] = [
    (TimeoutError("late"), TIMEOUT, "late"),
    (TimeoutError(), TIMEOUT, "TimeoutError"),
    (ValueError("boom"), INVALID, "boom"),
    (TypeError("boom"), INVALID, "boom"),
    (AssertionError(), INVALID, "AssertionError"),
    (UnicodeError("boom"), INVALID, "boom"),
    (BadText("boom"), INVALID, "BadText"),
    (KeyError("a"), AGENT, "'a'"),
    (RuntimeError(""), AGENT, "RuntimeError"),
    (OSError(2, "gone"), AGENT, "[Errno 2] gone"),
    (RecursionError("deep"), AGENT, "deep"),
    (StopAsyncIteration(), AGENT, "StopAsyncIteration"),
    (asyncio.CancelledError(), AGENT, "CancelledError"),
    (SystemExit(3), AGENT, "3"),
    (SystemExit(), AGENT, "SystemExit"),
    (Own("mine"), AGENT, "mine"),
    (ExceptionGroup("all", [ValueError("boom")]), AGENT, "all (1 sub-exception)"),
    (BaseExceptionGroup("all", [Own()]), AGENT, "all (1 sub-exception)"),
    (RuntimeError("lone \ud800"), AGENT, "lone \ufffd"),
]


def by_name(value: object) -> str:
    return type(value).__name__ if isinstance(value, BaseException) else ""


async def work(
    run: Run | type[AgentWorkflow[Any]],
    *,
    request: ExecutionRequest | None = None,
    context: RolloutContext | None = None,
    config: AgentWorkflowConfig | None = None,
    artifacts_dir: Path | None = None,
) -> ExecutionResult:
    workflow = run if isinstance(run, type) else workflow_of(run)
    return await run_workflow(
        Program(workflow, config),
        request or a_request(),
        context=context or RolloutContext(rollout_id="r"),
        artifacts_dir=artifacts_dir,
    )


async def grade(
    judge: Grade | type[Grader],
    *,
    request: ExecutionRequest | None = None,
    sample: RolloutSample | None = None,
    context: RolloutContext | None = None,
    config: GraderConfig | None = None,
    artifacts_dir: Path | None = None,
) -> ExecutionResult:
    grader = judge if isinstance(judge, type) else grader_of(judge)
    return await run_grader(
        Program(Answering, grader=grader, grader_config=config),
        request or a_request(),
        ExecutionResult(status=RolloutStatus.SUCCESS, sample=sample),
        context=context or RolloutContext(rollout_id="r"),
        artifacts_dir=artifacts_dir,
    )


def expect_failure(
    result: ExecutionResult, category: RolloutErrorCategory, message: str, phase: str
) -> None:
    assert result.status is RolloutStatus.FAILURE
    assert (result.err_category, result.err_message, result.phase) == (category, message, phase)


class TestErrors:
    """Contract 3.2."""

    @pytest.mark.parametrize(("error", "category", "message"), ERRORS, ids=by_name)
    async def test_what_run_raises_is_a_failed_workflow(
        self, error: BaseException, category: RolloutErrorCategory, message: str
    ) -> None:
        async def run(ctx: AgentWorkflowContext[Any]) -> None:
            raise error

        result = await work(run)
        expect_failure(result, category, message, "workflow")
        assert (result.sample, result.no_result) == (None, None)

    @pytest.mark.parametrize(("error", "category", "message"), ERRORS, ids=by_name)
    async def test_what_grade_raises_is_a_failed_grade_that_keeps_the_sample(
        self, error: BaseException, category: RolloutErrorCategory, message: str
    ) -> None:
        async def judge(ctx: GraderContext) -> None:
            raise error

        sample = RolloutSample(messages=SAID)
        result = await grade(judge, sample=sample)
        expect_failure(result, category, message, "grader")
        assert result.sample is sample

    async def test_what_a_constructor_raises_is_a_failed_workflow(self) -> None:
        class Broken(AgentWorkflow[AgentWorkflowConfig]):
            def __init__(self, config: Any = None) -> None:
                raise ValueError("no weights")

            async def run(self, ctx: AgentWorkflowContext[Any]) -> None: ...

        expect_failure(await work(Broken), INVALID, "no weights", "workflow")

    async def test_what_a_graders_constructor_raises_is_a_failed_grade(self) -> None:
        class Broken(Grader):
            def __init__(self, config: Any = None) -> None:
                raise KeyError("judge")

            async def grade(self, ctx: GraderContext) -> None: ...

        result = await grade(Broken, sample=RolloutSample())
        expect_failure(result, AGENT, "'judge'", "grader")
        assert result.sample is not None

    async def test_an_error_of_a_task_group_is_a_result(self) -> None:
        async def fail() -> None:
            raise Own

        async def run(ctx: AgentWorkflowContext[Any]) -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(fail())

        result = await work(run)
        assert result.err_category is AGENT
        assert result.err_message is not None
        assert "unhandled errors in a TaskGroup" in result.err_message

    async def test_sys_exit_in_a_thread_is_a_result(self) -> None:
        async def run(ctx: AgentWorkflowContext[Any]) -> None:
            await asyncio.to_thread(sys.exit, "no key")

        expect_failure(await work(run), AGENT, "no key", "workflow")

    async def test_a_task_that_cancels_itself_inside_is_a_result(self) -> None:
        """An awaited task that somebody else cancelled raises CancelledError, too."""

        async def run(ctx: AgentWorkflowContext[Any]) -> None:
            inner = asyncio.create_task(asyncio.Event().wait())
            asyncio.get_running_loop().call_soon(inner.cancel)
            await inner

        expect_failure(await work(run), AGENT, "CancelledError", "workflow")

    async def test_keyboard_interrupt_passes(self) -> None:
        """Ctrl-C ends the process; a rollout must not eat it."""

        async def interrupt(ctx: object) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            await work(interrupt)
        with pytest.raises(KeyboardInterrupt):
            await grade(interrupt, sample=RolloutSample())
        assert get_rollout_context() is None

    @pytest.mark.parametrize("left", [BdbQuit(), ExceptionGroup("tools", [BdbQuit()])])
    async def test_leaving_a_debugger_passes(self, left: Exception) -> None:
        """`q` at its prompt says nothing of the agent, and the person wants out."""

        async def leave(ctx: object) -> None:
            raise left

        with pytest.raises(BdbQuit):
            await work(leave)
        with pytest.raises(BdbQuit):
            await grade(leave, sample=RolloutSample())

    async def test_a_failure_says_what_was_raised_and_where(self, tmp_path: Path) -> None:
        async def run(ctx: object) -> None:
            raise KeyError("answer")

        place = r"KeyError: 'answer' \(test_execution\.py:\d+, in run\)"
        context = RolloutContext(rollout_id="r", project_path=str(Path(__file__).parent))
        assert re.fullmatch(place, str((await work(run, context=context)).err_summary))
        graded = await grade(run, sample=RolloutSample(), context=context)
        assert re.fullmatch(place, str(graded.err_summary))

    async def test_what_cannot_be_a_sample_is_known_by_where_it_came_from(self) -> None:
        async def run(ctx: object) -> Any:
            return ["a", "b"]

        assert (await work(run)).err_summary == (
            "ValidationError: messages[0] must be a dict, got str; it is in what run() returned"
        )

    async def test_the_traceback_is_logged_once_with_the_rollouts_id(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def run(ctx: AgentWorkflowContext[Any]) -> None:
            raise ValueError("boom")

        with caplog.at_level(logging.ERROR, "osmosis_ai"):
            await work(run, request=a_request("row-7"))
        (record,) = caplog.records
        assert record.getMessage() == "rollout row-7: workflow failed"
        assert record.exc_info is not None
        assert isinstance(record.exc_info[1], ValueError)

    async def test_no_result_is_said_as_such(self) -> None:
        async def judge(ctx: GraderContext) -> None:
            raise NoResult("the judge \ud800 is down")

        result = await grade(judge, sample=RolloutSample())
        assert result.no_result == result.err_message == "the judge \ufffd is down"
        assert result.err_category is AGENT

    def test_no_result_without_a_reason_is_still_one(self) -> None:
        assert failure_from(NoResult(), phase="grader").no_result == "NoResult"

    def test_categories_follow_the_class_tree(self) -> None:
        class OwnTimeout(TimeoutError): ...

        assert categorize(OwnTimeout()) is TIMEOUT
        assert categorize(UnicodeDecodeError("utf-8", b"", 0, 1, "bad")) is INVALID

    def test_an_error_without_readable_text_has_its_class_name(self) -> None:
        assert error_text(BadText()) == "BadText"


class TestSample:
    """Contract 3.7."""

    async def test_a_list_is_the_conversation(self) -> None:
        result = await work(Answering)
        assert result.succeeded
        assert result.sample == RolloutSample(messages=SAID, label="4")
        assert result.phase == "workflow"

    async def test_an_output_brings_metrics_and_keeps_its_info(self) -> None:
        async def run(ctx: AgentWorkflowContext[Any]) -> AgentWorkflowOutput:
            return AgentWorkflowOutput(messages=SAID, metrics={"turns": 2}, info={"mine": object()})

        result = await work(run)
        assert result.sample == RolloutSample(messages=SAID, label="4", metrics={"turns": 2.0})

    async def test_the_sample_takes_no_snapshot_for_the_archive(self) -> None:
        """Whoever archives takes it, and a rollout that is not archived pays for none."""
        result = await work(Answering)
        assert result.sample is not None
        assert "trajectory_messages" not in result.sample.model_fields_set
        assert result.sample.messages is SAID

    async def test_an_output_without_messages_is_a_success_without_sample(self) -> None:
        async def run(ctx: AgentWorkflowContext[Any]) -> AgentWorkflowOutput:
            return AgentWorkflowOutput(metrics={"turns": 1.0})

        result = await work(run, context=with_source(RolloutSample()))
        assert (result.status, result.sample) == (RolloutStatus.SUCCESS, None)

    async def test_a_subclass_of_output_is_one(self) -> None:
        class Scored(AgentWorkflowOutput):
            score: float = 0.0

        async def run(ctx: AgentWorkflowContext[Any]) -> Scored:
            return Scored(messages=SAID, score=0.5)

        assert (await work(run)).sample == RolloutSample(messages=SAID, label="4")

    async def test_nothing_returned_and_nothing_registered_is_a_success_without_sample(
        self,
    ) -> None:
        async def run(ctx: AgentWorkflowContext[Any]) -> None: ...

        result = await work(run)
        assert (result.status, result.sample) == (RolloutStatus.SUCCESS, None)

    async def test_a_registered_source_gives_the_sample_as_it_is(self) -> None:
        sample = RolloutSample(messages=SAID)

        async def run(ctx: AgentWorkflowContext[Any]) -> None:
            ambient().set_sample_source(Source(sample))

        result = await work(run)
        assert result.sample is sample
        assert result.sample.label is None

    async def test_an_explicit_output_beats_a_registered_source(self) -> None:
        async def run(ctx: AgentWorkflowContext[Any]) -> Any:
            ambient().set_sample_source(Source(RuntimeError("never asked")))
            return SAID

        assert (await work(run)).sample == RolloutSample(messages=SAID, label="4")

    async def test_a_second_source_fails_the_workflow(self) -> None:
        async def run(ctx: AgentWorkflowContext[Any]) -> None:
            for _ in range(2):
                ambient().set_sample_source(Source(RolloutSample()))

        result = await work(run)
        assert result.err_category is INVALID
        assert "already has a sample source" in str(result.err_message)

    async def test_a_capture_is_the_source_before_the_code_runs(self) -> None:
        """So the code finds whatever the capture put into its context."""
        sample = RolloutSample(messages=SAID)

        def capture(context: RolloutContext) -> SampleSource:
            context.chat_completions_url = "http://recorder"
            return Source(sample)

        async def run(ctx: AgentWorkflowContext[Any]) -> None:
            assert ambient().chat_completions_url == "http://recorder"

        context = RolloutContext(rollout_id="r")
        program = Program(workflow_of(run), capture=capture)
        result = await run_workflow(program, a_request(), context=context)
        assert result.sample is sample

    async def test_a_capture_that_fails_fails_the_workflow(self) -> None:
        def capture(context: RolloutContext) -> SampleSource:
            raise RuntimeError("no endpoint")

        context = RolloutContext(rollout_id="r")
        program = Program(Answering, capture=capture)
        result = await run_workflow(program, a_request(), context=context)
        expect_failure(result, AGENT, "no endpoint", "workflow")

    async def test_a_source_that_fails_fails_the_workflow(self) -> None:
        result = await work(
            workflow_of(nothing), context=with_source(RuntimeError("session is gone"))
        )
        expect_failure(result, AGENT, "session is gone", "workflow")

    async def test_a_source_that_gives_no_sample_fails_the_workflow(self) -> None:
        result = await work(workflow_of(nothing), context=with_source({"messages": []}))
        expect_failure(
            result, INVALID, "the sample source returned dict, not a RolloutSample", "workflow"
        )

    @pytest.mark.parametrize("returned", [{"messages": []}, "4", 4, (SAID,), RolloutSample()])
    async def test_another_return_value_is_refused_with_advice(self, returned: Any) -> None:
        async def run(ctx: AgentWorkflowContext[Any]) -> Any:
            return returned

        result = await work(run)
        assert result.err_category is INVALID
        assert f"run() returned {type(returned).__name__}; return an" in str(result.err_message)

    async def test_a_list_that_is_no_conversation_is_refused(self) -> None:
        async def run(ctx: AgentWorkflowContext[Any]) -> Any:
            return ["4"]

        result = await work(run)
        assert result.err_category is INVALID
        assert "messages[0] must be a dict, got str" in str(result.err_message)

    async def test_a_metric_spoilt_after_construction_is_refused(self) -> None:
        async def run(ctx: AgentWorkflowContext[Any]) -> Any:
            output = AgentWorkflowOutput(messages=SAID)
            output.metrics["a"] = float("nan")
            return output

        assert (await work(run)).err_category is INVALID


class TestWorkflowContext:
    """Contract 3.6 and 3.8."""

    async def test_a_workflow_sees_its_request(self, tmp_path: Path) -> None:
        async def run(ctx: AgentWorkflowContext[Any]) -> Any:
            seen.append(ctx)

        seen: list[AgentWorkflowContext[Any]] = []
        request = a_request(metadata={"row": 1})
        await work(run, request=request, artifacts_dir=tmp_path)
        assert seen == [
            AgentWorkflowContext(request.prompt, None, {"row": 1}, artifacts_dir=tmp_path)
        ]

    async def test_prompt_and_metadata_are_the_rollouts_own(self) -> None:
        async def run(ctx: AgentWorkflowContext[Any]) -> Any:
            ctx.prompt[0]["content"][0]["text"] = "changed"
            ctx.prompt.append({})
            assert ctx.metadata is not None
            ctx.metadata["tags"].append("changed")

        request = a_request(
            prompt=[{"role": "user", "content": [{"text": "hi"}]}], metadata={"tags": ["a"]}
        )
        before = request.model_copy(deep=True)
        assert (await work(run, request=request)).succeeded
        assert request == before

    async def test_the_config_is_copied_once_and_goes_to_both_places(self) -> None:
        class Sees(AgentWorkflow[AgentWorkflowConfig]):
            async def run(self, ctx: AgentWorkflowContext[AgentWorkflowConfig]) -> Any:
                assert self.config is not None
                assert ctx.config is self.config
                assert self.config is not config
                tools = (self.config.model_extra or {})["tools"]
                tools.append("changed")
                return [{"tools": tools}]

        config = AgentWorkflowConfig.model_validate({"name": "x", "tools": ["a"]})
        for _ in range(2):
            result = await work(Sees, config=config)
            assert result.sample is not None
            assert result.sample.messages == [{"tools": ["a", "changed"]}]

    async def test_a_config_that_can_no_longer_be_copied_fails_this_rollout(self) -> None:
        config = AgentWorkflowConfig.model_validate({"name": "x", "opened": (one for one in "a")})
        result = await work(Answering, config=config)
        assert result.err_category is INVALID
        assert "generator" in str(result.err_message)

    async def test_user_code_runs_in_its_context_and_leaves_it_behind(self) -> None:
        context = RolloutContext(rollout_id="r")

        async def run(ctx: AgentWorkflowContext[Any]) -> Any:
            assert get_rollout_context() is context
            RolloutContext(rollout_id="forgotten").__enter__()
            raise RuntimeError

        with RolloutContext(rollout_id="before") as before:
            await work(run, context=context)
            assert get_rollout_context() is before

    async def test_the_context_is_left_when_the_workflow_is_cancelled(self) -> None:
        async def run(ctx: AgentWorkflowContext[Any]) -> Any:
            await asyncio.Event().wait()

        async def cancelled() -> RolloutContext | None:
            with pytest.raises(asyncio.CancelledError):
                await work(run)
            return get_rollout_context()

        task = asyncio.create_task(cancelled())
        await asyncio.sleep(0)
        task.cancel()
        assert await task is None


class TestGrading:
    """Contract 3.4 and 3.5."""

    async def test_a_grader_sees_the_sample_and_what_to_judge_by(self, tmp_path: Path) -> None:
        seen: list[Any] = []

        async def judge(ctx: GraderContext) -> None:
            seen.extend((ctx.label, ctx.sample, ctx.project_path, ctx.metadata, ctx.artifacts_dir))
            seen.append(get_rollout_context())
            ctx.set_reward(0.5)

        context = RolloutContext(rollout_id="r", project_path="/project")
        sample = RolloutSample(messages=SAID)
        result = await grade(
            judge,
            request=a_request(metadata={"row": 1}),
            sample=sample,
            context=context,
            artifacts_dir=tmp_path,
        )
        assert seen == ["4", sample, "/project", {"row": 1}, tmp_path, context]
        assert (result.status, result.sample, result.phase) == ("success", sample, "grader")
        assert sample.reward == 0.5

    async def test_a_grader_cannot_change_the_requests_metadata(self) -> None:
        async def judge(ctx: GraderContext) -> None:
            assert ctx.metadata is not None
            ctx.metadata["tags"].append("changed")
            ctx.set_reward(1.0)

        request = a_request(metadata={"tags": []})
        assert (await grade(judge, request=request, sample=RolloutSample())).succeeded
        assert request.metadata == {"tags": []}

    async def test_a_grader_is_built_anew_with_its_config_as_it_is(self) -> None:
        built: list[Grader] = []

        class Counting(Grader):
            async def grade(self, ctx: GraderContext) -> None:
                built.append(self)
                assert self.config is config
                ctx.set_reward(1.0)

        config = GraderConfig(name="x")
        for _ in range(2):
            assert (await grade(Counting, sample=RolloutSample(), config=config)).succeeded
        assert len({id(grader) for grader in built}) == 2

    async def test_without_a_grader_the_result_comes_back_as_it_is(self) -> None:
        result = ExecutionResult(status=RolloutStatus.SUCCESS, sample=RolloutSample())
        context = RolloutContext(rollout_id="r")
        assert await run_grader(Program(Answering), a_request(), result, context=context) is result

    async def test_a_missing_reward_is_a_failed_grade_and_never_zero(self) -> None:
        result = await grade(nothing, sample=RolloutSample())
        expect_failure(result, INVALID, "Sample has no reward after grading", "grader")
        assert "call ctx.set_reward(...) in grade()" in str(result.err_summary)
        assert result.sample is not None
        assert result.sample.reward is None

    @pytest.mark.parametrize("returned", [1.0, 0, True])
    async def test_a_returned_reward_is_refused_with_advice(self, returned: Any) -> None:
        async def judge(ctx: GraderContext) -> Any:
            return returned

        result = await grade(judge, sample=RolloutSample())
        assert f"give a reward with ctx.set_reward({returned!r})" in str(result.err_message)
        assert result.err_category is INVALID

    async def test_a_return_value_beside_a_reward_is_ignored(self) -> None:
        async def judge(ctx: GraderContext) -> Any:
            ctx.set_reward(0.0)
            return 1.0

        result = await grade(judge, sample=RolloutSample())
        assert result.sample is not None
        assert (result.status, result.sample.reward) == (RolloutStatus.SUCCESS, 0.0)

    @pytest.mark.parametrize("reward", [None, 0.5])
    async def test_a_removed_sample_needs_no_reward(self, reward: float | None) -> None:
        async def judge(ctx: GraderContext) -> None:
            assert ctx.sample is not None
            ctx.sample.remove_sample = True
            ctx.sample.reward = reward

        result = await grade(judge, sample=RolloutSample())
        assert result.succeeded
        assert result.sample is not None
        assert (result.sample.remove_sample, result.sample.reward) == (True, reward)

    async def test_a_workflow_without_a_sample_cannot_be_graded(self) -> None:
        result = await grade(nothing, sample=None)
        expect_failure(result, INVALID, "No sample to grade: the workflow produced none", "grader")

    async def test_a_grader_that_fails_without_a_sample_is_told_why_there_is_none(self) -> None:
        """Who forgets `return` in `run` reads of it in the grader's failure."""

        async def judge(ctx: Any) -> None:
            ctx.set_reward(float(ctx.sample.messages))

        result = await grade(judge, sample=None)
        assert result.err_message == "'NoneType' object has no attribute 'messages'"
        assert str(result.err_summary).endswith(
            "; there was no sample: run() returned no messages and registered no sample source"
        )

    async def test_a_reward_without_a_sample_says_so(self) -> None:
        async def judge(ctx: GraderContext) -> None:
            ctx.set_reward(1.0)

        result = await grade(judge, sample=None)
        assert "no sample to reward" in str(result.err_message)

    @pytest.mark.parametrize("reward", [float("nan"), float("inf"), 1, "good"])
    async def test_a_reward_smuggled_past_validation_is_refused(self, reward: Any) -> None:
        async def judge(ctx: GraderContext) -> None:
            ctx.sample = RolloutSample.model_construct(reward=reward)

        result = await grade(judge, sample=RolloutSample())
        assert result.err_category is INVALID
        assert "is not a finite float" in str(result.err_message)

    async def test_a_grader_may_put_another_sample_in_its_place(self) -> None:
        async def judge(ctx: GraderContext) -> None:
            ctx.sample = RolloutSample(reward=1.0)

        result = await grade(judge, sample=None)
        assert result.sample == RolloutSample(reward=1.0)


class TestCancellation:
    """Contract 3.3: requested means that somebody called `cancel` on the task."""

    @pytest.mark.parametrize("phase", ["workflow", "grader"])
    async def test_a_requested_cancellation_passes(self, phase: str) -> None:
        async def wait(ctx: Any) -> None:
            await asyncio.Event().wait()

        await expect_cancelled(wait, phase=phase)

    @pytest.mark.parametrize("phase", ["workflow", "grader"])
    async def test_a_swallowed_cancellation_passes_all_the_same(self, phase: str) -> None:
        async def swallow(ctx: Any) -> Any:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return SAID

        await expect_cancelled(swallow, phase=phase)

    @pytest.mark.parametrize("phase", ["workflow", "grader"])
    async def test_an_error_while_cleaning_up_does_not_hide_it(self, phase: str) -> None:
        async def fail(ctx: Any) -> Any:
            try:
                await asyncio.Event().wait()
            finally:
                raise RuntimeError("cleaning up failed")

        await expect_cancelled(fail, phase=phase)

    async def test_a_task_groups_errors_do_not_hide_it(self) -> None:
        """A group whose tasks fail while they are cancelled raises their errors instead."""

        async def run(ctx: Any) -> None:
            async def fail() -> None:
                try:
                    await asyncio.Event().wait()
                finally:
                    raise RuntimeError

            async with asyncio.TaskGroup() as group:
                group.create_task(fail())

        await expect_cancelled(run, phase="workflow")

    async def test_a_cancellation_from_before_is_not_this_rollouts(self) -> None:
        """A task that was cancelled and goes on, to tidy up, may still run a rollout."""

        async def tidy() -> ExecutionResult:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return await work(Answering)
            raise AssertionError

        task = asyncio.create_task(tidy())
        await asyncio.sleep(0)
        task.cancel()
        assert (await task).succeeded

    async def test_a_deadline_inside_user_code_is_no_cancellation(self) -> None:
        async def run(ctx: Any) -> Any:
            async with asyncio.timeout(0):
                await asyncio.Event().wait()

        assert (await work(run)).err_category is TIMEOUT

    async def test_a_deadline_user_code_survives_is_no_cancellation(self) -> None:
        async def run(ctx: Any) -> Any:
            try:
                async with asyncio.timeout(0):
                    await asyncio.Event().wait()
            except TimeoutError:
                return SAID

        assert (await work(run)).succeeded

    async def test_outside_a_task_there_is_nothing_to_cancel(self) -> None:
        """A coroutine stepped by hand cannot tell a requested cancellation from another."""
        raised: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

        def step() -> None:
            try:
                work(Answering).send(None)
            except RuntimeError as error:
                raised.set_result(error)

        asyncio.get_running_loop().call_soon(step)
        assert str(await raised) == "a rollout runs in an asyncio task"

    def test_an_abandoned_rollout_ends_without_a_result(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A closed loop drops its tasks: user code tidies up, and that is no failure to report."""
        ended: list[str] = []

        async def run(ctx: Any) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("run")

        loop = asyncio.new_event_loop()
        loop.set_exception_handler(lambda loop, context: None)
        task = loop.create_task(work(run))
        for _ in range(3):
            loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        assert not task.done()
        del task
        gc.collect()
        assert ended == ["run"]
        assert caplog.records == []

    async def test_code_that_cancels_itself_fails_and_its_caller_goes_on(self) -> None:
        """Nobody asked for it, so it is an error like any other."""

        async def run(ctx: Any) -> Any:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            return SAID

        expect_failure(await work(run), AGENT, "CancelledError", "workflow")
        await asyncio.sleep(0)

    async def test_code_that_survives_its_own_cancellation_succeeds(self) -> None:
        async def run(ctx: Any) -> Any:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                return SAID

        assert (await work(run)).sample == RolloutSample(messages=SAID, label="4")

    async def test_a_task_group_that_failed_is_no_cancellation(self) -> None:
        """Until Python 3.13 it leaves its task marked as cancelled; agents go on after it."""

        async def call_tool() -> None:
            raise RuntimeError

        async def run(ctx: Any) -> Any:
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(call_tool())
            except* RuntimeError:
                pass
            return SAID

        assert (await work(run)).succeeded

    async def test_the_callers_task_is_not_the_users(self) -> None:
        """What the code does to its own task cannot reach the worker that runs rollouts."""
        tasks: list[Any] = []

        async def run(ctx: Any) -> Any:
            tasks.append(asyncio.current_task())

        await work(run)
        assert tasks[0] is not asyncio.current_task()


class TestVariables:
    """Context variables of user code."""

    @staticmethod
    async def seen_by_grader(variables: Context | None) -> str:
        seen: list[str] = []

        async def run(ctx: Any) -> Any:
            TRACE.set(f"{TRACE.get()} workflow")
            return SAID

        async def judge(ctx: Any) -> None:
            seen.append(TRACE.get())
            ctx.set_reward(1.0)

        program = Program(workflow_of(run), grader=grader_of(judge))
        context, request = RolloutContext(rollout_id="r"), a_request()
        result = await run_workflow(program, request, context=context, variables=variables)
        await run_grader(program, request, result, context=context, variables=variables)
        return seen[0]

    async def test_user_code_starts_from_the_callers(self) -> None:
        TRACE.set("caller")
        assert await self.seen_by_grader(None) == "caller"
        assert TRACE.get() == "caller"

    async def test_a_grader_sees_those_its_workflow_set_where_both_share_them(self) -> None:
        TRACE.set("caller")
        assert await self.seen_by_grader(copy_context()) == "caller workflow"
        assert TRACE.get() == "caller"


TRACE: ContextVar[str] = ContextVar("trace", default="nobody")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


class TestOwnCopy:
    @given(json_values)
    def test_a_copy_is_equal_and_shares_nothing_mutable(self, value: Any) -> None:
        copied = own_copy(value)
        assert copied == value
        assert not mutable_ids(copied) & mutable_ids(value)

    @pytest.mark.parametrize(
        "value", [OrderedDict(a=[1]), UserDict(a=[1]), ([1], {2}), {"a": {"b": (1, [2])}}]
    )
    def test_other_containers_are_copied_too(self, value: Any) -> None:
        copied = own_copy(value)
        assert (copied, type(copied)) == (value, type(value))
        assert copied is not value

    def test_a_value_that_holds_itself_is_copied(self) -> None:
        value: dict[str, Any] = {"items": []}
        value["items"].append(value)
        copied = own_copy(value)
        assert copied["items"][0] is copied
        assert copied is not value

    async def test_metadata_that_cannot_be_copied_fails_this_rollout_alone(self) -> None:
        request = a_request(metadata={"opened": (one for one in "a")})
        assert (await work(Answering, request=request)).err_category is INVALID


def mutable_ids(value: Any) -> set[int]:
    if isinstance(value, dict):
        return {id(value)}.union(*map(mutable_ids, value.values()))
    if isinstance(value, list):
        return {id(value)}.union(*map(mutable_ids, value))
    return set()


class Source(SampleSource):
    def __init__(self, given: Any) -> None:
        self.given = given

    async def get_sample(self) -> Any:
        if isinstance(self.given, Exception):
            raise self.given
        return self.given


def with_source(given: Any) -> RolloutContext:
    return RolloutContext(rollout_id="r", sample_source=Source(given))


async def nothing(ctx: Any) -> None: ...


async def expect_cancelled(user_code: Any, *, phase: str) -> None:
    """Cancel the code while it waits, and see that the cancellation comes out."""
    started = (
        work(user_code) if phase == "workflow" else grade(user_code, sample=RolloutSample(reward=1))
    )
    task = asyncio.create_task(started)
    for _ in range(3):
        await asyncio.sleep(0)
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


def test_copies_of_requests_do_not_share_either() -> None:
    """The slow way and the fast way agree."""
    request = a_request(metadata={"a": [{"b": (1, [2])}]})
    assert own_copy(request.metadata) == copy.deepcopy(request.metadata)
