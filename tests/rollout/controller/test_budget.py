"""Budgets: how much of its model a rollout, and a run, may take, and what happens then."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import aiohttp
import pytest

from osmosis_ai.rollout.controller.budget import Budget, ModelLimits, Spending
from osmosis_ai.rollout.controller.listener import Controller
from osmosis_ai.rollout.controller.model.base import ModelPrice
from osmosis_ai.rollout.controller.model.scripted import ScriptedClient
from osmosis_ai.testing import HttpReply, ScriptedModel
from tests.rollout.controller.calling import post, to


@contextmanager
def controlled(budget: Budget) -> Iterator[Controller]:
    """Each call takes six tokens of prompt and one of completion, at a cent each."""
    model = ScriptedClient(lambda request, call: "42")
    model.price = ModelPrice(0.01, 0.01)
    with Controller(model, budget=budget) as controller:
        yield controller


@pytest.mark.parametrize(
    ("limits", "answered", "reached"),
    [
        ({"max_model_calls": 2}, 2, "max_model_calls = 2"),
        ({"max_tokens": 14}, 2, "max_tokens = 14"),
        ({"max_tokens": 15}, 3, "max_tokens = 15"),
        ({"max_cost": 0.139}, 2, "max_cost = 0.139"),
        ({"max_cost": 0.145}, 3, "max_cost = 0.145"),
    ],
)
async def test_no_call_begins_when_a_limit_is_reached(
    http: aiohttp.ClientSession, limits: dict[str, Any], answered: int, reached: str
) -> None:
    """And the call that reaches it is answered: it is paid already."""
    budget = Budget(rollout=ModelLimits(**limits))
    with controlled(budget) as controller, controller.open_rollout("r1") as endpoint:
        answers = [await post(http, endpoint) for _ in range(answered + 2)]
        usage = endpoint.usage()
        assert endpoint.limit_reached == reached
        assert endpoint.run_limit_reached is None
    assert [answer.status for answer in answers] == [200] * answered + [410] * 2
    assert answers[-1].error == f"the rollout's budget is used up: {reached}"
    assert answers[-1].headers["x-should-retry"] == "false"
    assert (usage.calls, usage.failed_calls) == (answered, 0)


async def test_each_rollout_has_a_budget_of_its_own(http: aiohttp.ClientSession) -> None:
    budget = Budget(rollout=ModelLimits(max_model_calls=1))
    with controlled(budget) as controller:
        endpoints = [controller.open_rollout(name) for name in ("r1", "r2")]
        assert [(await post(http, endpoint)).status for endpoint in endpoints] == [200, 200]


async def test_a_run_has_one_for_all_its_rollouts(http: aiohttp.ClientSession) -> None:
    budget = Budget(run=ModelLimits(max_model_calls=3), spent=Spending(calls=1))
    with controlled(budget) as controller:
        endpoints = [controller.open_rollout(name) for name in ("r1", "r2", "r3")]
        answers = [await post(http, endpoint) for endpoint in endpoints]
        reached = [endpoint.run_limit_reached for endpoint in endpoints]
    assert [answer.status for answer in answers] == [200, 200, 410]
    assert answers[-1].error == "the run's budget is used up: run_max_model_calls = 3"
    assert reached == [None, None, "run_max_model_calls = 3"]


async def test_who_waits_is_told(http: aiohttp.ClientSession) -> None:
    """A workflow that swallows the refusal would go on for ever."""
    told: list[str] = []
    budget = Budget(rollout=ModelLimits(max_model_calls=1))
    with controlled(budget) as controller:
        endpoint = controller.open_rollout(
            "r1", deadline_sec=60, on_deadline=lambda: told.append("over")
        )
        await post(http, endpoint)
        assert told == []
        await post(http, endpoint)
        assert told == ["over"]
        assert not endpoint.is_expired


async def test_a_refused_call_is_not_the_models_failure(http: aiohttp.ClientSession) -> None:
    """Else a rollout past its budget would count as one that lost its model."""
    budget = Budget(rollout=ModelLimits(max_model_calls=1))
    with ScriptedModel(HttpReply(503)) as model, Controller(to(model), budget=budget) as controller:
        endpoint = controller.open_rollout("r1")
        await post(http, endpoint)
        assert endpoint.usage().last_error is not None
        await post(http, endpoint)
        assert endpoint.usage().last_error is None
        assert endpoint.usage().failed_calls == 1


async def test_a_probe_is_no_call_of_the_run(http: aiohttp.ClientSession) -> None:
    """A run that resumes with nothing left says so when a rollout asks, not before."""
    budget = Budget(run=ModelLimits(max_model_calls=1), spent=Spending(calls=1))
    with ScriptedModel("yes") as model, Controller(to(model), budget=budget) as controller:
        await controller.probe()
        assert (await post(http, controller.open_rollout("r1"))).status == 410


@pytest.mark.parametrize("usage", [None, {}, {"prompt_tokens": 3}])
async def test_what_is_not_counted_has_no_price(http: aiohttp.ClientSession, usage: Any) -> None:
    reply = HttpReply(200, {"choices": [{"message": {"content": "42"}}], "usage": usage})
    with ScriptedModel(reply) as model:
        client = to(model)
        client.price = ModelPrice(1.0, 1.0)
        with Controller(client) as controller, controller.open_rollout("r1") as endpoint:
            await post(http, endpoint)
            assert endpoint.usage().cost_usd is None
