"""Where a workflow's run becomes a sample, and a grader's judgement its reward."""

from __future__ import annotations

import asyncio
import copy
import logging
import math
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from osmosis_ai.rollout.agent_workflow import AgentWorkflowOutput
from osmosis_ai.rollout.context import (
    AgentWorkflowContext,
    GraderContext,
    RolloutContext,
)
from osmosis_ai.rollout.grader import NoResult
from osmosis_ai.rollout.program import Program
from osmosis_ai.rollout.safe_json import safe_text
from osmosis_ai.rollout.types import (
    ExecutionRequest,
    ExecutionResult,
    Phase,
    RolloutErrorCategory,
    RolloutSample,
    RolloutStatus,
)

logger = logging.getLogger(__name__)


async def run_workflow(
    program: Program,
    request: ExecutionRequest,
    *,
    context: RolloutContext,
    artifacts_dir: Path | None = None,
) -> ExecutionResult:
    """Run the user's workflow once; whatever it raises becomes the result.

    Only a cancellation that somebody requested passes, also where the workflow swallowed it, and
    KeyboardInterrupt.
    """

    async def work() -> ExecutionResult:
        config = copy.deepcopy(program.workflow_config)
        workflow_context = AgentWorkflowContext(
            prompt=own_copy(request.prompt),
            config=config,
            metadata=own_copy(request.metadata),
            artifacts_dir=artifacts_dir,
        )
        returned: Any = await program.workflow(config).run(workflow_context)
        sample = await _sample_from(returned, request=request, context=context)
        return ExecutionResult(status=RolloutStatus.SUCCESS, sample=sample, phase="workflow")

    with context:
        return await _guarded(work, phase="workflow", request=request)


async def run_grader(
    program: Program,
    request: ExecutionRequest,
    result: ExecutionResult,
    *,
    context: RolloutContext,
    artifacts_dir: Path | None = None,
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
        returned = await grader(program.grader_config).grade(grader_context)
        sample = _check_graded(grader_context.sample, returned)
        return ExecutionResult(status=RolloutStatus.SUCCESS, sample=sample, phase="grader")

    with context:
        return await _guarded(work, phase="grader", request=request, sample=result.sample)


def failure_from(
    error: BaseException, *, phase: Phase, sample: RolloutSample | None = None
) -> ExecutionResult:
    """The structured result of an exception that user code raised."""
    return ExecutionResult(
        status=RolloutStatus.FAILURE,
        sample=sample,
        err_message=error_text(error),
        err_category=categorize(error),
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


def error_text(error: BaseException) -> str:
    """`str(error)` made safe to send, or the class name where that is empty."""
    try:
        text = str(error)
    except Exception:  # __str__ is the user's, and a broken one must not cost the result
        text = ""
    return safe_text(text) or type(error).__name__


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


async def _guarded(
    work: Callable[[], Awaitable[ExecutionResult]],
    *,
    phase: Phase,
    request: ExecutionRequest,
    sample: RolloutSample | None = None,
) -> ExecutionResult:
    is_cancelled = _watch_cancellation()
    try:
        result = await work()
    except (KeyboardInterrupt, GeneratorExit):  # somebody ends the process or the coroutine
        raise
    except BaseException as exc:  # the user's code may raise anything, groups included
        if isinstance(exc, asyncio.CancelledError) and is_cancelled():
            raise
        result = _failed(exc, phase=phase, request=request, sample=sample)
    if is_cancelled():
        raise asyncio.CancelledError(f"rollout {request.id} was cancelled")
    return result


def _watch_cancellation() -> Callable[[], bool]:
    """A way to ask whether somebody has asked to cancel this task since now."""
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("a rollout runs in an asyncio task")
    before = task.cancelling()
    return lambda: task.cancelling() > before


def _failed(
    error: BaseException,
    *,
    phase: Phase,
    request: ExecutionRequest,
    sample: RolloutSample | None,
) -> ExecutionResult:
    logger.error("rollout %s: %s failed", request.id, phase, exc_info=error)
    return failure_from(error, phase=phase, sample=sample)


async def _sample_from(
    returned: Any, *, request: ExecutionRequest, context: RolloutContext
) -> RolloutSample | None:
    """The sample of an explicit output, or of the registered source where there is none."""
    if returned is None:
        return _check_sample(await context.get_sample())
    if isinstance(returned, AgentWorkflowOutput):
        output = type(returned).model_validate(returned)
        if output.messages is None:
            return None
        return RolloutSample(
            messages=output.messages, label=request.label, metrics=dict(output.metrics)
        )
    if isinstance(returned, list):
        return RolloutSample(messages=returned, label=request.label)
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
        raise ValueError("Sample has no reward after grading" + _returned_hint(returned))
    # A sample built without validation can hold anything.
    if not isinstance(sample.reward, float) or not math.isfinite(sample.reward):
        raise ValueError(f"the reward {sample.reward!r} is not a finite float")
    return sample


def _returned_hint(returned: Any) -> str:
    if isinstance(returned, bool | int | float):
        return f": grade() returned {returned!r}; give a reward with ctx.set_reward({returned!r})"
    return ""
