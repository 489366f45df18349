"""The last record of each item, in some hundred bytes, in the order of row and attempt."""

from __future__ import annotations

import math
import re
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

from osmosis_ai.eval.estimate import Rewards
from osmosis_ai.eval.outcome import Outcome
from osmosis_ai.eval.record import Record

PARTS = ("waiting", "model", "tools", "grading")
"""Of the time of a rollout."""

_SECONDS = ("duration_sec", *(f"{part}_sec" for part in PARTS))

USAGE = ("calls", "failed_calls", "prompt_tokens", "completion_tokens", "total_tokens")


class Complaint(NamedTuple):
    """What went wrong, as far as it is the same for many rollouts."""

    outcome: Outcome
    category: str
    """Empty where there is none."""
    message: str
    """One line, shortened; `*` stands for what names one rollout alone."""


class RowTally(NamedTuple):
    """The attempts at one row."""

    row: int
    outcomes: list[Outcome]
    rewards: list[float]
    """Those that count."""


@dataclass(slots=True)
class Tally:
    """What a summary is made from; made by `tally`."""

    n: int
    workflow_failed_reward: float | None
    superseded: int = 0
    """Records that a later try at the same item replaced."""
    retries: int | None = None
    """Goes at model calls after their first, in every try; None where nobody saw calls."""
    cost_usd: float = 0.0
    """Of every try whose cost is known."""
    priced: int = 0
    """How many these are."""
    call_sec: array[float] = field(default_factory=lambda: array("f"))
    """Seconds of each model call that was answered, in every try."""
    _size: int = 0
    """Items up to the last that has a record; the columns may have room for more."""
    _codes: bytearray = field(default_factory=bytearray)
    """0 for an item without a record, else its outcome's place."""
    _rewards: array[float] = field(default_factory=lambda: array("d"))
    """The reward that counts; NaN where there is none."""
    _seconds: tuple[array[float], ...] = field(
        default_factory=lambda: tuple(array("f") for _ in _SECONDS)
    )
    """A column for each duration, to seven digits; NaN where nobody measured."""
    _usage: tuple[array[int], ...] = field(default_factory=lambda: tuple(array("q") for _ in USAGE))
    """A column for each field of usage; -1 for what was not seen."""
    _complaints: array[int] = field(default_factory=lambda: array("i"))
    """The place of what went wrong in `_complaint_places`; -1 where nothing did."""
    _complaint_places: dict[Complaint, int] = field(default_factory=dict)
    _examples: dict[Complaint, str] = field(default_factory=dict)
    """The first of each as it was told, where that is more than what they have in common."""
    _varied: set[Complaint] = field(default_factory=set)
    """Those that were told in more than one way."""

    @property
    def finished(self) -> int:
        """Items that have a record."""
        return self._size - self._codes.count(0, 0, self._size)

    def outcome_counts(self) -> dict[str, int]:
        """How many items ended in each of the outcomes."""
        return {outcome.value: self._codes.count(code) for outcome, code in _CODES.items()}

    def rows(self) -> Iterator[RowTally]:
        """Each row up to the last that has a record."""
        for start in range(0, self._size, self.n):
            codes = self._codes[start : start + self.n]
            outcomes = [_OUTCOMES[code - 1] for code in codes if code]
            yield RowTally(start // self.n, outcomes, self._row_rewards(start))

    def rewards(self) -> Rewards:
        """The rewards that count, row by row."""
        found = Rewards()
        for start in range(0, self._size, self.n):
            found.add_row(self._row_rewards(start))
        return found

    def usage(self) -> dict[str, int]:
        """Totals, and over how many items somebody saw them."""
        totals = {
            name: sum(seen for seen in column if seen > 0)
            for name, column in zip(USAGE, self._usage, strict=True)
        }
        return totals | {"over": sum(calls >= 0 for calls in self._usage[0])}

    def seconds(self, name: str) -> array[float]:
        """A duration of a record, such as `duration_sec`, of the items where it was measured."""
        column = self._seconds[_SECONDS.index(name)]
        return array("f", (seconds for seconds in column if seconds == seconds))

    def complaints(self) -> list[tuple[Complaint, int]]:
        """What went wrong and how often, the most frequent first."""
        counts = Counter(place for place in self._complaints if place >= 0)
        found = [(text, counts[place]) for text, place in self._complaint_places.items()]
        return sorted(
            ((text, count) for text, count in found if count), key=lambda one: (-one[1], one[0])
        )

    def example(self, complaint: Complaint) -> str:
        """One that was told so, ports and numbers included, and whether others have others."""
        told = self._examples.get(complaint, complaint.message)
        return f"{told}, and the like" if complaint in self._varied else told

    def add(self, record: Record) -> None:
        """Take in a record; it replaces an earlier try at its item."""
        place = record.row * self.n + record.attempt
        if place >= self._size:
            self._size = place + 1
            self._make_room()
        self.superseded += self._codes[place] != 0
        self._codes[place] = _OUTCOMES.index(record.outcome) + 1
        self._rewards[place] = _or_nan(self._reward(record))
        for seconds, measured in zip(self._seconds, _measured(record), strict=True):
            seconds[place] = math.nan if measured is None else measured
        self._complaints[place] = self._complaint_place(record)
        for column, seen in zip(self._usage, _used(record), strict=True):
            column[place] = -1 if seen is None else seen
        self._add_spending(record)

    def _add_spending(self, record: Record) -> None:
        """What a try took was taken, whether the try counts or not."""
        if record.retries is not None:
            self.retries = (self.retries or 0) + record.retries
        if record.cost_usd is not None:
            self.cost_usd += record.cost_usd
            self.priced += 1
        if record.call_sec:
            self.call_sec.extend(record.call_sec)

    def _row_rewards(self, start: int) -> list[float]:
        # NaN is the one number that is not itself: a call for each would take twice the time.
        return [reward for reward in self._rewards[start : start + self.n] if reward == reward]

    def _reward(self, record: Record) -> float | None:
        if record.outcome is Outcome.WORKFLOW_FAILED:
            return self.workflow_failed_reward
        return record.reward

    def _complaint_place(self, record: Record) -> int:
        if record.error_category is None and record.error_message is None:
            return -1
        told = (record.complaint or "")[: 2 * SHOWN_CHARS]
        complaint = Complaint(record.outcome, record.error_category or "", _shape(told))
        if told[:SHOWN_CHARS] != complaint.message:
            first = self._examples.setdefault(complaint, told[:SHOWN_CHARS])
            if told[:SHOWN_CHARS] != first:
                self._varied.add(complaint)
        return self._complaint_places.setdefault(complaint, len(self._complaint_places))

    def _make_room(self) -> None:
        more = self._size - len(self._codes)
        if more > 0:
            # For an eighth more: to grow by one for each record would take half of the time.
            more += self._size // 8
            self._codes.extend(bytes(more))
            self._rewards.extend([math.nan] * more)
            for seconds in self._seconds:
                seconds.extend([math.nan] * more)
            for column in (*self._usage, self._complaints):
                column.extend([-1] * more)


def tally(records: Iterable[Record], *, n: int, workflow_failed_reward: float | None) -> Tally:
    """Take in the records of a run; their order decides only which try was last."""
    table = Tally(n, workflow_failed_reward)
    for record in records:
        table.add(record)
    return table


_OUTCOMES = tuple(Outcome)
_CODES = {outcome: code for code, outcome in enumerate(_OUTCOMES, 1)}

_used = attrgetter(*USAGE)
_measured = attrgetter(*_SECONDS)

_OWN = re.compile(r"\b(?=\w*\d)[0-9a-fA-F-]{8,}\b|\d{4,}")
"""What names one rollout, port or moment: long hexadecimal and long numbers."""

SHOWN_CHARS = 200


def _shape(message: str) -> str:
    return _OWN.sub("*", message)[:SHOWN_CHARS]


def _or_nan(number: float | None) -> float:
    return math.nan if number is None else number
