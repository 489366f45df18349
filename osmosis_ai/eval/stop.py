"""A run is asked to end by another process: it finishes as after one Ctrl-C."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

from osmosis_ai.errors import RunError
from osmosis_ai.eval.lock import Holder, lock_holder, process_start
from osmosis_ai.eval.run_folder import Run

_PAUSE_SEC = 0.05


def stop_run(run: Run, *, patience_sec: float) -> bool:
    """Ask the process that works on a run to end, and wait until it has.

    False where nobody works on it. Raises RunError where the process cannot be told apart from
    another one of that id, is somebody else's, or still goes on after `patience_sec`.
    """
    holder = lock_holder(run.paths.lock)
    if holder is None and not run.is_running:
        return False
    _ask(run, holder)
    gives_up_at = time.monotonic() + patience_sec
    while run.is_running:
        if time.monotonic() >= gives_up_at:
            raise RunError(
                f"run {run.name!r} was asked to stop and still goes on after {patience_sec:g} s: "
                "a rollout does not end. Ask again to make its process leave at once; what has a "
                "record is safe."
            )
        time.sleep(_PAUSE_SEC)
    return True


def _ask(run: Run, holder: Holder | None) -> None:
    if holder is None or holder.started is None or process_start(holder.pid) != holder.started:
        raise RunError(
            f"run {run.name!r} is in use, and which process that is cannot be told from here: "
            "stop it with Ctrl-C where it runs"
        )
    with suppress(ProcessLookupError):  # it has ended in this moment
        os.kill(holder.pid, signal.SIGTERM)
