"""When a failed model call is tried again, and after how long."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

_FIRST_PAUSE_SEC = 0.5
_LONGEST_PAUSE_SEC = 8.0
_PASSING = frozenset({408, 429})


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often to try again; sleep, dice and clock are arguments so that tests need no time."""

    max_retries: int = 0
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    dice: Callable[[], float] = random.random
    """A number from 0 up to 1 for each pause: calls that failed together do not return together."""
    now: Callable[[], float] = time.time
    """Seconds since the epoch, for a `Retry-After` that is a date."""

    def pause_sec(self, failures: int, *, retry_after: str | None) -> float | None:
        """Seconds to wait after so many failures; None where it is time to give up."""
        if failures > self.max_retries:
            return None
        asked = retry_after_sec(retry_after, now=self.now())
        if asked is not None:
            return asked
        longest: float = min(_LONGEST_PAUSE_SEC, _FIRST_PAUSE_SEC * 2 ** (failures - 1))
        return longest * (0.5 + 0.5 * self.dice())


def retry_after_sec(header: str | None, *, now: float) -> float | None:
    """Seconds a `Retry-After` header asks for, as a number or a date; None where it makes no sense.

    `now` is in seconds since the epoch.
    """
    if header is None:
        return None
    text = header.strip()
    if text.isascii() and text.replace(".", "", 1).isdigit():
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - now)
    except (ValueError, OverflowError):
        return None


def is_passing(status: int) -> bool:
    """Whether an answer of this status may be another one on the next try."""
    return status >= 500 or status in _PASSING


def is_outside_the_agent(status: int) -> bool:
    """Whether a status says that the call failed for reasons the agent has no part in.

    The agent's own mistakes are bodies the model refuses. A rejected key, an unknown model or
    path, an exhausted account belong to whoever started the run.
    """
    return is_passing(status) or 300 <= status < 400 or status in _RUN_OWNERS


_RUN_OWNERS = frozenset({401, 402, 403, 404, 405, 407})
