"""A data set against every rule of the format, the ones that only hosted runs make included."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from osmosis_ai.errors import DatasetError
from osmosis_ai.eval.raw_row import RawRow
from osmosis_ai.eval.row import RowFault, RowFaults, parse_row
from osmosis_ai.eval.tabular import read_rows

MIN_ROWS = 4
MAX_BYTES = 5 * 1024**3


@dataclass(frozen=True, slots=True)
class Validated:
    """What a data set without faults holds."""

    path: Path
    rows: int
    columns: tuple[str, ...]
    mode: str
    """`prompt` with columns for question and answer, `metadata` with an object in each row."""


def validate_dataset(path: Path) -> Validated:
    """Read a data set once, row by row; raises DatasetError that names its first faults.

    Stricter than an evaluation, which takes fewer rows, rows with other columns, and metadata of
    any shape.
    """
    _check_size(path)
    faults, rules, total, runs_here = RowFaults(path), _Rules(), 0, True
    for index, raw in enumerate(read_rows(path)):
        total += 1
        for fault in _faults(index, raw, rules):
            faults.add(index, raw, fault)
            runs_here = runs_here and isinstance(fault, _HostedFault)
    try:
        faults.raise_any()
    except DatasetError as error:
        raise (_only_hosted(str(error)) if runs_here else error) from None
    if total < MIN_ROWS:
        rows = {0: "no rows", 1: "1 row"}.get(total, f"{total} rows")
        problem = f"{path} has {rows}: a hosted data set needs at least {MIN_ROWS}"
        raise _only_hosted(problem) if total else DatasetError(problem)
    return Validated(path, total, rules.columns or (), rules.mode)


def _check_size(path: Path) -> None:
    try:
        size = path.stat().st_size
    except OSError as error:
        raise DatasetError(f"cannot read {path}: {error.strerror}") from error
    if size > MAX_BYTES:
        raise _only_hosted(f"{path} has {size:,} bytes: a hosted data set has at most 5 GB")


class _HostedFault(RowFault):
    """What hosted runs alone object to."""


def _only_hosted(problem: str) -> DatasetError:
    return DatasetError(
        f"{problem}\n`osmosis eval run` takes the file as it is; --local checks for that alone."
    )


def _faults(index: int, raw: RawRow, rules: _Rules) -> Iterator[RowFault]:
    """The first fault of the row by itself, and whether it is like the others."""
    try:
        row = parse_row(index, raw)
        rules.check_columns(raw.columns)
        if rules.mode == "metadata":
            rules.check_metadata(row.metadata)
    except RowFault as fault:
        yield fault


@dataclass(slots=True)
class _Rules:
    """What the rows so far ask of the next."""

    columns: tuple[str, ...] | None = None
    kinds: dict[str, str] = field(default_factory=dict)
    """The JSON type at each path into metadata."""

    @property
    def mode(self) -> str:
        return "metadata" if "metadata" in (self.columns or ()) else "prompt"

    def check_columns(self, columns: Mapping[str, Any]) -> None:
        if self.columns is None:
            self.columns = tuple(columns)
        for name in self.columns:
            if name not in columns:
                raise _HostedFault("is missing, and row 0 has it", column=name)
        for name in columns:
            if name not in self.columns:
                raise _HostedFault("is a column that row 0 does not have", column=name)

    def check_metadata(self, metadata: Mapping[str, Any] | None) -> None:
        if not metadata:
            raise _HostedFault("must be an object with members", column="metadata")
        for path, value in _walk(metadata, "metadata"):
            kind = _kind(path, value)
            if self.kinds.setdefault(path, kind) != kind:
                before = self.kinds[path]
                raise _HostedFault(f"is {kind}, and before it was {before}", column=path)


def _walk(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every value inside, with its path; elements of a list share one, `[]`. Nulls are ignored."""
    pending = [(path, value)]
    for path, value in pending:  # grows while it is read
        if value is not None:
            yield path, value
        if isinstance(value, dict):
            pending.extend((f"{path}.{name}", inner) for name, inner in value.items())
        elif isinstance(value, list):
            pending.extend((f"{path}[]", inner) for inner in value)


def _kind(path: str, value: Any) -> str:
    if isinstance(value, dict):
        if not value:
            raise _HostedFault("is an empty object", column=path)
        return "an object"
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise _HostedFault("is a whole number beyond 64 bits", column=path)
        return "a number"
    if isinstance(value, float):
        return "a number"
    return "a list" if isinstance(value, list) else "text"
