"""The progress bar of a run, on stderr; it makes way for prints and for a debugger."""

from __future__ import annotations

import os
import pdb  # noqa: T100 - `breakpoint()` is made to work, not called
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from osmosis_ai.eval.outcome import Outcome
from osmosis_ai.eval.runner import Progress as RunProgress
from osmosis_ai.rollout.controller.clock import hold_deadlines

NARROW = 70
"""Fewer columns than this have no room for the time that is left."""


class RunBar:
    """How far a run is, how good and how broken."""

    def __init__(self, console: Console, *, items: int, done: int) -> None:
        columns = [
            BarColumn(bar_width=None),
            TextColumn("{task.completed}/{task.total}"),
            TextColumn("{task.fields[state]}"),
        ]
        if console.width >= NARROW:
            columns.append(TimeRemainingColumn(compact=True))
        self._bar = Progress(*columns, console=console, redirect_stdout=False, expand=True)
        self._task = self._bar.add_task("", total=items, completed=done, state="")
        self.shown = False

    def start(self) -> None:
        """Show it."""
        self._bar.start()
        self.shown = True

    def stop(self) -> None:
        """Leave the terminal to others; what it showed last stays."""
        self._bar.stop()
        self.shown = False

    def update(self, progress: RunProgress) -> None:
        """Show where the run is now."""
        self._bar.update(self._task, completed=progress.finished, state=describe(progress))


def describe(progress: RunProgress) -> str:
    """The mean so far with its denominator, and what went wrong: `mean 0.62 of 40, 3 failed`."""
    outcomes = progress.outcomes
    scored = outcomes[Outcome.SCORED]
    failed = outcomes[Outcome.WORKFLOW_FAILED] + outcomes[Outcome.GRADER_FAILED]
    parts = [f"mean {progress.reward_sum / scored:.2f} of {scored}"] if scored else []
    if failed:
        parts.append(f"{failed} failed")
    if outcomes[Outcome.NO_RESULT]:
        parts.append(f"{outcomes[Outcome.NO_RESULT]} no result")
    return ", ".join(parts)


@contextmanager
def making_way(pause: Callable[[], None]) -> Iterator[None]:
    """Call `pause` before `breakpoint()` takes the terminal."""

    def hook(*args: Any, **options: Any) -> None:
        pause()
        if "PYTHONBREAKPOINT" in os.environ:
            sys.__breakpointhook__(*args, **options)  # noqa: T100 - as above
        else:
            debugger = _Debugger()
            debugger.message(options.get("header") or "")
            # The frame of whoever called, not this one.
            debugger.set_trace(sys._getframe(1))

    before, sys.breakpointhook = sys.breakpointhook, hook
    try:
        yield
    finally:
        sys.breakpointhook = before


class _Debugger(pdb.Pdb):
    """At its prompt no deadline comes nearer: a rollout is not late because a person thinks."""

    def cmdloop(self, intro: Any = None) -> None:
        with hold_deadlines():
            super().cmdloop(intro)
