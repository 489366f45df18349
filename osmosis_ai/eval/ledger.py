"""Which items a run still owes, in three bytes an item."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field

from osmosis_ai.errors import RunError
from osmosis_ai.eval.outcome import Outcome
from osmosis_ai.eval.record import Record
from osmosis_ai.eval.selection import Selection
from osmosis_ai.rollout.driver.base import Spending


@dataclass(slots=True)
class Ledger:
    """What has been tried, of each attempt at each row."""

    total_rows: int
    n: int
    retried: frozenset[Outcome] = frozenset()
    """Outcomes that do not end an item: it is owed once more."""
    spent: Spending = field(default_factory=Spending)
    """Of the model, by every try."""
    _done: bytearray = field(init=False)
    _tries: array[int] = field(init=False)

    def __post_init__(self) -> None:
        items = self.total_rows * self.n
        self._done = bytearray(items)
        self._tries = array("H", bytes(2 * items))

    def read(self, records: Iterable[Record]) -> None:
        """Take in what the journal says; raises RunError for a record of no item."""
        for record in records:
            if record.row >= self.total_rows or record.attempt >= self.n:
                raise RunError(
                    f"the journal has a record of row {record.row}, attempt {record.attempt}, "
                    f"but the run has {self.total_rows} rows and {self.n} attempts at each: "
                    "start over with --fresh"
                )
            place = record.row * self.n + record.attempt
            self._done[place] = record.outcome not in self.retried
            self._tries[place] = record.try_index + 1
            self.spent = self.spent.plus(_spending(record))

    def owes(self, row: int, attempt: int) -> bool:
        """Whether the item has to run."""
        return not self._done[row * self.n + attempt]

    def tries(self, row: int, attempt: int) -> int:
        """How many tries at the item there are records of."""
        return self._tries[row * self.n + attempt]

    def done_in(self, selection: Selection) -> int:
        """How many items of the selected rows are done."""
        return sum(
            self._done[first * self.n : (last + 1) * self.n].count(1)
            for first, last in selection.ranges
        )


def _spending(record: Record) -> Spending:
    return Spending(record.calls or 0, record.total_tokens or 0, record.cost_usd or 0.0)
