"""The rows of a parquet file, one at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from osmosis_ai._extras import requires_extra
from osmosis_ai.errors import DatasetError
from osmosis_ai.eval.tabular import RawRow

with requires_extra("parquet", "reading a parquet file"):
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

BATCH_ROWS = 1024
"""Rows in memory at once."""


def read_parquet(path: Path) -> Iterator[RawRow]:
    """Read a file batch by batch; raises DatasetError where it is damaged."""
    try:
        with ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=BATCH_ROWS):
                for columns in batch.to_pylist():
                    yield RawRow("", columns)
    except ArrowException as error:
        raise DatasetError(f"{path} is not a readable parquet file: {error}") from error
