"""A run as its folder tells it: read only, and true while the run is still going on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ValidationError

from osmosis_ai.errors import RunError
from osmosis_ai.eval.config import EvalFile
from osmosis_ai.eval.inputs import Inputs
from osmosis_ai.eval.journal import read_records
from osmosis_ai.eval.lock import is_locked
from osmosis_ai.eval.metrics import Summary, summarize_tally
from osmosis_ai.eval.record import SCHEMA_VERSION, Record
from osmosis_ai.eval.selection import Selection, parse_selection
from osmosis_ai.eval.tally import Tally, tally
from osmosis_ai.hint import did_you_mean


class RunNotFoundError(RunError):
    """There is no run of that name."""


@dataclass(frozen=True, slots=True)
class RunPaths:
    """Where things are in the folder of a run."""

    folder: Path

    @property
    def run_json(self) -> Path:
        """What the run was made from."""
        return self.folder / "run.json"

    @property
    def records(self) -> Path:
        """The journal: what every other number is derived from."""
        return self.folder / "records.jsonl"

    @property
    def rollouts(self) -> Path:
        """One folder for each rollout, named by its id."""
        return self.folder / "rollouts"

    @property
    def summary(self) -> Path:
        """What the run measured."""
        return self.folder / "summary.json"

    @property
    def timing(self) -> Path:
        """When, and how fast."""
        return self.folder / "timing.json"

    @property
    def measured(self) -> Path:
        """What was made of the journal when it was read last; may be deleted."""
        return self.folder / ".measured.json"

    @property
    def log(self) -> Path:
        """What rollouts printed and logged."""
        return self.folder / "server.log"

    @property
    def lock(self) -> Path:
        """Outside of the folder, so that the folder can be renamed while it is held."""
        return self.folder.parent / ".locks" / f"{self.folder.name}.lock"


class RunDocument(BaseModel):
    """`run.json`: what a run was made from."""

    schema_version: Literal[1] = SCHEMA_VERSION
    run_id: str
    """Names the run among all runs; its rollouts' ids follow from it."""
    created_at: str
    config: EvalFile
    """The evaluation file, with every default filled in."""
    config_path: str
    """From the workspace."""
    dataset_path: str
    """From the workspace."""
    rows: str
    """The rows the run takes, as `--rows` says it."""
    inputs: Inputs
    """Digests of data set and code, and the settings, which may not change."""
    versions: dict[str, str]


@dataclass(frozen=True, slots=True)
class Run:
    """A run, and what it was made from."""

    paths: RunPaths
    document: RunDocument

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.paths.folder.name

    @property
    def selection(self) -> Selection:
        """The rows it takes."""
        return parse_selection(self.document.rows)

    @property
    def total_rows(self) -> int:
        """The rows its data set has."""
        return self.document.inputs.data.rows

    @property
    def is_running(self) -> bool:
        """Whether a process works on it now."""
        return is_locked(self.paths.lock)

    def records(self) -> Iterator[Record]:
        """Every try there is a record of, in the order in which they ended."""
        return read_records(self.paths.records)

    def tally(self) -> Tally:
        """What every number of it is made from."""
        evaluation = self.document.config.evaluation
        return tally(
            self.records(),
            n=evaluation.n,
            workflow_failed_reward=evaluation.workflow_failed_reward,
        )

    def summarize(self, table: Tally | None = None) -> Summary:
        """What it has measured so far; of a tally where that is there already."""
        return summarize_tally(
            self.tally() if table is None else table,
            rows=len(self.selection),
            pass_threshold=self.document.config.evaluation.pass_threshold,
        )


def read_run(folder: Path) -> Run:
    """The run in a folder; raises RunError where there is none that can be read."""
    paths = RunPaths(folder)
    try:
        return Run(paths, RunDocument.model_validate_json(paths.run_json.read_bytes()))
    except FileNotFoundError:
        raise RunNotFoundError(f"no run in {folder}: it has no run.json") from None
    except OSError as error:
        raise RunError(f"{paths.run_json} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise RunError(
            f"{paths.run_json} cannot be read by this version of osmosis-ai: "
            f"{where}: {first['msg']}"
        ) from error


def list_runs(evals_dir: Path) -> Iterator[Run | RunError]:
    """The runs of a workspace by name; an error in the place of one that cannot be read."""
    for folder in sorted(evals_dir.glob("*/run.json")):
        try:
            yield read_run(folder.parent)
        except RunError as error:
            yield error


def find_run(name: str, *, evals_dir: Path) -> Run:
    """The run of that name, or in the folder of that path."""
    for folder in (evals_dir / name, Path(name)):
        if RunPaths(folder).run_json.exists():
            return read_run(folder)
    names = [run_json.parent.name for run_json in evals_dir.glob("*/run.json")]
    hint = did_you_mean(name, names) or "; `osmosis eval list` shows what there is"
    raise RunNotFoundError(f"no run {name!r} in {evals_dir}{hint}")
