"""A file of rows, checked as a whole and then read again one row at a time."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from osmosis_ai.errors import DatasetError
from osmosis_ai.eval.selection import Selection
from osmosis_ai.eval.tabular import SUFFIXES, RawRow, read_rows
from osmosis_ai.rollout.types import Messages

SHOWN_FAULTS = 5
"""Faults named one by one; the rest is counted."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row as rollouts get it."""

    index: int
    """Its place in the file, counted from 0."""
    prompt: Messages
    label: str | None = None
    metadata: dict[str, Any] | None = None
    key: str = ""
    """Names its content, and which of the equal rows it is: the same in any file or order."""


@dataclass(frozen=True, slots=True)
class Dataset:
    """A file whose every row can be used, as it was when it was checked."""

    path: Path
    sha256: str
    total_rows: int
    stamp: tuple[int, int]
    """Time and size of the file when it was checked."""
    may_repeat: frozenset[int] = field(repr=False)
    """Digests that more than one row may have; every repeated one is here."""


def load_dataset(path: Path) -> Dataset:
    """Read a file once, row by row, and check it.

    Raises DatasetError that names the first faults with row and column, and how many there are.
    """
    stamp, sha256 = _stamp(path), _digest_file(path)
    repeats, faults, total = _Repeats.for_file(path), _Faults(path), 0
    for index, raw in enumerate(read_rows(path)):
        total += 1
        try:
            repeats.add(_short(_content_digest(_parse(index, raw))))
        except _RowFault as fault:
            faults.add(index, raw, fault)
    faults.raise_any()
    if not total:
        raise DatasetError(f"{path} has no rows")
    return Dataset(path, sha256, total, stamp, frozenset(repeats.found))


def load_rows(dataset: Dataset, selection: Selection) -> Iterator[Row]:
    """Read the selected rows, one at a time; raises DatasetError if the file has changed."""
    occurrences = dict.fromkeys(dataset.may_repeat, 0)
    for index, raw in enumerate(read_rows(dataset.path)):
        if index > selection.last:
            return
        if _stamp(dataset.path) != dataset.stamp:
            raise DatasetError(f"{dataset.path} changed while it was being read: run again")
        row = _parse(index, raw)
        digest = _content_digest(row)
        short = _short(digest)
        occurrence = occurrences.get(short, 0)
        if short in occurrences:
            occurrences[short] += 1
        if index in selection:
            yield replace(row, key=f"{digest}-{occurrence}")


def find_dataset(name: str, *, workspace: Path) -> Path:
    """The file a config names: a path from the workspace, or `data/<name>.<ext>`."""
    data = workspace / "data"
    for place in (workspace / Path(name).expanduser(), data / name):
        if place.is_file():
            return place
    found = [file for suffix in SUFFIXES if (file := data / f"{name}{suffix}").is_file()]
    if len(found) > 1:
        names = " and ".join(file.name for file in found)
        raise DatasetError(f"experiment.dataset {name!r} is both {names} in {data}: add the ending")
    if found:
        return found[0]
    raise DatasetError(
        f"experiment.dataset {name!r} is neither a file from {workspace} nor one of "
        f"{name}{'|'.join(SUFFIXES)} in {data}{_nearest(name, data)}"
    )


def _nearest(name: str, data: Path) -> str:
    files = [file for file in data.glob("*") if file.suffix in SUFFIXES]
    close = get_close_matches(name, [file.stem for file in files], n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


class _RowFault(Exception):
    """Why a row cannot be used: the column, if it is one, and what is wrong."""

    def __init__(self, message: str, *, column: str | None = None) -> None:
        super().__init__(message)
        self.column = column


def _parse(index: int, raw: RawRow) -> Row:
    if raw.fault is not None:
        raise _RowFault(raw.fault)
    columns = raw.columns
    system, user = _text(columns, "system_prompt"), _text(columns, "user_prompt")
    label = _text(columns, "ground_truth") or _text(columns, "label")
    metadata = _metadata(columns)
    prompt = [
        {"role": role, "content": text}
        for role, text in (("system", system), ("user", user))
        if text is not None
    ]
    _check(columns, user=user, label=label, has_content=bool(prompt or metadata))
    return Row(index, prompt, label, metadata)


def _check(
    columns: Mapping[str, Any], *, user: str | None, label: str | None, has_content: bool
) -> None:
    if "metadata" in columns:
        if not has_content:
            raise _RowFault("is empty, and there is no prompt", column="metadata")
        return
    if user is None:
        raise _absent("user_prompt", columns)
    if label is None:
        raise _absent("ground_truth", columns)


def _absent(name: str, columns: Mapping[str, Any]) -> _RowFault:
    if name in columns:
        return _RowFault("is empty", column=name)
    return _RowFault(f"is missing; the row has {', '.join(columns) or 'no columns'}", column=name)


def _text(columns: Mapping[str, Any], name: str) -> str | None:
    """A cell as text; None where it is absent or empty."""
    value = columns.get(name)
    if value is None or isinstance(value, str):
        return value or None
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)


def _metadata(columns: Mapping[str, Any]) -> dict[str, Any] | None:
    value = columns.get("metadata")
    if isinstance(value, str):
        value = _parse_metadata(value)
    if value is not None and not isinstance(value, dict):
        raise _RowFault(f"must be an object, got {type(value).__name__}", column="metadata")
    return value or None


def _parse_metadata(text: str) -> Any:
    try:
        return json.loads(text) if text.strip() else None
    except (ValueError, RecursionError) as error:
        raise _RowFault(f"is not a JSON object: {error}", column="metadata") from error


def _content_digest(row: Row) -> str:
    # Escaped to ASCII: lone surrogates and NaN have a digest too.
    try:
        content = json.dumps(
            [row.prompt, row.label, row.metadata],
            sort_keys=True,
            separators=(",", ":"),
            default=str,
        )
    except RecursionError:
        raise _RowFault("is nested too deeply", column="metadata") from None
    return hashlib.sha256(content.encode()).hexdigest()[:32]


def _short(digest: str) -> int:
    return int(digest[:15], 16)


def _digest_file(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DatasetError(f"cannot read {path}: {error.strerror}") from error


def _stamp(path: Path) -> tuple[int, int]:
    try:
        status = os.stat(path)
    except OSError as error:
        raise DatasetError(f"cannot read {path}: {error.strerror}") from error
    return status.st_mtime_ns, status.st_size


@dataclass(slots=True)
class _Faults:
    """The first faults of a file, and how many there are."""

    path: Path
    first: list[str] = field(default_factory=list)
    count: int = 0

    def add(self, index: int, raw: RawRow, fault: _RowFault) -> None:
        self.count += 1
        if len(self.first) < SHOWN_FAULTS:
            where = f"row {index}" + (f" ({raw.where})" if raw.where else "")
            column = "" if fault.column is None else f", {fault.column}"
            self.first.append(f"  - {where}{column}: {fault}")

    def raise_any(self) -> None:
        if not self.count:
            return
        rows = "1 row cannot be used" if self.count == 1 else f"{self.count} rows cannot be used"
        lines = [f"{self.path}: {rows}:", *self.first]
        if self.count > SHOWN_FAULTS:
            lines.append(f"  ... (showing first {SHOWN_FAULTS} errors)")
        raise DatasetError("\n".join(lines))


@dataclass(slots=True)
class _Repeats:
    """Which rows may be equal to another, in a few bits a row.

    Each digest sets one bit of a table; one that finds its bit set may repeat, and only those are
    kept. A list of all digests would cost a hundred bytes a row.
    """

    bits: bytearray
    found: set[int] = field(default_factory=set)

    @classmethod
    def for_file(cls, path: Path) -> _Repeats:
        size = path.stat().st_size
        return cls(bytearray(min(max(size // 16, 1024), 16 * 1024 * 1024)))

    def add(self, digest: int) -> None:
        place, bit = divmod(digest % (len(self.bits) * 8), 8)
        if self.bits[place] & (1 << bit):
            self.found.add(digest)
        self.bits[place] |= 1 << bit
