"""The numbers of a run for each value of a metadata key, such as `difficulty`."""

from __future__ import annotations

import json
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from osmosis_ai.errors import ConfigError, RunError
from osmosis_ai.eval.dataset import load_dataset, load_rows
from osmosis_ai.eval.estimate import Estimate, Rewards, estimate_mean, estimate_share
from osmosis_ai.eval.outcome import Outcome
from osmosis_ai.eval.row import Row
from osmosis_ai.eval.run_folder import Run
from osmosis_ai.eval.tally import Tally


@dataclass(frozen=True, slots=True)
class RowGroups:
    """Which value of a key each row has, in eight bytes a row."""

    key: str
    names: list[str]
    """Each value once, in the order of the rows."""
    places: array[int]
    """For each row the place of its value; -1 where it has none, or is not in the run."""


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """What the rows with the same value measured."""

    value: str
    rows: int
    """Rows that the run takes."""
    outcomes: dict[str, int]
    mean: Estimate
    passed: int
    pass_rate: Estimate

    def to_json(self) -> dict[str, Any]:
        """The group as it is shown to programs."""
        return asdict(self)


def measure_groups(run: Run, key: str, *, workspace: Path) -> list[GroupSummary]:
    """What a run measured for each value of a metadata key; the data set says which row has which.

    Records stay small that way. Raises RunError where the data set is not what the run was made
    from any more, and ConfigError where no row has the key.
    """
    path = workspace / run.document.dataset_path
    dataset = load_dataset(path)
    if dataset.sha256 != run.document.inputs.data.sha256:
        raise RunError(
            f"{path} has changed since run {run.name!r} was made from it: put it back to see "
            f"which row has which {key}"
        )
    groups = group_rows(load_rows(dataset, run.selection), key)
    threshold = run.document.config.evaluation.pass_threshold
    return break_down(run.tally(), groups, pass_threshold=threshold)


def group_rows(rows: Iterable[Row], key: str) -> RowGroups:
    """Read each row's value; raises ConfigError where no row has the key.

    `a.b` is the member `b` of the object `a`, unless a member is called `a.b`.
    """
    found: dict[str, int] = {}
    places: array[int] = array("q")
    known = Counter[str]()
    for row in rows:
        places.extend([-1] * (row.index + 1 - len(places)))
        known.update((row.metadata or {}).keys())
        value = _value(row.metadata or {}, key)
        if value is not None:
            places[row.index] = found.setdefault(_text(value), len(found))
    if not found:
        raise ConfigError(f"--by {key!r}: no row has it in its metadata{_hint(key, known)}")
    return RowGroups(key, list(found), places)


def break_down(table: Tally, groups: RowGroups, *, pass_threshold: float) -> list[GroupSummary]:
    """A summary for each value; numbers in their order, then texts in theirs."""
    gathered = [_Group() for _ in groups.names]
    for row in table.rows():
        place = groups.places[row.row] if row.row < len(groups.places) else -1
        if place >= 0:
            gathered[place].rewards.add_row(row.rewards)
            gathered[place].outcomes.update(row.outcomes)
    sizes = Counter(groups.places)
    named = sorted(enumerate(groups.names), key=lambda one: _order(one[1]))
    return [gathered[place].summary(name, sizes[place], pass_threshold) for place, name in named]


@dataclass(slots=True)
class _Group:
    rewards: Rewards = field(default_factory=Rewards)
    outcomes: Counter[Outcome] = field(default_factory=Counter)

    def summary(self, value: str, rows: int, pass_threshold: float) -> GroupSummary:
        passes = self.rewards.passing(pass_threshold)
        return GroupSummary(
            value=value,
            rows=rows,
            outcomes={outcome.value: self.outcomes[outcome] for outcome in Outcome},
            mean=estimate_mean(self.rewards),
            passed=int(sum(passes.values)),
            pass_rate=estimate_share(passes),
        )


def _value(metadata: Mapping[str, Any], key: str) -> Any:
    if key in metadata:
        return metadata[key]
    first, dot, rest = key.partition(".")
    inner = metadata.get(first)
    return _value(inner, rest) if dot and isinstance(inner, dict) else None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)


def _order(name: str) -> tuple[bool, float, str]:
    try:
        number = float(name)
    except ValueError:
        return (True, 0.0, name)
    return (False, number, name) if number == number else (True, 0.0, name)


def _hint(key: str, known: Mapping[str, int]) -> str:
    close = get_close_matches(key, known, n=1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; it has {', '.join(sorted(known)[:10])}" if known else ", which is empty"
