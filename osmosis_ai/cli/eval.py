"""`osmosis eval run`: flags and a file become one config, and what it measures is shown."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import typer

from osmosis_ai.cli import flags
from osmosis_ai.cli.confirm import confirm
from osmosis_ai.cli.dry_run import print_plan
from osmosis_ai.cli.groups import group_sections, groups_beside
from osmosis_ai.cli.interrupt import run_interruptible
from osmosis_ai.cli.mode import Mode, Stopped
from osmosis_ai.cli.output import print_operation
from osmosis_ai.cli.problem import print_problem, print_warning
from osmosis_ai.cli.results import result_sections, run_data, short_path
from osmosis_ai.cli.secrets import secrets_set
from osmosis_ai.cli.watcher import Watcher
from osmosis_ai.errors import OsmosisError
from osmosis_ai.eval.breakdown import GroupSummary
from osmosis_ai.eval.config import EvalConfig, load_config
from osmosis_ai.eval.evaluation import RunOptions, evaluate
from osmosis_ai.eval.forecast import forecast_run
from osmosis_ai.eval.metrics import Summary, find_doubts
from osmosis_ai.eval.outcome import FAILED, Outcome
from osmosis_ai.eval.run_folder import Run
from osmosis_ai.eval.runner import EvalResult


# Most parameters are read from `ctx.params`: what each of them sets is said in one table.
def run(
    ctx: typer.Context,
    config: flags.Config,
    name: flags.Name = None,
    n: flags.Attempts = None,
    limit: flags.Limit = None,
    rows: flags.Rows = None,
    max_in_flight: flags.MaxInFlight = None,
    adaptive: flags.Adaptive = None,
    fresh: flags.Fresh = False,
    retry_failed: flags.RetryFailed = False,
    retry_no_result: flags.RetryNoResult = False,
    min_scored: flags.MinScored = None,
    by: flags.By = None,
    driver: flags.Driver = None,
    server: flags.Server = None,
    listen: flags.Listen = None,
    advertise_url: flags.AdvertiseUrl = None,
    max_cost: flags.MaxCost = None,
    run_max_cost: flags.RunMaxCost = None,
    yes: flags.Yes = False,
    stall_sec: flags.StallSec = None,
    probe: flags.Probe = None,
    isolated: flags.Isolated = False,
    dry_run: flags.DryRun = False,
    secrets_file: flags.SecretsFile = None,
) -> None:
    """Run an evaluation; the same command goes on with what is left of it."""
    mode: Mode = ctx.obj
    loaded = load_config(config, overrides=flags.overrides(ctx.params))
    if dry_run:
        print_plan(loaded, rows=rows, mode=mode)
        return
    options = flags.run_options(ctx.params)
    with secrets_set(loaded.file.secrets.required, file=secrets_file, mode=mode):
        forecast = forecast_run(loaded, options=options, environ=os.environ)
        if forecast is not None:
            confirm(forecast, yes=yes, mode=mode)
        wishes = _Wishes(mode, min_scored, by, partial(flags.command, ctx), options.fresh)
        raise typer.Exit(_run(loaded, options, wishes))


class _Wishes(NamedTuple):
    """How a person wants to be told of a run."""

    mode: Mode
    min_scored: float | None
    by: str | None
    again: Callable[[str], str]
    """Their command with one more flag."""
    fresh: bool

    @property
    def same(self) -> str:
        """The command that goes on: once more `--fresh` would start over once more."""
        return "the same command without --fresh" if self.fresh else "the same command"


def _run(config: EvalConfig, options: RunOptions, wishes: _Wishes) -> int:
    mode = wishes.mode
    with Watcher(mode) as watcher:
        result = run_interruptible(evaluate(config, options=options, observer=watcher))
    if result is None or watcher.run is None:
        return _print_stopped(watcher.run, wishes)
    return _print_result(watcher.run, result, wishes)


def _print_result(run: Run, result: EvalResult, wishes: _Wishes) -> int:
    """Show what was measured; the exit code says whether all is done, and enough is scored."""
    summary, (mode, min_scored, by, again, _) = result.summary, wishes
    groups = groups_beside(run, by, mode=mode)
    is_whole = result.halted_by is None and not summary.pending
    print_operation(
        "eval.run",
        status="success" if is_whole else "partial",
        resource=run_data(run, summary, result.timing) | _grouped(by, groups),
        message=_message(result, wishes.same),
        next_steps=list(_next_steps(run, result, again)),
        sections=[*result_sections(run, summary, result.timing), *group_sections(by, groups)],
        mode=mode,
    )
    for doubt in find_doubts(summary):
        print_warning(doubt, mode=mode)
    if result.halted_by is not None:
        print_problem(result.halted_by, mode=mode, command="eval run")
    if min_scored is not None and summary.scored_share < min_scored:
        print_problem(_too_few(summary, min_scored), mode=mode, command="eval run")
        return 1
    return 0 if is_whole else 1


def _grouped(by: str | None, groups: Sequence[GroupSummary]) -> dict[str, Any]:
    return {} if by is None else {"by": by, "groups": [group.to_json() for group in groups]}


def _message(result: EvalResult, same: str) -> str:
    summary = result.summary
    lost = summary.outcomes[Outcome.NO_RESULT]
    without = f", {lost:,} of them without a result" if lost else ""
    done = f"{summary.finished:,} of {summary.items:,} rollouts are done{without}."
    if result.halted_by is None:
        return done
    return f"{done} T{same[1:]} goes on with the other {summary.pending:,}."


def _too_few(summary: Summary, min_scored: float) -> OsmosisError:
    scored = summary.outcomes[Outcome.SCORED]
    return OsmosisError(
        f"{scored:,} of {summary.items:,} rollouts are scored ({summary.scored_share:.2%}), and "
        f"--min-scored asks for {min_scored:.2%}: the numbers leave out too much to be relied on."
    )


def _next_steps(
    run: Run, result: EvalResult, again: Callable[[str], str]
) -> Iterator[dict[str, str]]:
    outcomes = result.summary.outcomes
    show = f"osmosis eval show {shlex.quote(_reachable(run))}"
    lost, failed = outcomes[Outcome.NO_RESULT], sum(outcomes[outcome] for outcome in FAILED)
    if lost or failed:
        yield {"description": "See what failed", "command": f"{show} --failed"}
    if lost:
        yield _retry(f"the {lost:,} without a result", again("--retry-no-result"))
    if failed:
        yield _retry(f"the {failed:,} that failed", again("--retry-failed"))
    yield {
        "description": "Look at one row",
        "command": f"{show} --row {run.selection.ranges[0][0]}",
    }


def _retry(which: str, command: str) -> dict[str, str]:
    return {"description": f"Run {which} again", "command": command}


def _reachable(run: Run) -> str:
    """The run's name where `eval show` finds it by that, else its folder."""
    folder = run.paths.folder
    return run.name if Path.cwd().is_relative_to(folder.parents[2]) else short_path(folder)


def _print_stopped(run: Run | None, wishes: _Wishes) -> int:
    message = "Nothing has run yet."
    if run is not None:
        summary = run.summarize()
        done = f"{summary.finished:,} of {summary.items:,} rollouts are done"
        message = f"{done}; {wishes.same} goes on from there."
    return print_problem(Stopped(message), mode=wishes.mode, command="eval run")
