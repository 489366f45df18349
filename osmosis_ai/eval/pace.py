"""How many rollouts run at once: a number, or as many as latency and refusals let it become."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from osmosis_ai.rollout.types import ExecutionOutcome, ModelUsage

logger = logging.getLogger(__name__)

START = 4
"""Rollouts at once in the beginning."""

LEAST_GAIN = 0.2
"""How much of what is added must come out as more work done; less is only more waiting."""

_LEAST_ROUND = 8
_REST_ROUNDS = 8
_KEPT_CHANGES = 200
_REFUSALS = frozenset({408, 429})


class Ticket(NamedTuple):
    """Of one rollout: under which limit it began, and when."""

    round: int
    began: float


class Pace(ABC):
    """Says how many rollouts may run at once, and is told how each of them ended."""

    limit: int

    @abstractmethod
    def begin(self) -> Ticket:
        """One more rollout begins."""

    @abstractmethod
    def end(self, ticket: Ticket, outcome: ExecutionOutcome | None) -> None:
        """It has ended; None where its driver lost it."""

    @abstractmethod
    def to_json(self) -> dict[str, object]:
        """As `timing.json` keeps it."""


@dataclass(slots=True)
class SteadyPace(Pace):
    """The same number all the time."""

    limit: int

    def begin(self) -> Ticket:
        """Nothing is counted."""
        return _NO_TICKET

    def end(self, ticket: Ticket, outcome: ExecutionOutcome | None) -> None:
        """Nothing changes."""

    def to_json(self) -> dict[str, object]:
        """The number."""
        return {"max_in_flight": self.limit}


_NO_TICKET = Ticket(0, 0.0)


@dataclass(slots=True)
class AdaptivePace(Pace):
    """Begins low and doubles, round by round, until that no longer gets more done.

    A round is over when as many rollouts as may run at once have begun and ended in it; its latency
    is the median of theirs, by model call where they made any. Where more at once have mostly made
    the calls slower, the number before is taken again. Where the model refuses (429), or its calls
    had to be tried again, the number is halved. After either it rests for some rounds, and then
    grows slowly.
    """

    most: int
    now: Callable[[], float] = time.monotonic
    limit: int = field(init=False)
    changes: list[tuple[float, int, str]] = field(default_factory=list)
    """Seconds since the start, the number from then on, and why; the newest ones."""
    _started: float = field(init=False)
    _round: int = 0
    _latencies: list[float] = field(default_factory=list)
    _before: tuple[int, float] | None = None
    """The number that is known to be good, and its latency."""
    _is_slow: bool = False
    _rest: int = 0

    def __post_init__(self) -> None:
        self.limit = min(START, self.most)
        self._started = self.now()
        self.changes.append((0.0, self.limit, "start"))

    def begin(self) -> Ticket:
        """Take note of when, and under which number."""
        return Ticket(self._round, self.now())

    def end(self, ticket: Ticket, outcome: ExecutionOutcome | None) -> None:
        """Count it, where it began under the number that holds now."""
        if outcome is None or ticket.round != self._round:
            return
        if _is_refused(outcome.usage):
            self._back_off()
            return
        self._latencies.append(_call_sec(outcome) or self.now() - ticket.began)
        if len(self._latencies) >= max(self.limit, _LEAST_ROUND):
            self._judge(median(self._latencies))

    def to_json(self) -> dict[str, object]:
        """The bounds, and what became of it."""
        changes = [
            {"at_sec": round(at_sec, 3), "in_flight": limit, "why": why}
            for at_sec, limit, why in self.changes
        ]
        return {"max_in_flight": self.most, "adaptive": changes}

    def _judge(self, latency: float) -> None:
        before = self._before
        if before is not None and self.limit > before[0] and not _pays(before, self.limit, latency):
            self._slow_down(before[0], "latency")
            return
        self._before = (self.limit, latency)
        self._rest -= 1
        if self._rest >= 0 or self.limit == self.most:
            self._begin_round()
            return
        step = max(1, self.limit // 8) if self._is_slow else self.limit
        self._set(min(self.most, self.limit + step), "growth")

    def _back_off(self) -> None:
        self._before = None
        self._slow_down(max(1, self.limit // 2), "refusals")

    def _slow_down(self, limit: int, why: str) -> None:
        self._is_slow, self._rest = True, _REST_ROUNDS
        self._set(limit, why)

    def _set(self, limit: int, why: str) -> None:
        self._begin_round()
        if limit != self.limit:
            self.limit = limit
            logger.info("%d rollouts at once: %s", limit, why)
            self.changes.append((self.now() - self._started, limit, why))
            del self.changes[:-_KEPT_CHANGES]

    def _begin_round(self) -> None:
        self._round += 1
        self._latencies.clear()


def _pays(before: tuple[int, float], limit: int, latency: float) -> bool:
    """Whether so many more at once get enough more done, by Little's law."""
    added = limit / before[0] - 1
    gained = (limit / before[0]) * (before[1] / latency) - 1 if latency else added
    return gained >= LEAST_GAIN * added


def _is_refused(usage: ModelUsage | None) -> bool:
    if usage is None:
        return False
    status = usage.last_failure_status
    return usage.retries > 0 or (status is not None and (status in _REFUSALS or status >= 500))


def _call_sec(outcome: ExecutionOutcome) -> float | None:
    """The mean of a rollout's model calls."""
    calls = () if outcome.timing is None else outcome.timing.call_sec
    return sum(calls) / len(calls) if calls else None
