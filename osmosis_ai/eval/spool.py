"""Rows that are in no file become one: named by its content, so that a run can be resumed."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any
from uuid import uuid4

from osmosis_ai.errors import DatasetError

SPOOL_DIR = Path(".osmosis") / "rows"
"""Where a workspace keeps them; what no run needs any more can be deleted."""

PREFIX = "datasets:"
"""Of a data set that the package `datasets` loads by its name."""


def spool_rows(rows: Iterable[Mapping[str, Any]], *, workspace: Path) -> Path:
    """Write rows as lines of JSON, one at a time, and return the file.

    The same rows are the same file. Raises DatasetError for a row that is no mapping, and where
    the disk refuses them.
    """
    folder = workspace / SPOOL_DIR
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return _spool(rows, folder)
    except OSError as error:
        raise DatasetError(f"rows cannot be written to {folder}: {error.strerror}") from error


def spool_named(name: str, *, workspace: Path) -> Path:
    """Write the rows of `datasets:NAME:SPLIT`, and return the file."""
    # On use: the package is optional, and slow to import.
    return spool_rows(
        import_module("osmosis_ai.eval.datasets_folder").read_name(name.removeprefix(PREFIX)),
        workspace=workspace,
    )


def _spool(rows: Iterable[Mapping[str, Any]], folder: Path) -> Path:
    temporary = folder / f".{uuid4().hex}.tmp"
    try:
        return _keep(temporary, folder / f"{_write(rows, temporary)[:32]}.jsonl")
    finally:
        temporary.unlink(missing_ok=True)


def _write(rows: Iterable[Mapping[str, Any]], path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for index, row in enumerate(rows):
            line = _line(index, row)
            digest.update(line)
            file.write(line)
    return digest.hexdigest()


def _keep(temporary: Path, path: Path) -> Path:
    # A run that reads the same file now must not find it changed.
    if not path.exists():
        os.replace(temporary, path)
    return path


def _line(index: int, row: Any) -> bytes:
    if not isinstance(row, Mapping):
        raise DatasetError(
            f"row {index} is a {type(row).__name__}: give mappings with the columns of a data set, "
            "such as user_prompt and ground_truth"
        )
    try:
        # Escaped to ASCII: lone surrogates can be written too.
        return json.dumps(dict(row), default=_plain_form).encode() + b"\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise DatasetError(f"row {index} has no JSON form: {error}") from error


def _plain_form(value: Any) -> Any:
    """Arrays and scalars of other packages as what they hold; anything else as its text."""
    for method in ("tolist", "item"):
        if callable(convert := getattr(value, method, None)):
            return convert()
    return list(value) if isinstance(value, set | frozenset) else str(value)
