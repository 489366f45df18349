"""The loop: each item that is owed runs once, and ends as one record or not at all."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from bdb import BdbQuit
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from osmosis_ai.errors import BackendError, DatasetError, ProtocolError, RunError
from osmosis_ai.eval.dataset import load_rows
from osmosis_ai.eval.outcome import Outcome
from osmosis_ai.eval.record import Record
from osmosis_ai.eval.row import Row
from osmosis_ai.eval.run_folder import find_run
from osmosis_ai.eval.runner import (
    DEFAULT_MAX_IN_FLIGHT,
    EvalResult,
    Progress,
    choose_max_in_flight,
    run_eval,
)
from osmosis_ai.eval.selection import select_rows
from osmosis_ai.eval.store import open_run
from osmosis_ai.rollout.driver.base import RolloutItem
from osmosis_ai.rollout.types import ExecutionOutcome, ExecutionRequest, ModelUsage
from tests.eval.full_disk import file_size_limit
from tests.eval.workspace import MINIMAL, FunctionDriver, Workspace, failed, make_workspace, scored

Order = Callable[[Iterable[Row]], Iterable[Row]]


async def run(
    workspace: Workspace,
    driver: FunctionDriver,
    *,
    rows: str | None = None,
    n: int | None = None,
    max_in_flight: int | None = None,
    order: Order = iter,
    on_progress: Callable[[Progress], None] | None = None,
    **options: Any,
) -> EvalResult:
    config, dataset = workspace.config(n=n), workspace.dataset()
    selection = select_rows(rows, limit=None, total=dataset.total_rows)
    async with open_run(config, dataset, selection, **options) as store:
        return await run_eval(
            config,
            driver=driver,
            store=store,
            rows=order(load_rows(dataset, selection)),
            max_in_flight=max_in_flight,
            on_progress=on_progress,
        )


def records(workspace: Workspace, name: str = "hello") -> list[Record]:
    return list(find_run(name, evals_dir=workspace.evals).records())


def by_luck(request: ExecutionRequest, item: RolloutItem) -> ExecutionOutcome:
    """A reply that follows from the item, as a scripted model's does."""
    if item.seed % 5 == 0:
        return ExecutionOutcome(workflow=failed())
    return scored(item.seed % 7 / 7, calls=1, total_tokens=item.seed % 11)


async def test_each_item_becomes_one_record(workspace: Workspace) -> None:
    seen: list[ExecutionRequest] = []

    def behaviour(request: ExecutionRequest, item: RolloutItem) -> ExecutionOutcome:
        seen.append(request)
        return scored(float(item.row == 0), calls=2)

    result = await run(workspace, FunctionDriver(behaviour), n=2)
    assert result.halted_by is None
    assert (result.summary.mean.value, result.summary.mean.over) == (0.25, 8)
    found = records(workspace)
    assert sorted((record.row, record.attempt) for record in found) == [
        (row, attempt) for row in range(4) for attempt in range(2)
    ]
    assert {record.rollout_id for record in found} == {request.id for request in seen}
    assert len({request.id for request in seen}) == 8
    assert seen[0].prompt == [{"role": "user", "content": "q0"}]
    assert (seen[0].label, seen[0].metadata, seen[0].agent_timeout_sec) == ("a0", None, None)


async def test_deadlines_of_the_config_reach_the_rollout(workspace: Workspace) -> None:
    workspace.write_config(
        MINIMAL + "[evaluation]\nagent_workflow_timeout_s = 450\ngrader_timeout_s = 150\n"
    )
    seen: list[ExecutionRequest] = []
    await run(workspace, FunctionDriver(lambda r, i: seen.append(r) or scored(1.0)))
    assert {(r.agent_timeout_sec, r.grader_timeout_sec) for r in seen} == {(450.0, 150.0)}


async def test_the_same_command_runs_only_what_is_owed(workspace: Workspace) -> None:
    """A finished attempt is never paid for twice."""
    await run(workspace, FunctionDriver(), rows="0-1")
    driver = FunctionDriver()
    result = await run(workspace, driver, n=2)
    assert sorted(driver.started) == [(0, 1), (1, 1), (2, 0), (2, 1), (3, 0), (3, 1)]
    assert result.summary.finished == 8
    idle = FunctionDriver()
    await run(workspace, idle, n=2)
    assert idle.started == []


async def test_order_and_concurrency_change_no_record_and_no_byte_of_the_summary(
    workspace: Workspace,
) -> None:
    ways: list[tuple[int, Order]] = [(1, iter), (64, iter), (3, lambda rows: list(rows)[::-1])]
    summaries, results = set(), []
    for index, (in_flight, order) in enumerate(ways):
        name = f"way-{index}"
        driver = FunctionDriver(by_luck, turns=3)
        await run(workspace, driver, n=5, max_in_flight=in_flight, order=order, name=name)
        path = find_run(name, evals_dir=workspace.evals).paths.summary
        summaries.add(path.read_bytes())
        stripped = [replace(r, rollout_id="x", duration_sec=0) for r in records(workspace, name)]
        results.append(sorted(stripped, key=lambda record: (record.row, record.attempt)))
    assert len(summaries) == 1
    assert results[0] == results[1] == results[2]


async def test_a_resumed_run_has_the_summary_of_one_that_was_never_stopped(
    workspace: Workspace,
) -> None:
    await run(workspace, FunctionDriver(by_luck), n=3, name="whole")
    for rows in ("2", "0,2", "0-3"):
        await run(workspace, FunctionDriver(by_luck), n=3, rows=rows, name="parts")
    whole, parts = (
        find_run(name, evals_dir=workspace.evals).paths.summary for name in ("whole", "parts")
    )
    assert whole.read_bytes() == parts.read_bytes()


async def test_equal_rows_are_items_of_their_own(workspace: Workspace) -> None:
    workspace.write_rows([{"user_prompt": "q", "ground_truth": "a"}] * 3)
    driver = FunctionDriver()
    result = await run(workspace, driver)
    assert result.summary.finished == 3
    assert len(set(driver.ids)) == 3


async def test_no_more_run_at_once_than_asked(workspace: Workspace) -> None:
    driver = FunctionDriver(turns=3)
    await run(workspace, driver, n=5, max_in_flight=3)
    assert driver.peak == 3


@pytest.mark.parametrize(
    ("asked", "batch_size", "room", "expected"),
    [
        (3, 5, 9, 3),
        (None, 5, 9, 5),
        (None, None, 9, 9),
        (20, None, 9, 9),
        (None, 20, 9, 9),
        (20, 5, None, 20),
        (None, None, None, DEFAULT_MAX_IN_FLIGHT),
    ],
)
def test_a_flag_then_the_file_then_the_driver_say_how_many(
    workspace: Workspace,
    asked: int | None,
    batch_size: int | None,
    room: int | None,
    expected: int,
) -> None:
    """And never more than the driver holds: a rollout's deadline starts with its execution."""
    config = workspace.config(batch_size=batch_size)
    driver = FunctionDriver(room=room)
    assert choose_max_in_flight(config, driver, max_in_flight=asked) == expected


async def test_rows_are_read_as_they_are_needed(workspace: Workspace) -> None:
    read, gate = [], asyncio.Event()

    def counted(rows: Iterable[Row]) -> Iterator[Row]:
        for row in rows:
            read.append(row.index)
            yield row

    driver = FunctionDriver(gate=gate, full_at=2)
    task = asyncio.create_task(run(workspace, driver, max_in_flight=2, order=counted))
    await driver.full.wait()
    assert read == [0, 1]
    gate.set()
    await task
    assert read == [0, 1, 2, 3]


async def test_a_driver_that_fails_one_rollout_does_not_end_the_run(
    workspace: Workspace, caplog: pytest.LogCaptureFixture
) -> None:
    def behaviour(request: ExecutionRequest, item: RolloutItem) -> ExecutionOutcome:
        if item.row == 1:
            raise KeyError("lost")
        if item.row == 2:
            raise RuntimeError
        return scored(1.0)

    result = await run(workspace, FunctionDriver(behaviour))
    assert result.summary.outcomes["no_result"] == 2
    assert (result.summary.mean.value, result.summary.mean.over) == (1.0, 2)
    messages = {record.row: record.error_message for record in records(workspace)}
    assert str(messages[1]).startswith("the driver failed: KeyError: 'lost' (test_runner.py:")
    assert str(messages[2]).startswith("the driver failed: RuntimeError (test_runner.py:")
    assert caplog.text.count("Traceback") == 2


@pytest.mark.parametrize("error", [BackendError("gone"), ProtocolError("401", status_code=401)])
async def test_a_dead_server_halts_dispatch_and_leaves_the_rest_pending(
    workspace: Workspace, error: Exception
) -> None:
    """What was not run has not failed; the same command runs it when the server is back."""

    def behaviour(request: ExecutionRequest, item: RolloutItem) -> ExecutionOutcome:
        if item.row == 1:
            raise error
        return scored(1.0)

    driver = FunctionDriver(behaviour)
    result = await run(workspace, driver, max_in_flight=1)
    assert result.halted_by is error
    assert driver.started == [(0, 0), (1, 0)]
    assert (result.summary.finished, result.summary.pending) == (1, 3)
    again = FunctionDriver()
    assert (await run(workspace, again)).summary.pending == 0
    assert (0, 0) not in again.started


async def test_scores_of_workflows_that_survive_a_failed_call_are_doubted(
    workspace: Workspace, caplog: pytest.LogCaptureFixture
) -> None:
    """They are scored, as the agent went on; but a 0 may be the server's doing."""

    def behaviour(request: ExecutionRequest, item: RolloutItem) -> ExecutionOutcome:
        gone = {"last_error": "answered 503", "last_failure_status": 503} if item.row < 2 else {}
        return scored(float(item.row >= 2), calls=1, failed_calls=len(gone) // 2, **gone)

    result = await run(workspace, FunctionDriver(behaviour))
    assert (result.summary.mean.value, result.summary.mean.over) == (0.5, 4)
    assert "2 scored rollouts went on after their last model call had failed" in caplog.text


async def test_what_is_in_flight_ends_when_dispatch_is_halted(workspace: Workspace) -> None:
    gate = asyncio.Event()

    def behaviour(request: ExecutionRequest, item: RolloutItem) -> ExecutionOutcome:
        if item.row == 0:
            raise BackendError("first")
        if item.row == 1:
            raise BackendError("second")
        return scored(1.0)

    driver = FunctionDriver(behaviour, gate=gate, full_at=3)
    task = asyncio.create_task(run(workspace, driver, max_in_flight=3))
    await driver.full.wait()
    gate.set()
    result = await task
    assert str(result.halted_by) == "first"
    assert [record.row for record in records(workspace)] == [2]


async def test_a_data_set_that_changes_meanwhile_halts_the_run(workspace: Workspace) -> None:
    def behaviour(request: ExecutionRequest, item: RolloutItem) -> ExecutionOutcome:
        workspace.write_rows([{"user_prompt": "q", "ground_truth": "a"}])
        return scored(1.0)

    result = await run(workspace, FunctionDriver(behaviour), max_in_flight=1)
    assert isinstance(result.halted_by, DatasetError)
    assert result.summary.finished == 1


async def test_a_disk_that_takes_no_record_halts_the_run(workspace: Workspace) -> None:
    """A result that could be lost may not be counted."""
    config, dataset = workspace.config(), workspace.dataset()
    selection = select_rows(None, limit=None, total=4)
    driver = FunctionDriver()
    async with open_run(config, dataset, selection) as store:
        with file_size_limit(10):
            result = await run_eval(
                config,
                driver=driver,
                store=store,
                rows=load_rows(dataset, selection),
                max_in_flight=1,
            )
    assert isinstance(result.halted_by, RunError)
    assert "the same command goes on from there" in str(result.halted_by)
    assert (result.summary.finished, driver.started) == (0, [(0, 0)])
    assert (await run(workspace, FunctionDriver())).summary.finished == 4


async def test_leaving_a_debugger_ends_the_run_and_records_none_of_it(
    workspace: Workspace,
) -> None:
    """It would stop at the same line again and again."""

    def behaviour(request: ExecutionRequest, item: RolloutItem) -> ExecutionOutcome:
        if item.row == 2:
            raise BdbQuit
        return scored(1.0)

    with pytest.raises(BdbQuit):
        await run(workspace, FunctionDriver(behaviour), max_in_flight=1)
    assert [record.row for record in records(workspace)] == [0, 1]
    timing = find_run("hello", evals_dir=workspace.evals).paths.timing
    assert json.loads(timing.read_bytes())["sessions"][0]["end"] == "interrupted"
    assert (await run(workspace, FunctionDriver())).summary.finished == 4


async def test_a_fault_of_ours_in_a_session_passes(workspace: Workspace) -> None:
    def look(progress: Progress) -> None:
        if progress.record is not None:
            raise ZeroDivisionError

    with pytest.raises(ExceptionGroup):
        await run(workspace, FunctionDriver(), on_progress=look)


async def test_cancelled_it_cancels_what_runs_and_records_none_of_it(workspace: Workspace) -> None:
    gate = asyncio.Event()
    driver = FunctionDriver(gate=gate, full_at=2)
    await run(workspace, FunctionDriver(), rows="0")
    task = asyncio.create_task(run(workspace, driver, max_in_flight=2))
    await driver.full.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (driver.cancelled, driver.running) == (2, 0)
    paths = find_run("hello", evals_dir=workspace.evals).paths
    assert json.loads(paths.summary.read_bytes())["pending"] == 3
    sessions = json.loads(paths.timing.read_bytes())["sessions"]
    assert [session["end"] for session in sessions] == ["finished", "interrupted"]
    assert sessions[1]["finished"] == 0


async def test_progress_is_told_at_the_start_and_for_each_record(workspace: Workspace) -> None:
    await run(workspace, FunctionDriver(), rows="0")
    told: list[tuple[int, int, int | None, float]] = []

    def note(progress: Progress) -> None:
        row = None if progress.record is None else progress.record.row
        told.append((progress.finished, progress.items, row, progress.reward_sum))

    def behaviour(request: ExecutionRequest, item: RolloutItem) -> ExecutionOutcome:
        return scored(0.5) if item.row < 3 else ExecutionOutcome(workflow=failed())

    await run(workspace, FunctionDriver(behaviour), max_in_flight=1, on_progress=note)
    assert told == [(1, 4, None, 0.0), (2, 4, 1, 0.5), (3, 4, 2, 1.0), (4, 4, 3, 1.0)]


async def test_a_second_try_has_an_id_of_its_own_and_counts(workspace: Workspace) -> None:
    def unreachable(request: ExecutionRequest, item: RolloutItem) -> ExecutionOutcome:
        usage = ModelUsage(calls=1, failed_calls=1, last_error="503")
        return ExecutionOutcome(workflow=failed(), usage=usage)

    first, second = FunctionDriver(unreachable), FunctionDriver()
    await run(workspace, first)
    result = await run(workspace, second, retried=frozenset({Outcome.NO_RESULT}))
    assert (result.summary.mean.over, result.summary.superseded) == (4, 4)
    assert not set(first.ids) & set(second.ids)
    assert {record.try_index for record in records(workspace)} == {0, 1}


async def test_a_run_holds_no_rows_and_no_records(workspace: Workspace, tmp_path: Any) -> None:
    """At most 300 bytes for each finished row; a list of records alone would be twice that."""
    many = make_workspace(tmp_path / "many", rows=10_000)
    await run(many, FunctionDriver(), rows="0-9", name="warm")
    config, dataset = many.config(), many.dataset()
    selection = select_rows(None, limit=None, total=dataset.total_rows)
    async with open_run(config, dataset, selection) as store:
        tracemalloc.start()
        await run_eval(
            config,
            driver=FunctionDriver(remembers=False),
            store=store,
            rows=load_rows(dataset, selection),
        )
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak / 10_000 < 300
