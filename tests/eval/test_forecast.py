"""What a run may cost is told before it is paid."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.errors import MissingExtraError
from osmosis_ai.eval.config import EvalConfig, load_config
from osmosis_ai.eval.evaluation import RunOptions, evaluate
from osmosis_ai.eval.forecast import Forecast, forecast_run
from osmosis_ai.rollout.driver.base import ModelPrice
from osmosis_ai.testing import ScriptedModel
from tests.eval.demo import CONFIG, make_demo

PRICE = "price = { prompt = 1.0, completion = 3.0 }\n"


def configured(
    root: Path, model: str, *questions: str, path: str = "big", **evaluation: Any
) -> EvalConfig:
    file = root / "configs/eval/demo.toml"
    if not file.exists():
        make_demo(root, *(questions or ("one", "two")))
    file.write_text(CONFIG.replace("scripted:policy:reply", path) + f"[model]\n{model}")
    overrides = {f"evaluation.{key}": value for key, value in evaluation.items()}
    return load_config(file, overrides=overrides)


def forecast(config: EvalConfig, **options: Any) -> Forecast | None:
    return forecast_run(config, options=RunOptions(**options), environ={})


AT = 'base_url = "http://127.0.0.1:1/v1"\n'


def test_a_scripted_model_costs_nothing(tmp_path: Path) -> None:
    assert forecast(configured(tmp_path, PRICE, path="scripted:policy:reply")) is None


@pytest.mark.parametrize("price", ["", "price = { prompt = 0, completion = 0.0 }\n"])
def test_a_server_of_ones_own_costs_nothing_unless_the_config_says_so(
    tmp_path: Path, price: str
) -> None:
    assert forecast(configured(tmp_path, AT + price)) is None


def test_prompts_are_the_least_that_is_paid(tmp_path: Path) -> None:
    found = forecast(configured(tmp_path, AT + PRICE, "x" * 4000, "y" * 4000, n=3))
    assert found is not None
    assert (found.rollouts, found.price) == (6, ModelPrice(1e-6, 3e-6))
    assert 6000 <= found.prompt_tokens < 6100
    assert found.least_usd == pytest.approx(found.prompt_tokens / 1e6)
    assert (found.likely_usd, found.most_usd) == (None, None)


def test_limits_say_what_is_the_most(tmp_path: Path) -> None:
    most = []
    for limits in ({"max_cost": 0.5}, {"run_max_cost": 0.7}, {"max_cost": 0.5, "run_max_cost": 5}):
        found = forecast(configured(tmp_path, AT + PRICE, **limits))
        assert found is not None
        most.append(found.most_usd)
    assert most == [1.0, 0.7, 1.0]


def test_tries_that_are_there_say_what_is_likely(tmp_path: Path) -> None:
    """And what is done is not paid again, unless it is asked for."""
    with ScriptedModel("42") as model:
        at = f'base_url = "{model.base_url}"\n'
        config = configured(tmp_path, at + PRICE, run_max_cost=1.0)
        result = asyncio.run(evaluate(config, options=RunOptions(rows="0")))
        found = forecast(config)
        fresh = forecast(config, fresh=True)
        grown = configured(tmp_path, at + PRICE, limit=1)
        assert forecast(grown) is None
    spent = result.timing.cost_usd
    assert spent is not None
    assert found is not None
    assert (found.rollouts, found.tries) == (1, 1)
    assert found.likely_usd == pytest.approx(spent)
    assert found.most_usd == pytest.approx(1.0 - spent)
    assert fresh is not None
    assert (fresh.rollouts, fresh.tries) == (2, 0)


def test_records_of_rows_that_are_gone_are_the_runs_to_refuse(tmp_path: Path) -> None:
    with ScriptedModel("42") as model:
        config = configured(tmp_path, f'base_url = "{model.base_url}"\n' + PRICE)
        asyncio.run(evaluate(config))
        rows = tmp_path / "data/demo.jsonl"
        rows.write_text(rows.read_text().splitlines(keepends=True)[0])
        assert forecast(config) is None


def test_a_litellm_name_is_litellms_to_price(tmp_path: Path) -> None:
    """It is not installed here, and the run could not begin either."""
    with pytest.raises(MissingExtraError, match="litellm"):
        forecast(configured(tmp_path, "", path="openai/gpt-5-mini"))


def test_a_price_nobody_knows_is_not_nothing() -> None:
    unknown = Forecast(model_path="m", price=None, rollouts=1, prompt_tokens=5)
    assert unknown.least_usd is None
