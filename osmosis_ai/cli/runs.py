"""`osmosis eval list` and `osmosis eval show`: looking at runs, also while they go on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from osmosis_ai.cli.groups import find_groups
from osmosis_ai.cli.mode import Misuse, Mode
from osmosis_ai.cli.output import print_detail, print_list, print_sections
from osmosis_ai.cli.problem import print_warning
from osmosis_ai.cli.results import (
    GROUP_COLUMNS,
    RECORD_COLUMNS,
    RUN_COLUMNS,
    group_row,
    record_data,
    record_row,
    record_section,
    run_data,
    run_row,
    run_sections,
)
from osmosis_ai.cli.transcript import read_messages, transcript_sections
from osmosis_ai.errors import RunError
from osmosis_ai.eval.config import EVALS_DIR, find_workspace
from osmosis_ai.eval.measured import measure_run
from osmosis_ai.eval.metrics import Summary
from osmosis_ai.eval.outcome import FAILED, Outcome
from osmosis_ai.eval.record import Record
from osmosis_ai.eval.run_folder import Run, find_run, list_runs

PAGE = 50
"""Things shown at once unless said."""


def list_all(
    ctx: typer.Context,
    limit: Annotated[int, typer.Option(min=1, help="Show so many.")] = PAGE,
    everything: Annotated[bool, typer.Option("--all", help="Show every run.")] = False,
) -> None:
    """List the runs of a workspace, the newest first."""
    mode: Mode = ctx.obj
    runs = _readable(list(list_runs(find_workspace(Path()) / EVALS_DIR)), mode)
    runs.sort(key=lambda run: run.document.created_at, reverse=True)
    shown = list(_summaries(runs if everything else runs[:limit], mode))
    print_list(
        [run_data(run, summary) for run, summary in shown],
        [run_row(run, summary) for run, summary in shown],
        RUN_COLUMNS,
        total=len(runs),
        empty="No runs yet: osmosis eval run CONFIG makes one.",
        mode=mode,
    )


def _readable(found: list[Run | RunError], mode: Mode) -> list[Run]:
    for error in found:
        if isinstance(error, RunError):
            print_warning(str(error), mode=mode)
    return [run for run in found if isinstance(run, Run)]


def _summaries(runs: Iterable[Run], mode: Mode) -> Iterator[tuple[Run, Summary]]:
    for run in runs:
        try:
            yield run, measure_run(run).summary
        except RunError as error:
            # One damaged journal must not hide the other runs.
            print_warning(str(error), mode=mode)


def show(
    ctx: typer.Context,
    run: Annotated[str, typer.Argument(metavar="RUN", help="The name of a run, or its folder.")],
    row: Annotated[
        int | None,
        typer.Option(
            min=0, help="Show the rollouts of this row, with what was said.", show_default=False
        ),
    ] = None,
    failed: Annotated[
        bool, typer.Option("--failed", help="List the rollouts that failed or have no result.")
    ] = False,
    by: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            help="Show the numbers for each value of a metadata key.",
            show_default=False,
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="List so many rollouts.")] = PAGE,
    everything: Annotated[bool, typer.Option("--all", help="List every rollout.")] = False,
) -> None:
    """Show what a run has measured so far, or list its rollouts."""
    mode: Mode = ctx.obj
    found = find_run(run, evals_dir=evals_dir_for(run))
    if by is not None:
        _print_groups(found, by, limit=None if everything else limit, mode=mode)
        return
    if row is None and not failed:
        measured = measure_run(found)
        data = run_data(found, measured.summary, measured.timing)
        sections = run_sections(found, measured.summary, measured.timing)
        print_detail(data, sections, mode=mode)
        return
    _print_records(found, row=row, failed=failed, limit=None if everything else limit, mode=mode)


def evals_dir_for(run: str) -> Path:
    """Where names are looked up; a folder that is given by its path needs no workspace."""
    return Path() if (Path(run) / "run.json").is_file() else find_workspace(Path()) / EVALS_DIR


def _print_groups(run: Run, key: str, *, limit: int | None, mode: Mode) -> None:
    groups = find_groups(run, key)
    shown = groups[:limit]
    print_list(
        [group.to_json() for group in shown],
        [group_row(group) for group in shown],
        GROUP_COLUMNS,
        total=len(groups),
        empty="",
        mode=mode,
    )


def _print_records(
    run: Run, *, row: int | None, failed: bool, limit: int | None, mode: Mode
) -> None:
    if row is not None and row not in run.selection:
        raise Misuse(f"run {run.name!r} takes the rows {run.selection}, and not row {row}")
    found = sorted(_choose(run, row=row, failed=failed), key=_place)
    shown = found[:limit]
    if row is not None and mode is not Mode.JSON:
        for record in shown:
            told = transcript_sections(run.paths.rollouts / record.rollout_id)
            print_sections([record_section(record, run), *told], mode=mode, with_titles=True)
        return
    print_list(
        [_data(record, run, with_messages=row is not None) for record in shown],
        [record_row(record) for record in shown],
        RECORD_COLUMNS,
        total=len(found),
        empty="No rollout failed.",
        mode=mode,
    )


def _data(record: Record, run: Run, *, with_messages: bool) -> dict[str, Any]:
    data = record_data(record, run)
    if with_messages:
        data["messages"] = read_messages(run.paths.rollouts / record.rollout_id)
    return data


def _choose(run: Run, *, row: int | None, failed: bool) -> Iterable[Record]:
    """The records of a row with every try, or those that failed and count."""
    records = (record for record in run.records() if row is None or record.row == row)
    return _failed(records) if failed else records


def _failed(records: Iterable[Record]) -> Iterable[Record]:
    # What did not fail is forgotten at once: of a large run that is nearly everything.
    last: dict[tuple[int, int], Record] = {}
    for record in records:
        if record.outcome in _FAILED:
            last[record.row, record.attempt] = record
        else:
            last.pop((record.row, record.attempt), None)
    return last.values()


_FAILED = FAILED | {Outcome.NO_RESULT}


def _place(record: Record) -> tuple[int, int, int]:
    return record.row, record.attempt, record.try_index
