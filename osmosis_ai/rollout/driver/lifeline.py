"""A process group ends with the process that started it, however that one ended.

`hold_lifeline` starts this file as a program of the standard library alone, in a session of its
own: it works while the group's code blocks, and is there when the group has to be killed.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence

PATIENCE_SEC = 5.0
"""How long a group that was told to end is waited for."""

_POLL_SEC = 0.05


def hold_lifeline(lifeline: int) -> None:
    """End our own process group when the other end of this pipe is closed."""
    os.set_inheritable(lifeline, True)
    arguments = [sys.executable, "-I", "-S", __file__, str(lifeline), str(os.getpgrp())]
    # Not `subprocess`: nobody waits for it, and it ends after us.
    os.posix_spawn(sys.executable, arguments, os.environ, file_actions=_SILENT)
    os.close(lifeline)


# Whoever reads what the server prints waits until nobody can print any more.
_SILENT = [(os.POSIX_SPAWN_OPEN, stream, os.devnull, os.O_WRONLY, 0) for stream in (1, 2)]


def end_group(group: int, *, patience_sec: float = PATIENCE_SEC) -> None:
    """Tell a process group to end, and kill what is left of it when patience ends."""
    ends = time.monotonic() + patience_sec
    there = _signal(group, signal.SIGTERM)
    while there and time.monotonic() < ends:
        time.sleep(_POLL_SEC)
        there = _signal(group, 0)
    if there:
        _signal(group, signal.SIGKILL)


def _signal(group: int, number: int) -> bool:
    """Whether there was anybody to signal; macOS does not permit it for the dead."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def main(arguments: Sequence[str]) -> None:
    """Wait for the end of the pipe that is named first, and end the group that is named second."""
    lifeline, group = map(int, arguments)
    os.read(lifeline, 1)
    end_group(group)


if __name__ == "__main__":
    # Out of the group: it has to outlive it.
    os.setsid()
    main(sys.argv[1:])
