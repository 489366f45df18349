"""A LiteLLM name as the model of a run: calls, streams, errors with their status, prices."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import aiohttp
import pytest

pytest.importorskip("litellm", reason="runs in the environments of the frameworks")

from osmosis_ai.errors import ConfigError
from osmosis_ai.rollout.controller.endpoint import RolloutEndpoint
from osmosis_ai.rollout.controller.listener import Controller
from osmosis_ai.rollout.controller.model.litellm import LiteLLMClient
from osmosis_ai.rollout.controller.retry import RetryPolicy
from osmosis_ai.rollout.driver.base import ModelPrice, ModelSpec
from osmosis_ai.rollout.driver.choose import find_price, load_model
from osmosis_ai.testing import HangUp, HttpReply, ScriptedModel, StreamReply, call_tool
from tests.rollout.controller.calling import Pauses, post, stream

# LiteLLM warns of itself.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")

PRICED = "openai/gpt-4o-mini"
ANSWER = {
    "id": "x",
    "object": "chat.completion",
    "created": 1,
    "model": "gpt-4o-mini-2024-07-18",
    "prompt_token_ids": [1, 2],
    "choices": [
        {
            "index": 0,
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": "42", "reasoning_content": "hm"},
            "token_ids": [7],
            "logprobs": {"content": [{"token": "42", "logprob": -0.5, "top_logprobs": []}]},
        }
    ],
    "usage": {
        "prompt_tokens": 30,
        "completion_tokens": 2,
        "total_tokens": 32,
        "prompt_tokens_details": {"cached_tokens": 10},
    },
}


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@contextmanager
def rollout_on(
    model: ScriptedModel, name: str = PRICED, *, retry: RetryPolicy | None = None, **params: Any
) -> Iterator[RolloutEndpoint]:
    spec = ModelSpec(name, api_key="secret", params={"api_base": model.base_url, **params})
    with (
        Controller(load_model(spec), retry=retry) as controller,
        controller.open_rollout("r1") as endpoint,
    ):
        yield endpoint


async def test_a_call_reaches_the_provider_and_comes_back(http: aiohttp.ClientSession) -> None:
    with ScriptedModel(HttpReply(200, ANSWER)) as model, rollout_on(model) as endpoint:
        answer = await post(http, endpoint, temperature=0.5, return_token_ids=True)
        usage, (call,) = endpoint.usage(), endpoint.answered_calls()
    sent = model.calls[0]
    assert sent.headers["authorization"] == "Bearer secret"
    assert sent.request["model"] == "gpt-4o-mini"
    assert (sent.request["temperature"], sent.request["return_token_ids"]) == (0.5, True)
    assert answer.text == "42"
    assert answer.body["choices"][0]["message"]["reasoning_content"] == "hm"
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (30, 2, 32)
    told = call.metrics()
    assert (told.prompt_token_ids, told.completion_token_ids) == ([1, 2], [7])
    assert (told.logprobs, told.cached_tokens) == ([-0.5], 10)
    assert told.model_name == "gpt-4o-mini-2024-07-18"


async def test_a_price_is_that_of_the_local_table(http: aiohttp.ClientSession) -> None:
    """Cached tokens cost half: 20 at 0.15, 10 at 0.075 and 2 at 0.60 dollars a million."""
    with ScriptedModel(HttpReply(200, ANSWER)) as model, rollout_on(model) as endpoint:
        await post(http, endpoint)
        cost = endpoint.usage().cost_usd
    assert cost == pytest.approx((20 * 0.15 + 10 * 0.075 + 2 * 0.60) / 1e6)


async def test_a_price_nobody_knows_is_not_zero(http: aiohttp.ClientSession) -> None:
    with ScriptedModel("42") as model, rollout_on(model, "openai/of-our-own") as endpoint:
        await post(http, endpoint)
        usage = endpoint.usage()
    assert (usage.total_tokens, usage.cost_usd) == (7, None)


async def test_a_price_of_the_config_wins(http: aiohttp.ClientSession) -> None:
    spec = ModelSpec(PRICED, api_key="k", price=ModelPrice(1.0, 100.0))
    assert load_model(spec).cost_usd({"prompt_tokens": 3, "completion_tokens": 2}) == 203.0
    assert find_price(spec) == ModelPrice(1.0, 100.0)
    assert find_price(ModelSpec(PRICED, api_key="k")) == ModelPrice(1.5e-7, 6e-7)
    assert find_price(ModelSpec("openai/of-our-own", api_key="k")) is None


@pytest.mark.parametrize("usage", [None, "many", {"prompt_tokens": "x"}])
def test_a_usage_nobody_can_read_costs_the_price(usage: Any) -> None:
    assert LiteLLMClient(PRICED, api_key="k").cost_usd(usage) is None


async def test_params_win_and_may_be_arguments_of_litellm(http: aiohttp.ClientSession) -> None:
    with (
        ScriptedModel("42") as model,
        rollout_on(model, temperature=0, extra_headers={"X-Team": "red"}) as endpoint,
    ):
        await post(http, endpoint, temperature=1)
    assert model.calls[0].request["temperature"] == 0
    assert model.calls[0].headers["x-team"] == "red"


async def test_what_a_provider_does_not_know_is_left_out(http: aiohttp.ClientSession) -> None:
    """An agent need not know which model it is given; `drop_params = false` makes it an error."""
    with ScriptedModel("42") as model:
        with rollout_on(model, "openai/gpt-5-mini") as endpoint:
            assert (await post(http, endpoint, logprobs=True)).status == 200
        with rollout_on(model, "openai/gpt-5-mini", drop_params=False) as endpoint:
            assert (await post(http, endpoint, logprobs=True)).status == 400
            assert endpoint.usage().failed_calls == 0
    assert ["logprobs" in call.request for call in model.calls] == [False]


async def test_a_rollout_cannot_send_the_key_elsewhere(http: aiohttp.ClientSession) -> None:
    with (
        ScriptedModel("theirs") as other,
        ScriptedModel("42") as model,
        rollout_on(model) as endpoint,
    ):
        elsewhere = {"api_base": other.base_url, "base_url": other.base_url, "api_key": "x"}
        answer = await post(http, endpoint, **elsewhere)
    assert answer.text == "42"
    assert other.calls == []
    assert model.calls[0].headers["authorization"] == "Bearer secret"


@pytest.mark.parametrize("with_usage", [False, True])
async def test_a_stream_passes_and_is_counted(
    http: aiohttp.ClientSession, with_usage: bool
) -> None:
    """Also where the agent does not ask for usage, and so expects no event without choices."""
    options = {"stream_options": {"include_usage": True}} if with_usage else {}
    with ScriptedModel(call_tool("add", a=1)) as model, rollout_on(model) as endpoint:
        status, text = await stream(http, endpoint, **options)
        usage = endpoint.usage()
    *events, end = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    chunks = [json.loads(event) for event in events]
    assert (status, end) == (200, "[DONE]")
    assert any(chunk["choices"][0]["delta"].get("tool_calls") for chunk in chunks[:1])
    assert [bool(chunk["choices"]) for chunk in chunks].count(False) == with_usage
    assert (usage.calls, usage.failed_calls) == (1, 0)
    assert usage.total_tokens > 0
    assert usage.cost_usd is not None


async def test_tokens_of_a_stream_are_kept(http: aiohttp.ClientSession) -> None:
    parts: list[Any] = [
        {"prompt_token_ids": [1, 2], "choices": [{"index": 0, "delta": {"role": "assistant"}}]},
        {"choices": [{"index": 0, "delta": {"content": "4"}, "token_ids": [7]}]},
        {"choices": [{"index": 0, "delta": {"content": "2"}, "token_ids": [8]}]},
    ]
    with ScriptedModel(StreamReply(parts)) as model, rollout_on(model) as endpoint:
        await stream(http, endpoint)
        (call,) = endpoint.answered_calls()
    assert call.metrics().completion_token_ids == [7, 8]
    assert call.metrics().prompt_token_ids == [1, 2]


@pytest.mark.parametrize(
    ("status", "is_fault"),
    [(400, False), (401, True), (402, True), (403, True), (404, True), (429, True), (503, True)],
)
async def test_an_error_keeps_its_status(
    http: aiohttp.ClientSession, status: int, is_fault: bool
) -> None:
    """So that a rejected key is told from an outage, and both from the agent's own mistake."""
    reply = HttpReply(status, {"error": {"message": "because"}})
    with ScriptedModel(reply) as model, rollout_on(model) as endpoint:
        answer = await post(http, endpoint)
        streamed, _ = await stream(http, endpoint)
        usage = endpoint.usage()
    assert (answer.status, streamed) == (status, status)
    assert "because" in answer.error
    assert answer.headers["x-should-retry"] == "false"
    assert usage.failed_calls == (2 if is_fault else 0)
    assert usage.last_failure_status == (status if is_fault else None)
    assert len(model.calls) == 2


async def test_tries_are_the_bridges_own_and_wait_as_asked(http: aiohttp.ClientSession) -> None:
    pauses = Pauses()
    busy = HttpReply(429, {"error": {"message": "slow"}}, headers={"Retry-After": "7"})
    with (
        ScriptedModel([busy, HangUp(), "42"]) as model,
        rollout_on(model, retry=pauses.policy(2)) as endpoint,
    ):
        answer = await post(http, endpoint)
        usage = endpoint.usage()
    assert answer.text == "42"
    assert pauses.taken == [7.0, 1.0]
    assert (usage.calls, usage.retries, len(model.calls)) == (1, 2, 3)


async def test_a_connection_that_fails_is_no_answer(http: aiohttp.ClientSession) -> None:
    with ScriptedModel(HangUp()) as model, rollout_on(model) as endpoint:
        answer = await post(http, endpoint)
        usage = endpoint.usage()
    assert answer.status == 502
    assert "gave no answer" in answer.error
    assert (usage.failed_calls, usage.last_failure_status) == (1, None)


@pytest.mark.parametrize("body", [{"choices": []}, b"<html>"])
async def test_an_answer_that_is_none_is_the_models_failure(
    http: aiohttp.ClientSession, body: Any
) -> None:
    with ScriptedModel(HttpReply(200, body)) as model, rollout_on(model) as endpoint:
        assert (await post(http, endpoint)).status == 502
        assert endpoint.usage().failed_calls == 1


async def test_a_stream_that_breaks_is_the_models_failure(http: aiohttp.ClientSession) -> None:
    with ScriptedModel(StreamReply(["4"], end="cut")) as model, rollout_on(model) as endpoint:
        _, text = await stream(http, endpoint)
        usage = endpoint.usage()
    assert "the model's stream broke" in text
    assert (usage.calls, usage.failed_calls) == (1, 1)


def test_a_name_litellm_does_not_know_is_refused() -> None:
    with pytest.raises(ConfigError, match="nothing answers for model_path 'nonsense'") as caught:
        load_model(ModelSpec("nonsense"))
    assert caught.value.key == "model_path"


def test_a_missing_key_is_said_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="needs OPENAI_API_KEY in the environment"):
        load_model(ModelSpec(PRICED))
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    load_model(ModelSpec(PRICED))


def test_credentials_of_other_kinds_are_not_judged() -> None:
    """They may come from a profile, a file or a role."""
    load_model(ModelSpec("bedrock/anthropic.claude-3-haiku-20240307-v1:0"))


@pytest.fixture
def log() -> Iterator[logging.Logger]:
    log = logging.getLogger("LiteLLM")
    before = log.level
    yield log
    log.setLevel(before)


def test_it_is_quiet_unless_somebody_wants_to_hear_it(log: logging.Logger) -> None:
    """Two lines for each call of a run are what nobody reads."""
    log.setLevel(logging.NOTSET)
    LiteLLMClient(PRICED, api_key="k")
    assert log.level == logging.WARNING
    log.setLevel(logging.DEBUG)
    LiteLLMClient(PRICED, api_key="k")
    assert log.level == logging.DEBUG


def test_prices_are_those_of_the_table() -> None:
    price = LiteLLMClient(PRICED, api_key="k").price
    assert price is not None
    assert (price.prompt, price.completion) == (1.5e-7, 6e-7)
    assert LiteLLMClient("openai/of-our-own", api_key="k").price is None
