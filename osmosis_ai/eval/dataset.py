"""A file of rows, checked as a whole and then read again one row at a time."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from osmosis_ai.errors import DatasetError
from osmosis_ai.eval.row import Row, RowFault, RowFaults, digest_content, parse_row
from osmosis_ai.eval.selection import Selection
from osmosis_ai.eval.spool import PREFIX, spool_named
from osmosis_ai.eval.tabular import SUFFIXES, is_datasets_folder, read_rows
from osmosis_ai.hint import did_you_mean


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
    stamp, sha256 = _stamp(_stamped(path)), _digest(path)
    repeats, faults, total = _Repeats.for_file(path), RowFaults(path), 0
    for index, raw in enumerate(read_rows(path)):
        total += 1
        try:
            repeats.add(_short(digest_content(parse_row(index, raw))))
        except RowFault as fault:
            faults.add(index, raw, fault)
    faults.raise_any()
    if not total:
        raise DatasetError(f"{path} has no rows")
    return Dataset(path, sha256, total, stamp, frozenset(repeats.found))


def load_rows(dataset: Dataset, selection: Selection) -> Iterator[Row]:
    """Read the selected rows, one at a time; raises DatasetError if the file has changed."""
    occurrences = dict.fromkeys(dataset.may_repeat, 0)
    stamped = _stamped(dataset.path)
    for index, raw in enumerate(read_rows(dataset.path)):
        if index > selection.last:
            return
        if _stamp(stamped) != dataset.stamp:
            raise DatasetError(f"{dataset.path} changed while it was being read: run again")
        row = parse_row(index, raw)
        digest = digest_content(row)
        short = _short(digest)
        occurrence = occurrences.get(short, 0)
        if short in occurrences:
            occurrences[short] += 1
        if index in selection:
            yield replace(row, key=f"{digest}-{occurrence}")


def find_dataset(name: str, *, workspace: Path) -> Path:
    """What a config names: a path from the workspace, `data/<name>.<ext>`, or a `datasets` name.

    A path is that of a file, or of a folder that the package `datasets` has written. What has a
    `datasets:` name is loaded and written to a file.
    """
    if name.startswith(PREFIX):
        return spool_named(name, workspace=workspace)
    data = workspace / "data"
    for place in (workspace / Path(name).expanduser(), data / name):
        if place.is_file() or is_datasets_folder(place):
            return place
    found = [file for suffix in SUFFIXES if (file := data / f"{name}{suffix}").is_file()]
    if len(found) > 1:
        names = " and ".join(file.name for file in found)
        raise DatasetError(f"experiment.dataset {name!r} is both {names} in {data}: add the ending")
    if found:
        return found[0]
    # What has an ending, or a directory, is a file's name already.
    is_path = "/" in name or Path(name).suffix in SUFFIXES
    also = "" if is_path else f" nor one of {name}{'|'.join(SUFFIXES)} in {data}"
    neither = "no" if is_path else "neither a"
    raise DatasetError(
        f"experiment.dataset {name!r} is {neither} file from {workspace}{also}"
        f"{_nearest(name, workspace)}"
    )


def _nearest(name: str, workspace: Path) -> str:
    files = [file for file in (workspace / "data").glob("*") if file.suffix in SUFFIXES]
    if "/" in name:
        return did_you_mean(name, (str(file.relative_to(workspace)) for file in files))
    return did_you_mean(name, (file.stem for file in files)) or did_you_mean(
        name, (file.name for file in files)
    )


def _short(digest: str) -> int:
    return int(digest[:15], 16)


def _digest(path: Path) -> str:
    """Of a file, or of the tables in a folder: what lies beside them differs by the writing."""
    if not is_datasets_folder(path):
        return _digest_file(path).hex()
    whole = hashlib.sha256()
    for file in sorted(path.glob("*.arrow")):
        whole.update(_digest_file(file))
    return whole.hexdigest()


def _digest_file(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    except OSError as error:
        raise DatasetError(f"cannot read {path}: {error.strerror}") from error


def _stamped(path: Path) -> str:
    """The file that changes when a data set does: of a folder its `state.json`."""
    state = path / "state.json"
    return str(state if state.is_file() else path)


def _stamp(file: str) -> tuple[int, int]:
    """Time and size, which change when a file does."""
    try:
        status = os.stat(file)
    except OSError as error:
        raise DatasetError(f"cannot read {file}: {error.strerror}") from error
    return status.st_mtime_ns, status.st_size


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
        files = path.glob("*.arrow") if is_datasets_folder(path) else [path]
        size = sum(file.stat().st_size for file in files)
        return cls(bytearray(min(max(size // 16, 1024), 16 * 1024 * 1024)))

    def add(self, digest: int) -> None:
        place, bit = divmod(digest % (len(self.bits) * 8), 8)
        if self.bits[place] & (1 << bit):
            self.found.add(digest)
        self.bits[place] |= 1 << bit
