"""Rows that the package `datasets` knows: a folder it has written, or a name on its hub."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from osmosis_ai._extras import requires_extra
from osmosis_ai.errors import DatasetError
from osmosis_ai.eval.arrow_value import plain_row
from osmosis_ai.eval.raw_row import RawRow
from osmosis_ai.rollout.raised import title_error

with requires_extra("datasets", "reading a `datasets` folder or name"):
    from datasets import Dataset, DatasetDict, load_dataset, load_from_disk

BATCH_ROWS = 256
"""Rows in memory at once; the rest stays in the mapped file."""


def read_folder(path: Path) -> Iterator[RawRow]:
    """Read what `save_to_disk` wrote; raises DatasetError where it is damaged, or several."""
    try:
        found = load_from_disk(str(path))
    except Exception as error:
        # Whatever the package raises over a folder that somebody has tampered with.
        raise DatasetError(
            f"{path} is not a readable `datasets` folder: {title_error(error)}"
        ) from error
    if isinstance(found, DatasetDict):
        names = ", ".join(str(path / split) for split in found)
        raise DatasetError(f"{path} holds several data sets: name one of {names}")
    yield from _rows(found)


def read_name(name: str) -> Iterator[Mapping[str, Any]]:
    """Load `NAME:SPLIT` or `NAME:CONFIG:SPLIT`; raises DatasetError where it cannot be had."""
    parts = name.split(":")
    if not (2 <= len(parts) <= 3 and all(parts)):
        raise DatasetError(
            f"experiment.dataset names {name!r} for the package `datasets`: give "
            "datasets:NAME:SPLIT, or datasets:NAME:CONFIG:SPLIT"
        )
    path, *config, split = parts
    try:
        found = load_dataset(path, *config, split=split)
    except Exception as error:
        # The network's, the hub's, or that of a script we know nothing of.
        raise DatasetError(f"`datasets` cannot load {name!r}: {title_error(error)}") from error
    for index, raw in enumerate(_rows(found)):
        if raw.fault is not None:
            raise DatasetError(f"row {index} of {name!r} {raw.fault}")
        yield raw.columns


def _rows(dataset: Dataset) -> Iterator[RawRow]:
    for table in dataset.with_format("arrow").iter(BATCH_ROWS):
        rows: list[dict[str, Any]] = table.to_pylist()
        yield from map(plain_row, rows)
