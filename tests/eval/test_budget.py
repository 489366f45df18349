"""Budgets of an evaluation: what a rollout and a run may take, and what a resumed run remembers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.errors import BudgetError, ConfigError, RunError
from osmosis_ai.eval.config import EvalConfig, load_config
from osmosis_ai.eval.evaluation import RunOptions, evaluate
from osmosis_ai.eval.outcome import Outcome
from tests.eval.demo import CONFIG, make_demo

QUESTIONS = ("one", "two", "three", "four")


def configured(root: Path, evaluation: dict[str, Any], *, price: float | None = None) -> EvalConfig:
    """A call takes one token of prompt and one of completion."""
    path = root / "configs/eval/demo.toml"
    if not path.exists():
        make_demo(root, *QUESTIONS)
    model = "" if price is None else f"[model.price]\nprompt = {price}\ncompletion = {price}\n"
    path.write_text(CONFIG + model)
    return load_config(
        path, overrides={f"evaluation.{key}": value for key, value in evaluation.items()}
    )


ONE_AT_A_TIME = RunOptions(max_in_flight=1)


@pytest.mark.parametrize(
    ("limit", "price", "finished"),
    [
        ({"run_max_model_calls": 3}, None, 3),
        ({"run_max_tokens": 6}, None, 3),
        ({"run_max_tokens": 5}, None, 3),
        ({"run_max_cost": 2.0}, 500_000.0, 2),
    ],
)
async def test_a_run_past_its_limit_leaves_the_rest_pending(
    tmp_path: Path, limit: dict[str, Any], price: float | None, finished: int
) -> None:
    config = configured(tmp_path, limit, price=price)
    result = await evaluate(config, options=ONE_AT_A_TIME)
    assert isinstance(result.halted_by, BudgetError)
    ((key, value),) = limit.items()
    assert f"evaluation.{key} = {value:g}" in str(result.halted_by)
    assert (result.summary.finished, result.summary.pending) == (finished, 4 - finished)
    assert result.summary.outcomes[Outcome.SCORED] == finished


async def test_a_larger_limit_goes_on_and_what_was_spent_still_counts(tmp_path: Path) -> None:
    """And ends as a run that was never stopped."""
    whole = tmp_path / "whole"
    await evaluate(configured(whole, {}))
    root = tmp_path / "stopped"
    spent = []
    for limit in (1, 1, 3, 4):
        config = configured(root, {"run_max_model_calls": limit})
        result = await evaluate(config, options=ONE_AT_A_TIME)
        spent.append(result.summary.finished)
    assert spent == [1, 1, 3, 4]
    assert result.halted_by is None
    summary = ".osmosis/evals/demo/summary.json"
    assert (root / summary).read_bytes() == (whole / summary).read_bytes()


async def test_rollouts_that_need_no_more_end_as_they_would(tmp_path: Path) -> None:
    """Only what asks for more than there is goes without a record."""
    config = configured(tmp_path, {"run_max_model_calls": 2})
    result = await evaluate(config, options=RunOptions(max_in_flight=4))
    assert (result.summary.finished, result.summary.pending) == (2, 2)


async def test_a_rollout_past_its_limit_is_a_record(tmp_path: Path) -> None:
    config = configured(tmp_path, {"max_cost": 1.0, "n": 2}, price=500_000.0)
    result = await evaluate(config)
    assert result.halted_by is None
    # One call costs a dollar, and each rollout makes one.
    assert result.summary.outcomes[Outcome.SCORED] == 8
    assert result.timing.cost_usd == pytest.approx(8.0)
    assert (result.timing.priced, result.timing.tries) == (8, 8)


async def test_what_a_rollout_may_take_decides_results_and_so_may_not_change(
    tmp_path: Path,
) -> None:
    await evaluate(configured(tmp_path, {"max_model_calls": 1}))
    with pytest.raises(RunError, match=r"evaluation\.max_model_calls was 1, is now 2"):
        await evaluate(configured(tmp_path, {"max_model_calls": 2}))


@pytest.mark.parametrize("key", ["max_cost", "run_max_cost"])
async def test_dollars_without_a_price_are_refused(tmp_path: Path, key: str) -> None:
    """Such a limit would end nothing."""
    config = configured(tmp_path, {key: 5.0})
    with pytest.raises(ConfigError, match=f"evaluation.{key} is set, but nobody knows") as caught:
        await evaluate(config)
    assert caught.value.key == f"evaluation.{key}"
