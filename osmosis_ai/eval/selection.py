"""Which rows of a data set a run takes: `--rows 0-9,12` or the first so many."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from osmosis_ai.errors import ConfigError

_GRAMMAR = re.compile(r"\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Selection:
    """Row indices, counted from 0: sorted inclusive ranges that do not touch."""

    ranges: tuple[tuple[int, int], ...]

    def __contains__(self, index: int) -> bool:
        place = bisect_right(self.ranges, (index, index))
        starts_here = place < len(self.ranges) and self.ranges[place][0] == index
        return starts_here or (place > 0 and index <= self.ranges[place - 1][1])

    def __len__(self) -> int:
        return sum(last - first + 1 for first, last in self.ranges)

    def __str__(self) -> str:
        return ",".join(
            str(first) if first == last else f"{first}-{last}" for first, last in self.ranges
        )

    @property
    def last(self) -> int:
        """The highest index, or -1 where nothing is selected."""
        return self.ranges[-1][1] if self.ranges else -1

    def covers(self, other: Selection) -> bool:
        """Whether every row of the other selection is in this one."""
        return _merged([*self.ranges, *other.ranges]) == self.ranges


def select_rows(rows: str | None, *, limit: int | None, total: int) -> Selection:
    """The rows that `--rows` names, else the first `limit` of `total`; not above 0 means all."""
    if rows is not None:
        return _within(parse_selection(rows), total)
    count = total if limit is None or limit <= 0 else min(limit, total)
    return Selection(((0, count - 1),) if count else ())


def parse_selection(text: str) -> Selection:
    """Read indices and inclusive ranges, such as `0-9,12`; raises ConfigError."""
    if not _GRAMMAR.fullmatch(text):
        raise ConfigError(
            f"--rows {text!r} is not a selection: give row indices counted from 0 and inclusive "
            "ranges, such as 0-9,12",
            key="rows",
        )
    return Selection(_merged(map(_parse_range, text.split(","))))


def _parse_range(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    start, end = int(first), int(last or first)
    if end < start:
        raise ConfigError(f"--rows has the range {text}, which ends before it starts", key="rows")
    return start, end


def _merged(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return tuple(merged)


def _within(selection: Selection, total: int) -> Selection:
    if selection.last >= total:
        raise ConfigError(
            f"--rows asks for row {selection.last}, but the data set has rows 0-{total - 1}",
            key="rows",
        )
    return selection
