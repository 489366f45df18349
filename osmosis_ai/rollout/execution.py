"""Where a workflow's run becomes a sample, and a grader's judgement its reward."""

from __future__ import annotations

import asyncio
import copy
import logging
import math
import os
import sys
from bdb import BdbQuit
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from osmosis_ai.rollout.agent_workflow import AgentWorkflowOutput
from osmosis_ai.rollout.context import (
    AgentWorkflowContext,
    GraderContext,
    RolloutContext,
)
from osmosis_ai.rollout.grader import NoResult
from osmosis_ai.rollout.program import Program
from osmosis_ai.rollout.raised import error_text, has_left_debugger, summarize_error
from osmosis_ai.rollout.types import (
    ExecutionRequest,
    ExecutionResult,
    Phase,
    RolloutErrorCategory,
    RolloutSample,
    RolloutStatus,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")


async def run_workflow(
    program: Program,
    request: ExecutionRequest,
    *,
    context: RolloutContext,
    artifacts_dir: Path | None = None,
    variables: Context | None = None,
) -> ExecutionResult:
    """Run the user's workflow once; whatever it raises becomes the result.

    What passes is a cancellation that somebody requested, also where the workflow swallowed it,
    KeyboardInterrupt, and BdbQuit, for whoever leaves a debugger wants to leave. `variables` holds
    the context variables of user code, so that a grader sees those its workflow set; without it
    the code gets a copy of the caller's.
    """

    async def work() -> ExecutionResult:
        if program.capture is not None:
            context.set_sample_source(program.capture(context))
        config = copy.deepcopy(program.workflow_config)
        workflow_context = AgentWorkflowContext(
            prompt=own_copy(request.prompt),
            config=config,
            metadata=own_copy(request.metadata),
            artifacts_dir=artifacts_dir,
        )
        with context:
            returned: Any = await program.workflow(config).run(workflow_context)
            sample = await _sample_from(returned, request=request, context=context)
        return ExecutionResult(status=RolloutStatus.SUCCESS, sample=sample, phase="workflow")

    return await _contained(
        work, phase="workflow", request=request, context=context, variables=variables
    )


async def run_grader(
    program: Program,
    request: ExecutionRequest,
    result: ExecutionResult,
    *,
    context: RolloutContext,
    artifacts_dir: Path | None = None,
    variables: Context | None = None,
) -> ExecutionResult:
    """Let the user's grader judge a workflow's result; same rules as `run_workflow`.

    Without a grader the result comes back as it is. A failed grade keeps the sample.
    """
    grader = program.grader
    if grader is None:
        return result

    async def work() -> ExecutionResult:
        grader_context = GraderContext(
            label=request.label,
            sample=result.sample,
            project_path=context.project_path,
            metadata=own_copy(request.metadata),
            artifacts_dir=artifacts_dir,
        )
        with context:
            returned = await grader(program.grader_config).grade(grader_context)
        sample = _check_graded(grader_context.sample, returned)
        return ExecutionResult(status=RolloutStatus.SUCCESS, sample=sample, phase="grader")

    graded = await _contained(
        work,
        phase="grader",
        request=request,
        context=context,
        variables=variables,
        sample=result.sample,
    )
    if graded.err_summary is None or result.sample is not None:
        return graded
    return graded.model_copy(update={"err_summary": f"{graded.err_summary}; {_NO_SAMPLE}"})


def failure_from(
    error: BaseException,
    *,
    phase: Phase,
    sample: RolloutSample | None = None,
    root: str | None = None,
) -> ExecutionResult:
    """The structured result of an exception that user code raised; its files lie in `root`."""
    return ExecutionResult(
        status=RolloutStatus.FAILURE,
        sample=sample,
        err_message=error_text(error),
        err_category=categorize(error),
        err_summary=summarize_error(error, root=root),
        phase=phase,
        no_result=error_text(error) if isinstance(error, NoResult) else None,
    )


def categorize(error: BaseException) -> RolloutErrorCategory:
    """The category of an exception that user code raised."""
    if isinstance(error, TimeoutError):
        return RolloutErrorCategory.TIMEOUT
    if isinstance(error, ValueError | TypeError | AssertionError):
        return RolloutErrorCategory.VALIDATION_ERROR
    return RolloutErrorCategory.AGENT_ERROR


def own_copy(value: Any) -> Any:
    """A copy that shares nothing mutable with the original, fast for JSON-like data."""
    try:
        return _plain_copy(value)
    except RecursionError:  # it holds itself: copied slowly, with a memory
        return copy.deepcopy(value)


def _plain_copy(value: Any) -> Any:
    kind = type(value)
    if kind in _IMMUTABLE:
        return value
    if kind is dict:
        return {key: _plain_copy(item) for key, item in value.items()}
    if kind is list:
        return [_plain_copy(item) for item in value]
    return copy.deepcopy(value)


_IMMUTABLE = frozenset({str, int, float, bool, type(None)})


async def _contained(
    work: Callable[[], Awaitable[ExecutionResult]],
    *,
    phase: Phase,
    request: ExecutionRequest,
    context: RolloutContext,
    variables: Context | None,
    sample: RolloutSample | None = None,
) -> ExecutionResult:
    """Run user code to its result; what it does to its own task stays in there.

    Only so can a requested cancellation be told from another: until Python 3.13 a TaskGroup that
    failed leaves its task marked as cancelled, and so does code that cancels itself.
    """

    def failed(error: BaseException) -> ExecutionResult:
        logger.error("rollout %s: %s failed", request.id, phase, exc_info=error)
        return failure_from(
            error, phase=phase, sample=sample, root=context.project_path or os.curdir
        )

    async def captured() -> ExecutionResult | KeyboardInterrupt | BdbQuit:
        try:
            return await work()
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except (KeyboardInterrupt, BdbQuit) as exc:
            return exc  # raised in here it would stop the loop before it reached the caller
        except BaseException as exc:  # the user's code may raise anything, groups included
            return BdbQuit() if has_left_debugger(exc) else failed(exc)

    is_cancelled = _watch_cancellation()
    try:
        # A cancellation of this task goes on to the one it waits for.
        result = await _start(captured(), variables)
    except asyncio.CancelledError as exc:
        if is_cancelled():
            raise
        return failed(exc)
    if isinstance(result, KeyboardInterrupt | BdbQuit):
        raise result
    if is_cancelled():
        raise asyncio.CancelledError(f"rollout {request.id} was cancelled")
    return result


def _start(code: Coroutine[Any, Any, T], variables: Context | None) -> asyncio.Task[T]:
    loop = asyncio.get_running_loop()
    return asyncio.Task(code, loop=loop, context=variables, **_AT_ONCE)


# Where Python can, a task starts at once: waiting for its turn costs more than starting it.
_AT_ONCE: dict[str, Any] = {"eager_start": True} if sys.version_info >= (3, 12) else {}


def _watch_cancellation() -> Callable[[], bool]:
    """A way to ask whether somebody has asked to cancel this task since now."""
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("a rollout runs in an asyncio task")
    before = task.cancelling()
    return lambda: task.cancelling() > before


async def _sample_from(
    returned: Any, *, request: ExecutionRequest, context: RolloutContext
) -> RolloutSample | None:
    """The sample of an explicit output, or of the registered source where there is none."""
    if returned is None:
        return _check_sample(await context.get_sample())
    try:
        return _returned_sample(returned, label=request.label)
    except ValidationError as error:
        error.add_note("it is in what run() returned")
        raise


def _returned_sample(returned: Any, *, label: str | None) -> RolloutSample | None:
    if isinstance(returned, AgentWorkflowOutput):
        output = type(returned).model_validate(returned)
        if output.messages is None:
            return None
        return RolloutSample(messages=output.messages, label=label, metrics=dict(output.metrics))
    if isinstance(returned, list):
        return RolloutSample(messages=returned, label=label)
    raise TypeError(
        f"run() returned {type(returned).__name__}; return an AgentWorkflowOutput, a list of "
        "message dicts, or None where an agent registered itself"
    )


def _check_sample(sample: Any) -> RolloutSample | None:
    if sample is not None and not isinstance(sample, RolloutSample):
        raise TypeError(f"the sample source returned {type(sample).__name__}, not a RolloutSample")
    return sample


def _check_graded(sample: RolloutSample | None, returned: Any) -> RolloutSample:
    """The sample a grader left, if it can be counted; else the reason why not."""
    if sample is None:
        raise ValueError("No sample to grade: the workflow produced none")
    if sample.remove_sample:
        return sample
    if sample.reward is None:
        raise _no_reward(returned)
    # A sample built without validation can hold anything.
    if not isinstance(sample.reward, float) or not math.isfinite(sample.reward):
        raise ValueError(f"the reward {sample.reward!r} is not a finite float")
    return sample


_NO_SAMPLE = "there was no sample: run() returned no messages and registered no sample source"


def _no_reward(returned: Any) -> ValueError:
    # The message itself is what every controller gets, word for word.
    message = "Sample has no reward after grading"
    if isinstance(returned, bool | int | float):
        return ValueError(
            f"{message}: grade() returned {returned!r}; give a reward with "
            f"ctx.set_reward({returned!r})"
        )
    error = ValueError(message)
    error.add_note("call ctx.set_reward(...) in grade(), or set ctx.sample.remove_sample = True")
    return error
