"""The rows of a parquet file, one at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from osmosis_ai._extras import requires_extra
from osmosis_ai.errors import DatasetError
from osmosis_ai.eval.arrow_value import plain_row
from osmosis_ai.eval.raw_row import RawRow

with requires_extra("parquet", "reading a parquet file"):
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

BATCH_ROWS = 1024
"""The most rows in memory at once."""

BATCH_BYTES = 16 * 1024 * 1024
"""About the most bytes: fewer rows are read at once where they are large."""


def read_parquet(path: Path) -> Iterator[RawRow]:
    """Read a file batch by batch; raises DatasetError where it is damaged."""
    try:
        with ParquetFile(path, memory_map=True) as file:
            _check_columns(file, path)
            for batch in file.iter_batches(batch_size=_batch_rows(file)):
                for columns in batch.to_pylist():
                    yield plain_row(columns)
    except ArrowException as error:
        raise DatasetError(f"{path} is not a readable parquet file: {error}") from error


def _check_columns(file: ParquetFile, path: Path) -> None:
    names = file.schema_arrow.names
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DatasetError(f"{path} has the column {twice[0]!r} twice")


def _batch_rows(file: ParquetFile) -> int:
    """As many rows as fit, going by the row group whose rows are largest."""
    groups = [file.metadata.row_group(index) for index in range(file.num_row_groups)]
    sizes = [group.total_byte_size / group.num_rows for group in groups if group.num_rows]
    return max(1, min(BATCH_ROWS, int(BATCH_BYTES / max(sizes, default=1.0))))
