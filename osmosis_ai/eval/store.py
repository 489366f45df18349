"""The folder of a run, open for writing: one process, known inputs, and nothing lost."""

from __future__ import annotations

import logging
import os
import platform
import re
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from osmosis_ai import __version__
from osmosis_ai.errors import ConfigError, RunError
from osmosis_ai.eval.config import EvalConfig
from osmosis_ai.eval.dataset import Dataset
from osmosis_ai.eval.inputs import changed_inputs, describe_inputs
from osmosis_ai.eval.journal import Journal, drop_torn_line, open_journal
from osmosis_ai.eval.json_file import write_json
from osmosis_ai.eval.ledger import Ledger
from osmosis_ai.eval.lock import run_lock
from osmosis_ai.eval.measured import Measured, measure_and_keep
from osmosis_ai.eval.metrics import Summary
from osmosis_ai.eval.outcome import Outcome
from osmosis_ai.eval.record import SCHEMA_VERSION, Record
from osmosis_ai.eval.run_folder import Run, RunDocument, RunPaths, read_run
from osmosis_ai.eval.selection import Selection, parse_selection
from osmosis_ai.eval.timing import Timing
from osmosis_ai.rollout.artifacts import replace_file
from osmosis_ai.rollout.safe_json import dump_json
from osmosis_ai.rollout.types import ExecutionRequest, RolloutSample

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class RunStore:
    """A run that this process works on; made by `open_run`."""

    run: Run
    ledger: Ledger
    journal: Journal
    notes: tuple[str, ...] = ()
    """What a person should know about how the run was found."""
    _samples_refused: bool = False
    _rollouts: str = field(init=False)

    def __post_init__(self) -> None:
        self._rollouts = str(self.run.paths.rollouts)

    @property
    def run_id(self) -> str:
        """Names this run among all runs, and with the item and the try each of its rollouts."""
        return self.run.document.run_id

    async def append(self, record: Record) -> None:
        """Put a record into the journal; it is on disk when this returns."""
        await self.journal.append(record)

    def write_sample(self, request: ExecutionRequest, sample: RolloutSample | None) -> None:
        """Keep what a grader gets to see, as `rollouts/<rollout-id>/sample.json`.

        Never fails the rollout: a file that cannot be written is warned of once.
        """
        folder = f"{self._rollouts}/{request.id}"
        try:
            replace_file(folder, "sample.json", _sample_document(request, sample))
        except OSError as error:
            if not self._samples_refused:
                self._samples_refused = True
                logger.warning("samples are not kept, %s: %s", folder, error.strerror)

    def close_session(self, session: Mapping[str, Any]) -> Measured:
        """Write `summary.json`, add the session to `timing.json`, and return what is measured.

        Both files follow from the journal and can be made anew: a full disk loses nothing.
        """
        measured = measure_and_keep(self.run)
        path = self.run.paths.timing
        try:
            write_json(self.run.paths.summary, self._summary_document(measured.summary))
            write_json(path, _timing_document(path, session, measured.timing))
        except OSError as error:
            logger.warning("%s is not up to date: %s", self.run.paths.summary, error.strerror)
        return measured

    def _summary_document(self, summary: Summary) -> dict[str, Any]:
        experiment = self.run.document.config.experiment
        names = experiment.model_dump(include={"rollout", "model_path", "dataset"})
        return names | {"total_rows": self.run.total_rows} | summary.to_json()


@asynccontextmanager
async def open_run(
    config: EvalConfig,
    dataset: Dataset,
    selection: Selection,
    *,
    name: str | None = None,
    fresh: bool = False,
    retried: frozenset[Outcome] = frozenset(),
) -> AsyncIterator[RunStore]:
    """Lock the folder of a run, compare what it was made from, and read what is done.

    The name is the config file's unless given. `fresh` archives what is there and starts over;
    items that ended in one of the `retried` outcomes are owed once more. Raises RunError where
    another process works on the run, or where data, code or settings have changed.
    """
    paths = RunPaths(config.evals_dir / _check_name(name or config.path.stem))
    with run_lock(paths.lock), _dropping_what_never_began(paths):
        try:
            if fresh:
                _archive(paths.folder)
            run, notes = _prepare(paths, config, dataset, selection)
        except OSError as error:
            raise RunError(f"{paths.folder} cannot be written: {error}") from error
        ledger = Ledger(dataset.total_rows, config.file.evaluation.n, retried)
        ledger.read(run.records())
        async with open_journal(paths.records) as journal:
            yield RunStore(run, ledger, journal, tuple(notes))


@contextmanager
def _dropping_what_never_began(paths: RunPaths) -> Iterator[None]:
    """A run that fails before its first rollout leaves none behind, but for what it logged."""
    try:
        yield
    except Exception:
        # Whatever it is, it is raised again.
        was_used = paths.records.exists() and paths.records.stat().st_size
        if not was_used and not any(paths.rollouts.glob("*")) and not paths.timing.exists():
            _drop(paths)
        raise


def _drop(paths: RunPaths) -> None:
    # What cannot be removed, because it is no file or not empty, stays.
    with suppress(OSError):
        for file in (paths.records, paths.run_json):
            file.unlink(missing_ok=True)
        if paths.log.exists() and not paths.log.stat().st_size:
            paths.log.unlink()
        for folder in (paths.rollouts, paths.folder):
            folder.rmdir()


def _prepare(
    paths: RunPaths, config: EvalConfig, dataset: Dataset, selection: Selection
) -> tuple[Run, list[str]]:
    notes = _mend(paths.records)
    run = Run(paths, _document(paths, config, dataset, selection))
    paths.rollouts.mkdir(parents=True, exist_ok=True)
    write_json(paths.run_json, run.document.model_dump())
    return run, notes


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}")


def _check_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} cannot name a run: up to 96 letters, digits, '.', '_' and '-', the first "
            "one a letter or digit. Give another with --name.",
            key="name",
        )
    return name


def _archive(folder: Path) -> None:
    """Move a run out of the way; what it holds stays readable under its new name."""
    if not folder.exists():
        return
    stamp = f"{folder.name}.archive-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    target, clash = folder.with_name(stamp), 0
    while target.exists():
        clash += 1
        target = folder.with_name(f"{stamp}-{clash}")
    folder.rename(target)


def _mend(records: Path) -> list[str]:
    torn = drop_torn_line(records)
    if not torn:
        return []
    return [f"the last line of {records} was torn ({torn} bytes): that rollout runs again"]


def _document(
    paths: RunPaths, config: EvalConfig, dataset: Dataset, selection: Selection
) -> RunDocument:
    """`run.json`: anew, or the one that is there with more rows or attempts."""
    document = RunDocument(
        run_id=uuid.uuid4().hex,
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        config=config.file,
        config_path=_from(config.workspace, config.path),
        dataset_path=_from(config.workspace, dataset.path),
        rows=str(selection),
        inputs=describe_inputs(config, dataset),
        versions={"osmosis-ai": __version__, "python": platform.python_version()},
    )
    if not paths.records.exists() or not paths.records.stat().st_size:
        return document
    before = read_run(paths.folder)
    _refuse_other_inputs(before, document)
    kept = before.document.model_dump(include={"run_id", "created_at"})
    return document.model_copy(update=kept)


def _from(workspace: Path, path: Path) -> str:
    return os.path.relpath(path, workspace)


def _refuse_other_inputs(before: Run, document: RunDocument) -> None:
    differences = [
        *changed_inputs(before.document.inputs, document.inputs),
        *_shrunk(before, document),
    ]
    if differences:
        lines = "\n".join(f"  - {difference}" for difference in differences)
        raise RunError(
            f"run {before.name!r} was made from something else:\n{lines}\n"
            "Its records and new ones would not mean the same. Put it back, or start over with "
            "--fresh (the old run is archived), or give the new run a --name of its own."
        )


def _shrunk(before: Run, document: RunDocument) -> list[str]:
    n, n_before = document.config.evaluation.n, before.document.config.evaluation.n
    rows, rows_before = parse_selection(document.rows), before.selection
    shrunk = []
    if n < n_before:
        shrunk.append(f"evaluation.n was {n_before}, is now {n}: it can only grow")
    if not rows.covers(rows_before):
        shrunk.append(f"rows were {rows_before}, are now {rows}: more may be added, none left out")
    return shrunk


def _timing_document(path: Path, session: Mapping[str, Any], timing: Timing) -> dict[str, Any]:
    """How long rollouts took, over all sessions, and each session by itself."""
    return {
        "schema_version": SCHEMA_VERSION,
        **timing.to_json(),
        "sessions": [*_sessions(path), dict(session)],
    }


def _sessions(timing: Path) -> list[Any]:
    """The sessions so far; a file that was tampered with is started anew: it decides nothing."""
    try:
        sessions = orjson.loads(timing.read_bytes())["sessions"]
    except (OSError, ValueError, TypeError, KeyError):
        return []
    return sessions if isinstance(sessions, list) else []


def _sample_document(request: ExecutionRequest, sample: RolloutSample | None) -> bytes:
    content: dict[str, Any] = {
        "prompt": request.prompt,
        "label": request.label,
        "metadata": request.metadata,
        "sample": None if sample is None else _sample_fields(sample),
    }
    data, changes = dump_json(content)
    head = orjson.dumps(
        {"schema_version": SCHEMA_VERSION, "rollout_id": request.id, "made_safe": changes}
    )
    return head[:-1] + b"," + data[1:] + b"\n"


def _sample_fields(sample: RolloutSample) -> dict[str, Any]:
    return {
        "messages": sample.messages,
        "trajectory_messages": sample.trajectory_messages,
        "label": sample.label,
        "reward": sample.reward,
        "remove_sample": sample.remove_sample,
        "metrics": sample.metrics,
        "extra_fields": sample.extra_fields,
    }
