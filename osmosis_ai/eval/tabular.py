"""The rows of a csv, jsonl or parquet file, or a `datasets` folder, one at a time."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import TypeAlias, cast

from osmosis_ai.errors import DatasetError
from osmosis_ai.eval.raw_row import RawRow

CELL_LIMIT_BYTES = 16 * 1024 * 1024
"""The largest cell of a csv file that is read."""


Reader: TypeAlias = Callable[[Path], Iterator[RawRow]]


def read_rows(path: Path) -> Iterator[RawRow]:
    """Read a file row by row; raises DatasetError where no further row can be read."""
    try:
        yield from _reader(path)(path)
    except OSError as error:
        raise DatasetError(f"cannot read {path}: {error.strerror}") from error


SUFFIXES = (".csv", ".jsonl", ".parquet")
"""Files we can read."""


def is_datasets_folder(path: Path) -> bool:
    """Whether this is what `Dataset.save_to_disk` or `DatasetDict.save_to_disk` writes."""
    return any((path / name).is_file() for name in ("state.json", "dataset_dict.json"))


def _reader(path: Path) -> Reader:
    if is_datasets_folder(path):
        # On use, as below.
        return cast(Reader, import_module("osmosis_ai.eval.datasets_folder").read_folder)
    suffix = path.suffix.lower()
    if suffix == ".csv":
        return _read_csv
    if suffix == ".jsonl":
        return _read_jsonl
    if suffix == ".parquet":
        # On use: its package is optional, and the other formats do without it.
        read_parquet: Reader = import_module("osmosis_ai.eval.parquet").read_parquet
        return read_parquet
    raise DatasetError(f"{path} is none of {', '.join(SUFFIXES)}: convert it to one of them")


def _read_jsonl(path: Path) -> Iterator[RawRow]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            text = line.removeprefix(b"\xef\xbb\xbf").strip() if number == 1 else line.strip()
            if text:
                yield _parse_line(text, where=f"line {number}")


def _parse_line(text: bytes, *, where: str) -> RawRow:
    try:
        # Not orjson: it refuses lone surrogates and rounds large integers without a word.
        value = json.loads(text.decode())
    except UnicodeDecodeError as error:
        return RawRow(where, {}, fault=f"is not UTF-8 text: {error.reason} at byte {error.start}")
    except (ValueError, RecursionError) as error:
        return RawRow(where, {}, fault=f"is not JSON: {error}")
    if not isinstance(value, dict):
        return RawRow(where, {}, fault=f"must be an object, got {type(value).__name__}")
    return RawRow(where, value)


def _read_csv(path: Path) -> Iterator[RawRow]:
    csv.field_size_limit(CELL_LIMIT_BYTES)
    with path.open(encoding="utf-8-sig", newline="") as file:
        lines = csv.reader(file, strict=True)
        try:
            header = _check_header(next(lines, []), path)
            for cells in lines:
                if cells:
                    yield _csv_row(header, cells, where=f"line {lines.line_num}")
        except UnicodeDecodeError as error:
            raise DatasetError(
                f"{path} is not UTF-8 text near line {lines.line_num + 1}: save it as UTF-8"
            ) from error
        except csv.Error as error:
            raise DatasetError(f"{path}, line {lines.line_num}: {error}") from error


def _check_header(header: list[str], path: Path) -> list[str]:
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice:
        raise DatasetError(f"{path}: the header names the column {twice[0]!r} twice")
    if len(header) == 1:
        _check_delimiter(header[0], path)
    return header


def _check_delimiter(cell: str, path: Path) -> None:
    """Spreadsheets of some countries write `;` where others write a comma."""
    for delimiter, named in {";": "semicolons", "\t": "tabs", "|": "bars"}.items():
        if delimiter in cell and _KNOWN.intersection(cell.split(delimiter)):
            raise DatasetError(
                f"{path}: its cells seem to have {named} between them: save it with commas"
            )


_KNOWN = frozenset({"user_prompt", "system_prompt", "ground_truth", "label", "metadata"})


def _csv_row(header: list[str], cells: list[str], *, where: str) -> RawRow:
    if len(cells) != len(header):
        return RawRow(where, {}, fault=f"has {len(cells)} cells, the header {len(header)}")
    return RawRow(where, dict(zip(header, cells, strict=True)))
