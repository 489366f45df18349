"""Clause 3.2: whatever user code raises becomes the result of its own rollout."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from osmosis_ai.rollout.types import ExecutionResult, RolloutErrorCategory, RolloutStatus
from osmosis_ai.testing.contract.base import BackendClauses
from osmosis_ai.testing.contract_workflows import JudgeConfig, PlayerConfig

TIMEOUT = RolloutErrorCategory.TIMEOUT
VALIDATION_ERROR = RolloutErrorCategory.VALIDATION_ERROR
AGENT_ERROR = RolloutErrorCategory.AGENT_ERROR

CATEGORIES = {
    "TimeoutError": TIMEOUT,
    "ValueError": VALIDATION_ERROR,
    "TypeError": VALIDATION_ERROR,
    "AssertionError": VALIDATION_ERROR,
    "RuntimeError": AGENT_ERROR,
    "LookupError": AGENT_ERROR,
    "OSError": AGENT_ERROR,
}


class FailureClauses(BackendClauses):
    """A failure is a value with a category and a text, and costs no other rollout anything."""

    @pytest.mark.parametrize("error", CATEGORIES)
    async def test_3_2_an_exception_of_run_becomes_a_result(
        self, tmp_path: Path, error: str
    ) -> None:
        """The category follows the exception's class, the message is its text."""
        async with self.bench(tmp_path) as bench:
            result = await bench.run(bench.request(options={"error": error}))
        expect_failure(result, CATEGORIES[error], "boom")
        assert result.sample is None

    @pytest.mark.parametrize("error", CATEGORIES)
    async def test_3_2_an_exception_of_grade_becomes_a_result(
        self, tmp_path: Path, error: str
    ) -> None:
        """The workflow's success stands, and the failed grade keeps its sample."""
        async with self.bench(tmp_path, grader_config=JudgeConfig(error=error)) as bench:
            workflow, grade = await bench.grade(bench.request())
        assert workflow.status is RolloutStatus.SUCCESS
        expect_failure(grade, CATEGORIES[error], "boom")
        assert grade.sample is not None, "a failed grade keeps the sample"

    async def test_3_2_an_exception_of_the_workflows_constructor_becomes_a_result(
        self, tmp_path: Path
    ) -> None:
        """`__init__` runs for each rollout: it is the user's code like `run`."""
        config = PlayerConfig(init_error="ValueError")
        async with self.bench(tmp_path, workflow_config=config) as bench:
            workflow, grade = await bench.grade(bench.request())
        expect_failure(workflow, VALIDATION_ERROR, "boom")
        expect_bare_failure(grade)

    async def test_3_2_an_exception_of_the_graders_constructor_becomes_a_result(
        self, tmp_path: Path
    ) -> None:
        """The same holds for the grader, whose failure keeps the sample."""
        config = JudgeConfig(init_error="TypeError")
        async with self.bench(tmp_path, grader_config=config) as bench:
            workflow, grade = await bench.grade(bench.request())
        assert workflow.status is RolloutStatus.SUCCESS
        expect_failure(grade, VALIDATION_ERROR, "boom")
        assert grade.sample is not None

    async def test_3_2_system_exit_ends_the_rollout_alone(self, tmp_path: Path) -> None:
        """`sys.exit()` in user code must not take the server with it."""
        async with self.bench(tmp_path, grader_config=JudgeConfig(error="SystemExit")) as bench:
            request = bench.request("exits", options={"error": "SystemExit", "message": "bye"})
            expect_failure(await bench.run(request), AGENT_ERROR, "bye")
            _, grade = await bench.grade(bench.request("exits-in-grade"))
        expect_failure(grade, AGENT_ERROR, "boom")

    async def test_3_2_a_cancellation_nobody_asked_for_is_a_failure(self, tmp_path: Path) -> None:
        """A framework's stray CancelledError is the agent's error, not a cancelled rollout."""
        stray = "CancelledError"
        async with self.bench(tmp_path, grader_config=JudgeConfig(error=stray)) as bench:
            result = await bench.run(bench.request("stray", options={"error": stray}))
            expect_failure(result, AGENT_ERROR, "boom")
            _, grade = await bench.grade(bench.request("stray-in-grade"))
        expect_failure(grade, AGENT_ERROR, "boom")

    async def test_3_2_a_cancellation_that_user_code_settles_itself_is_none(
        self, tmp_path: Path
    ) -> None:
        """Task groups and timeouts cancel the task they run in, and may leave it marked."""
        async with self.bench(tmp_path) as bench:
            workflow, grade = await bench.grade(bench.request(options={"cancel_itself": True}))
        assert workflow.status is RolloutStatus.SUCCESS, workflow.err_message
        assert grade.status is RolloutStatus.SUCCESS, grade.err_message

    @pytest.mark.parametrize("error", ["WithoutText", "Unprintable"])
    async def test_3_2_a_failure_without_text_names_its_class(
        self, tmp_path: Path, error: str
    ) -> None:
        """An empty message tells its reader nothing."""
        async with self.bench(tmp_path) as bench:
            request = bench.request(options={"error": error, "message": ""})
            expect_failure(await bench.run(request), AGENT_ERROR, error)

    async def test_3_2_the_traceback_is_logged_once_with_the_rollout_id(
        self, tmp_path: Path
    ) -> None:
        """The answer holds the message alone, so the log is where the traceback is looked for."""
        async with self.bench(tmp_path, grader_config=JudgeConfig(error="RuntimeError")) as bench:
            with logged() as workflow_log:
                await bench.run(bench.request("id-one", options={"error": "RuntimeError"}))
            with logged() as grader_log:
                await bench.grade(bench.request("id-two"))
        expect_one_traceback(workflow_log, "id-one")
        expect_one_traceback(grader_log, "id-two")

    async def test_3_2_keyboard_interrupt_passes(self, tmp_path: Path) -> None:
        """Ctrl-C is the operator's, never a result."""
        self.only_in_process("Ctrl-C reaches it there")

        async def interrupted() -> None:
            async with self.bench(tmp_path) as bench:
                await bench.fly(bench.request(options={"error": "KeyboardInterrupt"}))

        # In a loop of its own: the interrupt ends the loop that a backend's task runs in.
        with pytest.raises(KeyboardInterrupt):
            await asyncio.to_thread(asyncio.run, interrupted())

    async def test_3_2_a_failure_frees_its_slot(self, tmp_path: Path) -> None:
        """The next rollout runs as if nothing had happened."""
        config = PlayerConfig.model_validate({"concurrency": {"max_concurrent": 1}})
        async with self.bench(tmp_path, workflow_config=config) as bench:
            await bench.run(bench.request("fails", options={"error": "RuntimeError"}))
            await bench.run(bench.request("exits", options={"error": "SystemExit"}))
            result = await bench.run(bench.request("works"))
        assert result.status is RolloutStatus.SUCCESS


def expect_failure(result: ExecutionResult, category: RolloutErrorCategory, message: str) -> None:
    """The result is a failure of that category with that message."""
    found = (result.status, result.err_category, result.err_message)
    assert found == (RolloutStatus.FAILURE, category, message), f"the result is {found}"


def expect_bare_failure(grade: ExecutionResult) -> None:
    """A grader answer that says no more than that there is no grade."""
    found = (grade.status, grade.sample, grade.err_message, grade.err_category)
    assert found == (RolloutStatus.FAILURE, None, None, None), f"the grade is {found}"


@contextmanager
def logged() -> Iterator[list[logging.LogRecord]]:
    """What is logged meanwhile, whichever logger it goes to."""
    handler = _Collecting()
    logging.getLogger().addHandler(handler)
    try:
        yield handler.records
    finally:
        logging.getLogger().removeHandler(handler)


def expect_one_traceback(records: list[logging.LogRecord], rollout_id: str) -> None:
    """One record holds a traceback, and it names the rollout."""
    texts = [logging.Formatter().format(record) for record in records]
    tracebacks = [text for text in texts if "Traceback (most recent call last)" in text]
    assert len(tracebacks) == 1, f"{len(tracebacks)} tracebacks were logged, not one"
    assert rollout_id in tracebacks[0], f"the traceback does not name rollout {rollout_id!r}"


class _Collecting(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)
