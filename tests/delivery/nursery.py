"""A process whose children are killed again and again: each is a fork with its imports done."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, NoReturn


def raise_children(live: Callable[[dict[str, Any]], None]) -> None:
    """Read one plan a line, let a child live by it, and say how it died.

    A line that is empty ends the child that lives, gently.
    """
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _live(live, json.loads(line))
        _, status = os.waitpid(child, 0)
        print(json.dumps({"died_of": os.waitstatus_to_exitcode(status)}), flush=True)


def tell_ready(**said: Any) -> None:
    """Say that this life has begun."""
    print(json.dumps({"pid": os.getpid(), **said}), flush=True)


def die() -> NoReturn:
    """End this life as a power cut would."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("not reached")


def _live(live: Callable[[dict[str, Any]], None], plan: dict[str, Any]) -> NoReturn:
    try:
        live(plan)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    os._exit(0)
