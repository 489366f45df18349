"""The deadline clock: it rings in the listener's thread, whatever the caller's loop is doing."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager

_GRAIN_SEC = 0.01


class Seconds:
    """Time that passes, but not while somebody holds it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holders = 0
        self._held: tuple[float | None, float] = (None, 0.0)
        """Since when it is held, and how long it was before; replaced as a whole."""

    def now(self) -> float:
        """Seconds since some beginning."""
        # Without the lock: every model call asks, from several threads.
        since, held_sec = self._held
        return (time.monotonic() if since is None else since) - held_sec

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Let no time pass until the block ends; blocks of several threads may overlap."""
        with self._lock:
            if not self._holders:
                self._held = (time.monotonic(), self._held[1])
            self._holders += 1
        try:
            yield
        finally:
            with self._lock:
                self._holders -= 1
                since, held_sec = self._held
                if not self._holders and since is not None:
                    self._held = (None, held_sec + time.monotonic() - since)


# One for the process, as a debugger holds the whole of it.
_SECONDS = Seconds()


def hold_deadlines() -> AbstractContextManager[None]:
    """Let no deadline of this process come nearer until the block ends: a debugger's prompt."""
    return _SECONDS.hold()


class DeadlineClock:
    """Rings for keys that are due; threads may set and drop them.

    Dropping costs no wake-up, and setting only where the new deadline is the next one: a run opens
    and closes thousands of rollouts whose deadlines never come.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        ring: Callable[[Hashable], None],
        *,
        seconds: Seconds = _SECONDS,
    ) -> None:
        self.loop = loop
        self._ring = ring
        self._seconds = seconds
        self._lock = threading.Lock()
        self._due: dict[Hashable, float] = {}
        self._next = math.inf
        self._timer: asyncio.TimerHandle | None = None

    def now(self) -> float:
        """The time deadlines are set in."""
        return self._seconds.now()

    def set(self, key: Hashable, at: float) -> None:
        """Ring for the key at this time, or at once where it has passed."""
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

    def _wind(self, *, least_sec: float = 0.0) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if self._next < math.inf:
            pause_sec = max(least_sec, self._next - self.now())
            self._timer = self.loop.call_later(pause_sec, self._strike)

    def _strike(self) -> None:
        now = self.now()
        with self._lock:
            # In their own order, also where a busy loop comes late to several.
            due = sorted(
                (key for key, at in self._due.items() if at <= now), key=self._due.__getitem__
            )
            for key in due:
                del self._due[key]
            self._next = min(self._due.values(), default=math.inf)
        # Nothing due means that time was held meanwhile, or that the timer was a hair early.
        self._wind(least_sec=0.0 if due else _GRAIN_SEC)
        for key in due:
            self._ring(key)
