"""The deadline clock: it rings in the listener's thread, whatever the caller's loop is doing."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Hashable


class DeadlineClock:
    """Rings for keys that are due; threads may set and drop them.

    Dropping costs no wake-up, and setting only where the new deadline is the next one: a run opens
    and closes thousands of rollouts whose deadlines never come.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[Hashable], None]) -> None:
        self.loop = loop
        self._ring = ring
        self._lock = threading.Lock()
        self._due: dict[Hashable, float] = {}
        self._next = math.inf
        self._timer: asyncio.TimerHandle | None = None

    def set(self, key: Hashable, after_sec: float) -> None:
        """Ring for the key after so many seconds, at once where there are none left."""
        at = self.loop.time() + max(0.0, after_sec)
        with self._lock:
            self._due[key] = at
            is_next = at < self._next
            if is_next:
                self._next = at
        if is_next:
            self.loop.call_soon_threadsafe(self._wind)

    def drop(self, key: Hashable) -> None:
        """Forget the key; it does not ring any more, unless it just did."""
        with self._lock:
            self._due.pop(key, None)

    def _wind(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if self._next < math.inf:
            self._timer = self.loop.call_at(self._next, self._strike)

    def _strike(self) -> None:
        now = self.loop.time()
        with self._lock:
            due = [key for key, at in self._due.items() if at <= now]
            for key in due:
                del self._due[key]
            self._next = min(self._due.values(), default=math.inf)
        self._wind()
        for key in due:
            self._ring(key)
