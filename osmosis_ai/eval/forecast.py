"""What a run is going to cost, as far as it can be told before anything is paid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from osmosis_ai.eval.config import EvalConfig
from osmosis_ai.eval.dataset import find_dataset, load_dataset, load_rows
from osmosis_ai.eval.evaluation import RunOptions
from osmosis_ai.eval.ledger import Ledger
from osmosis_ai.eval.row import Row
from osmosis_ai.eval.run_folder import RunPaths, read_run
from osmosis_ai.eval.selection import select_rows
from osmosis_ai.rollout.driver.base import ModelPrice
from osmosis_ai.rollout.driver.choose import find_price, is_litellm
from osmosis_ai.rollout.safe_json import dump_json

BYTES_PER_TOKEN = 4
"""A rule of thumb for English; other languages and code take more tokens."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """What is owed of a run that somebody is paid for."""

    model_path: str
    price: ModelPrice | None
    """None where it is not known: then it is not nothing either."""
    rollouts: int
    prompt_tokens: int
    """Of the rows' own messages, once for each rollout: the least that is going to be sent."""
    tries: int = 0
    """Of this run, there already, whose cost is known."""
    tries_usd: float = 0.0
    most_usd: float | None = None
    """What the limits leave."""

    @property
    def least_usd(self) -> float | None:
        """For the prompts of the first calls alone."""
        return None if self.price is None else self.prompt_tokens * self.price.prompt

    @property
    def likely_usd(self) -> float | None:
        """As the tries there are; None without any."""
        return self.rollouts * self.tries_usd / self.tries if self.tries else None


def forecast_run(
    config: EvalConfig, *, options: RunOptions, environ: Mapping[str, str]
) -> Forecast | None:
    """What is owed and what it may cost; None where nobody is paid, or nothing is owed.

    The model of a `base_url` is paid where the config says its price, a scripted one never.
    """
    model = config.model_spec(environ)
    if model.base_url is None and not is_litellm(model):
        return None
    price = find_price(model)
    is_free = price is not None and not (price.prompt or price.completion)
    if is_free or (price is None and not is_litellm(model)):
        return None
    return _forecast(config, options, price)


def _forecast(config: EvalConfig, options: RunOptions, price: ModelPrice | None) -> Forecast | None:
    evaluation = config.file.evaluation
    dataset = load_dataset(find_dataset(config.file.experiment.dataset, workspace=config.workspace))
    selection = select_rows(options.rows, limit=evaluation.limit, total=dataset.total_rows)
    ledger = Ledger(dataset.total_rows, evaluation.n, options.retried)
    tries, tries_usd = _read(ledger, config, options)
    rollouts = tokens = 0
    for row in load_rows(dataset, selection):
        owed = sum(ledger.owes(row.index, attempt) for attempt in range(ledger.n))
        rollouts += owed
        tokens += owed * _prompt_tokens(row)
    if not rollouts:
        return None
    return Forecast(
        model_path=config.file.experiment.model_path,
        price=price,
        rollouts=rollouts,
        prompt_tokens=tokens,
        tries=tries,
        tries_usd=tries_usd,
        most_usd=_most(config, rollouts, spent=ledger.spent.cost_usd),
    )


def _read(ledger: Ledger, config: EvalConfig, options: RunOptions) -> tuple[int, float]:
    """Take in the run's records, and return how many have a cost, and its sum."""
    paths = RunPaths(config.evals_dir / Path(options.name or config.path.stem).name)
    if options.fresh or not paths.run_json.exists() or not paths.records.exists():
        return 0, 0.0
    run, costs = read_run(paths.folder), []
    for record in run.records():
        # What does not fit the data set any more is refused where the run is opened.
        if record.row < ledger.total_rows and record.attempt < ledger.n:
            ledger.read([record])
            costs += [] if record.cost_usd is None else [record.cost_usd]
    return len(costs), sum(costs)


def _prompt_tokens(row: Row) -> int:
    return len(dump_json(row.prompt).data) // BYTES_PER_TOKEN


def _most(config: EvalConfig, rollouts: int, *, spent: float) -> float | None:
    evaluation = config.file.evaluation
    limits = []
    if evaluation.max_cost is not None:
        limits.append(rollouts * evaluation.max_cost)
    if evaluation.run_max_cost is not None:
        limits.append(max(0.0, evaluation.run_max_cost - spent))
    return min(limits, default=None)
