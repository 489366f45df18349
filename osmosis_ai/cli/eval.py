"""`osmosis eval run`: flags and a file become one config, and what it measures is shown."""

from __future__ import annotations

import logging
import shlex
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Self

import typer

from osmosis_ai.cli.capture import captured_prints
from osmosis_ai.cli.dry_run import print_plan
from osmosis_ai.cli.interrupt import run_interruptible
from osmosis_ai.cli.mode import Mode, Stopped
from osmosis_ai.cli.output import Fact, Section, console, print_operation, print_sections
from osmosis_ai.cli.problem import print_problem, print_warning
from osmosis_ai.cli.progress import RunBar, making_way
from osmosis_ai.cli.results import result_sections, rows_note, run_data, short_path
from osmosis_ai.cli.secrets import secrets_set
from osmosis_ai.errors import OsmosisError
from osmosis_ai.eval.config import load_config
from osmosis_ai.eval.evaluation import Observer, RunHeader, RunOptions, evaluate
from osmosis_ai.eval.metrics import Summary, find_doubts
from osmosis_ai.eval.outcome import FAILED, Outcome
from osmosis_ai.eval.run_folder import Run
from osmosis_ai.eval.runner import EvalResult, Progress


def run(
    ctx: typer.Context,
    config: Annotated[
        Path, typer.Argument(metavar="CONFIG", help="The TOML file of the evaluation.")
    ],
    name: Annotated[
        str | None, typer.Option(help="Name of the run; else the file's.", show_default=False)
    ] = None,
    n: Annotated[
        int | None, typer.Option("--n", "-n", help="Attempts at each row.", show_default=False)
    ] = None,
    limit: Annotated[
        int | None, typer.Option(help="Only the first so many rows.", show_default=False)
    ] = None,
    rows: Annotated[
        str | None,
        typer.Option(help="Only these rows, counted from 0: 0-9,12.", show_default=False),
    ] = None,
    max_in_flight: Annotated[
        int | None, typer.Option(min=1, help="Rollouts at once.", show_default=False)
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Archive the run of that name and start over.")
    ] = False,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Run again what failed.")
    ] = False,
    retry_no_result: Annotated[
        bool, typer.Option("--retry-no-result", help="Run again what has no result.")
    ] = False,
    min_scored: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="End with 1 where a smaller share of the rollouts is scored: 0.99.",
            show_default=False,
        ),
    ] = None,
    driver: Annotated[
        str | None,
        typer.Option(
            help="How rollouts are reached: in-process, process or http.", show_default=False
        ),
    ] = None,
    server: Annotated[
        str | None,
        typer.Option(metavar="URL", help="A running rollout server.", show_default=False),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would run, and run nothing.")
    ] = False,
    secrets_file: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="NAME=value lines; - reads them from stdin.", show_default=False
        ),
    ] = None,
) -> None:
    """Run an evaluation; the same command goes on with what is left of it."""
    mode: Mode = ctx.obj
    overrides = {"evaluation.n": n, "evaluation.limit": limit}
    options = RunOptions(
        name=name,
        rows=rows,
        max_in_flight=max_in_flight,
        fresh=fresh,
        retried=_retried(failed=retry_failed, no_result=retry_no_result),
        driver=driver,
        server_url=server,
    )
    loaded = load_config(config, overrides=overrides)
    if dry_run:
        print_plan(loaded, rows=rows, mode=mode)
        return
    required = loaded.file.secrets.required
    with secrets_set(required, file=secrets_file, mode=mode), _Watcher(mode) as watcher:
        result = run_interruptible(evaluate(loaded, options=options, observer=watcher))
    if result is None or watcher.run is None:
        raise typer.Exit(_print_stopped(watcher.run, mode))
    raise typer.Exit(_print_result(watcher.run, result, mode, min_scored=min_scored))


def _retried(*, failed: bool, no_result: bool) -> frozenset[Outcome]:
    return (FAILED if failed else frozenset()) | ({Outcome.NO_RESULT} if no_result else frozenset())


class _Watcher(Observer):
    """Shows how a run goes, and keeps what users' code prints out of our output."""

    def __init__(self, mode: Mode) -> None:
        self.run: Run | None = None
        self._mode = mode
        self._open = ExitStack()
        self._bar: RunBar | None = None
        self._debugged = False
        self._tracer = sys.gettrace()

    def __enter__(self) -> Self:
        self._capture = self._open.enter_context(captured_prints())
        self._open.enter_context(making_way(self._make_way))
        self._open.enter_context(_warnings_shown(self._mode))
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
        self._open.close()

    def opened(self, run: Run, notes: tuple[str, ...]) -> None:
        self.run = run
        self._capture.log_to(run.paths.log)
        for note in notes:
            print_warning(note, mode=self._mode)

    def started(self, header: RunHeader) -> None:
        if self._mode is not Mode.JSON:
            print_sections([_header(header)], mode=self._mode, file=sys.stderr)
        if self._mode is Mode.RICH and sys.stderr.isatty():
            self._bar = RunBar(console(sys.stderr), items=header.items, done=header.done)
            self._bar.start()

    def progressed(self, progress: Progress) -> None:
        if self._bar is None:
            return
        if self._debugged and sys.gettrace() in (None, self._tracer):
            self._debugged = False
            self._capture.resume()
            self._bar.start()
        self._bar.update(progress)

    def _make_way(self) -> None:
        """A debugger gets the terminal, until it has let the program go on."""
        if self._bar is not None:
            self._debugged = True
            self._bar.stop()
            self._capture.pause()


@contextmanager
def _warnings_shown(mode: Mode) -> Iterator[None]:
    """Our own warnings reach the person; a failed rollout's traceback is for the log."""
    handler = _Warnings(mode)
    handler.addFilter(lambda record: not record.name.startswith(_ROLLOUTS))
    ours = logging.getLogger("osmosis_ai")
    ours.addHandler(handler)
    try:
        yield
    finally:
        ours.removeHandler(handler)


_ROLLOUTS = "osmosis_ai.rollout.execution"


class _Warnings(logging.Handler):
    def __init__(self, mode: Mode) -> None:
        super().__init__(logging.WARNING)
        self._mode = mode

    def emit(self, record: logging.LogRecord) -> None:
        print_warning(record.getMessage(), mode=self._mode)


def _header(header: RunHeader) -> Section:
    run, done = header.run, header.done
    owed = f"{done:,} of {header.items:,} rollouts are done" if done else ""
    return Section(
        run.name,
        [
            Fact("Driver", header.driver, f"{header.max_in_flight} at once"),
            Fact("Model", run.document.config.experiment.model_path),
            Fact(
                "Data", run.document.dataset_path, rows_note(run, run.document.config.evaluation.n)
            ),
            Fact("Run folder", short_path(run.paths.folder), owed),
        ],
    )


def _print_result(run: Run, result: EvalResult, mode: Mode, *, min_scored: float | None) -> int:
    """Show what was measured; the exit code says whether all is done, and enough is scored."""
    summary = result.summary
    print_operation(
        "eval.run",
        status="partial" if summary.pending else "success",
        resource=run_data(run, summary),
        message=f"{summary.finished:,} of {summary.items:,} rollouts are done.",
        next_steps=list(_next_steps(run, result)),
        sections=result_sections(run, summary),
        mode=mode,
    )
    if result.halted_by is not None:
        print_problem(result.halted_by, mode=mode, command="eval run")
    for doubt in find_doubts(summary):
        print_warning(doubt, mode=mode)
    if min_scored is not None and summary.scored_share < min_scored:
        print_problem(_too_few(summary, min_scored), mode=mode, command="eval run")
        return 1
    return 1 if summary.pending else 0


def _too_few(summary: Summary, min_scored: float) -> OsmosisError:
    scored = summary.outcomes[Outcome.SCORED]
    return OsmosisError(
        f"{scored:,} of {summary.items:,} rollouts are scored ({summary.scored_share:.2%}), and "
        f"--min-scored asks for {min_scored:.2%}: the numbers leave out too much to be relied on."
    )


def _next_steps(run: Run, result: EvalResult) -> Iterator[dict[str, str]]:
    outcomes = result.summary.outcomes
    show = f"osmosis eval show {shlex.quote(_reachable(run))}"
    if any(outcomes[outcome] for outcome in (*FAILED, Outcome.NO_RESULT)):
        yield {"description": "See what failed", "command": f"{show} --failed"}
    yield {
        "description": "Look at one row",
        "command": f"{show} --row {run.selection.ranges[0][0]}",
    }


def _reachable(run: Run) -> str:
    """The run's name where `eval show` finds it by that, else its folder."""
    folder = run.paths.folder
    return run.name if Path.cwd().is_relative_to(folder.parents[2]) else short_path(folder)


def _print_stopped(run: Run | None, mode: Mode) -> int:
    message = "Nothing has run yet."
    if run is not None:
        summary = run.summarize()
        done = f"{summary.finished:,} of {summary.items:,} rollouts are done"
        message = f"{done}; the same command goes on from there."
    return print_problem(Stopped(message), mode=mode, command="eval run")
