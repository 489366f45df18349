"""What a run has measured: made from its journal, or kept from the last time it was the same.

A look at a large run need not read each record again. What was kept is named by a digest of the
journal and of the settings, so that it is never shown of another one: not of a journal that has
grown, was edited or torn.
"""

from __future__ import annotations

import functools
import hashlib
import logging
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from osmosis_ai import __version__
from osmosis_ai.eval.json_file import write_json
from osmosis_ai.eval.metrics import Summary
from osmosis_ai.eval.run_folder import Run
from osmosis_ai.eval.timing import Timing, measure_timing

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Measured:
    """The numbers of a run, and how long it took."""

    summary: Summary
    timing: Timing


def measure_run(run: Run) -> Measured:
    """What a run has measured so far; raises RunError where its journal is damaged."""
    kept = _read(run.paths.measured)
    if kept is not None and kept.made_from == _digest(run):
        return kept.measured
    return _measure(run)


def measure_and_keep(run: Run) -> Measured:
    """The same, from the journal, kept for whoever looks later."""
    measured = _measure(run)
    try:
        kept = _adapter().dump_python(_Kept(_digest(run), measured), mode="json")
        write_json(run.paths.measured, kept)
    except OSError as error:
        logger.warning("%s is not kept: %s", run.paths.measured, error.strerror)
    return measured


@dataclass(frozen=True, slots=True)
class _Kept:
    made_from: str
    measured: Measured


def _measure(run: Run) -> Measured:
    table = run.tally()
    return Measured(run.summarize(table), measure_timing(table))


def _digest(run: Run) -> str:
    """Of all that the numbers are made from; this version of the program included."""
    whole = hashlib.sha256(__version__.encode())
    for path in (run.paths.run_json, run.paths.records):
        if path.exists():
            with path.open("rb") as file:
                whole.update(hashlib.file_digest(file, "sha256").digest())
    return whole.hexdigest()


def _read(path: Path) -> _Kept | None:
    try:
        return _adapter().validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None  # none yet, or an older version's, or somebody has been at it: made anew


@functools.cache
def _adapter() -> TypeAdapter[_Kept]:
    return TypeAdapter(_Kept)
