"""Runs `osmosis eval run` again and again, each in a process that kills itself at one moment.

`python -m tests.eval.kill_runner` reads its legs as JSON from stdin, and answers with a line for
each. Every leg is a fork of one process that has imported everything: 50 legs cost seconds.
"""

from __future__ import annotations

import inspect
import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from osmosis_ai.cli.main import GROUPS, main
from osmosis_ai.eval import journal


def kill() -> None:
    """End this process as a power cut would."""
    os.kill(os.getpid(), signal.SIGKILL)


class Killer:
    """Kills the process when a step is about to happen for the `count`-th time."""

    def __init__(self, step: str, count: int) -> None:
        self._step = step
        self._count = count
        self._met: Counter[str] = Counter()

    def meet(self, step: str) -> None:
        self._met[step] += 1
        if step == self._step and self._met[step] == self._count:
            kill()

    def watch(self, records: Path) -> None:
        """Steps are files opened, renamed and made, as Python itself announces them, and what
        happens between a record and the disk."""
        sys.addaudithook(self._hear)
        write, fsync = os.write, os.fsync

        def is_journal(file: int) -> bool:
            return records.exists() and os.path.samestat(os.fstat(file), os.stat(records))

        def watched_write(file: int, data: Any) -> int:
            if not is_journal(file):
                return write(file, data)
            self.meet("write a record")
            half = len(data) // 2
            written = write(file, data[:half])
            self.meet("write the other half")
            return written + write(file, data[half:])

        def watched_fsync(file: int) -> None:
            if not is_journal(file):
                return fsync(file)
            self.meet("sync the journal")
            fsync(file)
            self.meet("acknowledge")
            return None

        os.write, os.fsync = watched_write, watched_fsync
        # It is the default of an argument, and was taken when the function was made.
        defaults: Any = inspect.unwrap(journal.open_journal).__kwdefaults__
        defaults["sync"] = watched_fsync

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        if event in _PLACE:
            path = args[_PLACE[event]]
            if isinstance(path, str | os.PathLike):
                found = Path(path)
                made = found.parent.name == "rollouts" and event == "os.mkdir"
                self.meet(f"{event} {'a rollout' if made else found.name.split('.archive')[0]}")


_PLACE = {"open": 0, "os.mkdir": 0, "os.rename": 1}
"""Which argument of an event is the path that names the step."""


def run_leg(leg: Mapping[str, Any]) -> None:
    """Be the process of one leg; returns only where it was not killed."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    if "step" in leg:
        Killer(leg["step"], leg["count"]).watch(Path(leg["journal"]))
    if "after_sec" in leg:
        threading.Timer(leg["after_sec"], kill).start()
    os._exit(main(leg["args"]))


def follow(leg: Mapping[str, Any]) -> dict[str, Any]:
    """Run a leg to its end, and say how long it took and what ended it."""
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        run_leg(leg)
    _, status = os.waitpid(child, 0)
    return {
        "code": os.waitstatus_to_exitcode(status),
        "seconds": time.monotonic() - started,
    }


if __name__ == "__main__":
    import_module(GROUPS["eval"].commands["run"].target.partition(":")[0])
    for line in sys.stdin:
        print(json.dumps(follow(json.loads(line))), flush=True)
