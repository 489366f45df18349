"""Ctrl-C: once ends a run cleanly, twice leaves at once."""

from __future__ import annotations

import asyncio
import os
import signal
from bdb import BdbQuit
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

from osmosis_ai.cli.mode import Stopped

T = TypeVar("T")


def run_interruptible(work: Coroutine[Any, Any, T]) -> T | None:
    """Run a coroutine; Ctrl-C, or SIGTERM, cancels it, and the result is None when it has ended.

    A second one ends the process, whatever users' code does meanwhile. `q` at the prompt of a
    debugger ends the work too.
    """
    with asyncio.Runner() as runner:
        task = runner.get_loop().create_task(work)
        with _handling(_Interrupt(task)) as interrupt:
            try:
                return runner.run(_await(task))
            except asyncio.CancelledError:
                if interrupt.count:
                    return None
                raise
            except BdbQuit:
                return None


async def _await(task: asyncio.Task[T]) -> T:
    return await task


class _Interrupt:
    """A signal handler of our own, not the loop's: it runs also while users' code blocks."""

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self._task = task
        self.count = 0

    def __call__(self, _signal: int, _frame: FrameType | None) -> None:
        self.count += 1
        if self.count > 1:
            # Not sys.exit: a rollout that swallows its cancellation would be waited for.
            os._exit(Stopped.exit_code)
        # Not print: it may be in the middle of one.
        os.write(2, b"\nStopping what runs. Press Ctrl-C again to leave at once.\n")
        self._task.get_loop().call_soon_threadsafe(self._task.cancel)


@contextmanager
def _handling(interrupt: _Interrupt) -> Iterator[_Interrupt]:
    kinds = (signal.SIGINT, signal.SIGTERM)
    before = {kind: signal.signal(kind, interrupt) for kind in kinds}
    try:
        yield interrupt
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)
