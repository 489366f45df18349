"""What a run would do, found out without doing any of it."""

from __future__ import annotations

from dataclasses import dataclass

from osmosis_ai.eval.config import EvalConfig
from osmosis_ai.eval.dataset import find_dataset, load_dataset
from osmosis_ai.eval.selection import Selection, select_rows


@dataclass(frozen=True, slots=True)
class Plan:
    """The rows a run would take, of how many, and how often."""

    selection: Selection
    total_rows: int
    n: int

    @property
    def items(self) -> int:
        """Rollouts in all."""
        return len(self.selection) * self.n


def plan_run(config: EvalConfig, *, rows: str | None) -> Plan:
    """Read the data set of an evaluation and choose its rows; raises as a run would."""
    evaluation = config.file.evaluation
    dataset = load_dataset(find_dataset(config.file.experiment.dataset, workspace=config.workspace))
    selection = select_rows(rows, limit=evaluation.limit, total=dataset.total_rows)
    return Plan(selection, dataset.total_rows, evaluation.n)
