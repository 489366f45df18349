"""Numbers that were kept: shown of the same journal alone, and never missed where they are gone."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from osmosis_ai.errors import RunError
from osmosis_ai.eval.measured import Measured, measure_and_keep, measure_run
from osmosis_ai.eval.outcome import Outcome
from osmosis_ai.eval.record import to_line
from osmosis_ai.eval.run_folder import Run, RunPaths, read_run
from osmosis_ai.eval.selection import select_rows
from osmosis_ai.eval.store import open_run
from tests.eval.test_record import RECORD
from tests.eval.workspace import Workspace


@pytest.fixture
async def run(workspace: Workspace) -> Run:
    """Two of its rows are scored, one failed, and a session has ended."""
    config, dataset = workspace.config(), workspace.dataset()
    selection = select_rows(None, limit=None, total=dataset.total_rows)
    async with open_run(config, dataset, selection) as store:
        for row, reward in enumerate((1.0, 0.5, None)):
            await store.append(record_of(row, reward))
        store.close_session({})
    return store.run


def record_of(row: int, reward: float | None) -> Any:
    outcome = Outcome.GRADER_FAILED if reward is None else Outcome.SCORED
    fields = {"outcome": outcome, "reward": reward, "call_sec": (0.25, 0.5)}
    return replace(RECORD, row=row, attempt=0, try_index=0, **fields)


def mean_of(measured: Measured) -> float | None:
    return measured.summary.mean.value


def mark(paths: RunPaths) -> None:
    """Make what is kept tell from what is made anew."""
    kept = json.loads(paths.measured.read_bytes())
    kept["measured"]["summary"]["mean"]["value"] = 0.125
    paths.measured.write_text(json.dumps(kept))


def test_a_finished_run_is_not_read_again(run: Run) -> None:
    mark(run.paths)
    assert mean_of(measure_run(run)) == 0.125


def test_what_is_kept_is_what_the_journal_says(run: Run) -> None:
    kept = measure_run(run)
    run.paths.measured.unlink()
    assert measure_run(run) == kept
    assert kept.timing.call is not None


def append(paths: RunPaths) -> None:
    with paths.records.open("ab") as journal:
        journal.write(to_line(record_of(3, 0.0)))


def edit(paths: RunPaths) -> None:
    """In place, with as many bytes."""
    text = paths.records.read_bytes()
    assert text.count(b'"reward":0.5') == 1
    paths.records.write_bytes(text.replace(b'"reward":0.5', b'"reward":0.6'))


def tear(paths: RunPaths) -> None:
    paths.records.write_bytes(paths.records.read_bytes()[:-2])


def remove(paths: RunPaths) -> None:
    paths.records.unlink()


def change_threshold(paths: RunPaths) -> None:
    document = json.loads(paths.run_json.read_bytes())
    document["config"]["evaluation"]["pass_threshold"] = 0.5
    paths.run_json.write_text(json.dumps(document))


@pytest.mark.parametrize("change", [append, edit, tear, remove, change_threshold])
def test_what_has_changed_is_measured_anew(run: Run, change: Callable[[RunPaths], None]) -> None:
    mark(run.paths)
    change(run.paths)
    changed = read_run(run.paths.folder)
    found = measure_run(changed)
    assert found.summary == changed.summarize()
    assert mean_of(found) != 0.125


def test_a_damaged_journal_is_told_whatever_is_kept(run: Run) -> None:
    run.paths.records.write_bytes(b"{}\n" + run.paths.records.read_bytes())
    with pytest.raises(RunError, match="line 1"):
        measure_run(run)


@pytest.mark.parametrize("text", ["", "{", '{"made_from": "x", "measured": {}}'])
def test_a_kept_file_that_is_none_is_made_anew(run: Run, text: str) -> None:
    expected = measure_run(run)
    run.paths.measured.write_text(text)
    assert measure_run(run) == expected


def test_what_cannot_be_kept_costs_nothing(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    expected = measure_run(run)
    run.paths.measured.unlink()
    run.paths.measured.mkdir()
    assert measure_and_keep(run) == expected
    assert f"{run.paths.measured} is not kept: Is a directory" in caplog.text
    assert measure_run(run) == expected
