"""How a run is watched: its header, its bar, its warnings, and prints kept out of our output."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Self

from rich.markup import escape
from rich.status import Status

from osmosis_ai.cli.capture import captured_prints
from osmosis_ai.cli.mode import Mode
from osmosis_ai.cli.output import Fact, Section, console, print_sections
from osmosis_ai.cli.problem import print_warning
from osmosis_ai.cli.progress import RunBar, making_way
from osmosis_ai.cli.results import rows_note, short_path
from osmosis_ai.eval.config import EvaluationSection
from osmosis_ai.eval.evaluation import Observer, RunHeader
from osmosis_ai.eval.pace import START
from osmosis_ai.eval.run_folder import Run
from osmosis_ai.eval.runner import Progress


class Watcher(Observer):
    """Shows how a run goes, and keeps what users' code prints out of our output."""

    def __init__(self, mode: Mode) -> None:
        self.run: Run | None = None
        self._mode = mode
        self._open = ExitStack()
        self._steps: Status | None = None
        self._bar: RunBar | None = None
        self._debugged = False
        self._tracer = sys.gettrace()

    def __enter__(self) -> Self:
        self._capture = self._open.enter_context(captured_prints())
        self._open.enter_context(making_way(self._make_way))
        self._open.enter_context(_warnings_shown(self._mode))
        return self

    def __exit__(self, *_: object) -> None:
        self._prepared()
        if self._bar is not None:
            self._bar.stop()
        self._open.close()

    def opened(self, run: Run, notes: tuple[str, ...]) -> None:
        self.run = run
        self._capture.log_to(run.paths.log)
        for note in notes:
            print_warning(note, mode=self._mode)

    def preparing(self, step: str) -> None:
        if self._mode is Mode.RICH and sys.stderr.isatty():
            self._prepared()
            self._steps = console(sys.stderr).status(escape(step))
            self._steps.start()
        elif self._mode is not Mode.JSON:
            print(f"{step} ...", file=sys.stderr)

    def _prepared(self) -> None:
        if self._steps is not None:
            self._steps.stop()

    def started(self, header: RunHeader) -> None:
        self._prepared()
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


def _at_once(header: RunHeader) -> str:
    most = header.max_in_flight
    if not header.run.document.config.evaluation.adaptive:
        return f"{most} at once"
    return f"{min(START, most)} at once, growing to {most} while that gets more done"


def _listener(evaluation: EvaluationSection) -> Iterator[Fact]:
    if evaluation.listen is not None:
        advertised = evaluation.advertise_url
        told = "" if advertised is None else f"rollouts call {advertised}"
        yield Fact("Listener", evaluation.listen, told)


def _header(header: RunHeader) -> Section:
    run, done = header.run, header.done
    owed = f"{done:,} of {header.items:,} rollouts are done" if done else ""
    return Section(
        run.name,
        [
            Fact("Driver", header.driver, _at_once(header)),
            Fact("Model", run.document.config.experiment.model_path),
            Fact(
                "Data", run.document.dataset_path, rows_note(run, run.document.config.evaluation.n)
            ),
            *_listener(run.document.config.evaluation),
            Fact("Run folder", short_path(run.paths.folder), owed),
        ],
    )
