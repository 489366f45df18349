"""`osmosis eval stop`: end a run from another terminal, as Ctrl-C does in its own."""

from __future__ import annotations

from typing import Annotated

import typer

from osmosis_ai.cli.mode import Mode
from osmosis_ai.cli.output import print_operation
from osmosis_ai.cli.results import run_data
from osmosis_ai.cli.runs import evals_dir_for
from osmosis_ai.eval.run_folder import find_run
from osmosis_ai.eval.stop import stop_run


def stop(
    ctx: typer.Context,
    run: Annotated[str, typer.Argument(metavar="RUN", help="The name of a run, or its folder.")],
    patience: Annotated[float, typer.Option(min=0, help="Wait so many seconds.")] = 60.0,
) -> None:
    """Ask a running evaluation to end, and wait until it has."""
    mode: Mode = ctx.obj
    found = find_run(run, evals_dir=evals_dir_for(run))
    stopped = stop_run(found, patience_sec=patience)
    summary = found.summarize()
    done = f"{summary.finished:,} of {summary.items:,} rollouts are done"
    said = f"Stopped: {done}." if stopped else f"Nobody works on it: {done}."
    print_operation(
        "eval.stop",
        status="success" if stopped else "noop",
        resource=run_data(found, summary),
        message=f"{said} The command that ran it goes on from there.",
        next_steps=[],
        sections=[],
        mode=mode,
    )
