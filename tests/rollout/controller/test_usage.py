"""What a bridge notes of each model call: time, tries, tokens, money."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import aiohttp
import pytest

from osmosis_ai.rollout.controller.clock import DeadlineClock, Seconds
from osmosis_ai.rollout.controller.endpoint import RolloutEndpoint
from osmosis_ai.rollout.controller.listener import Controller
from osmosis_ai.rollout.controller.model.base import ModelCall
from osmosis_ai.rollout.controller.model.scripted import ScriptedClient
from osmosis_ai.rollout.controller.usage import AnsweredCall, Receipt
from osmosis_ai.testing import HangUp, HttpReply, ScriptedModel, StreamReply
from tests.rollout.controller.calling import Pauses, post, rollout_on, stream

TOKENS = [{"token": "4", "logprob": -0.5}, {"token": "2", "logprob": -0.25}]
ANSWER = {
    "model": "served-name",
    "prompt_token_ids": [1, 2, 3],
    "choices": [
        {
            "message": {"role": "assistant", "content": "42"},
            "token_ids": [7, 8],
            "logprobs": {"content": TOKENS},
        }
    ],
    "usage": {
        "prompt_tokens": 3,
        "completion_tokens": 2,
        "total_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 2},
    },
}


class Ticking(Seconds):
    """Time that the test lets pass."""

    def __init__(self) -> None:
        super().__init__()
        self.at = 100.0

    def now(self) -> float:
        return self.at


@pytest.fixture
async def time() -> Ticking:
    return Ticking()


@pytest.fixture
async def endpoint(time: Ticking) -> RolloutEndpoint:
    return RolloutEndpoint(
        base_url="http://127.0.0.1:1",
        api_key="key",
        first_call=ModelCall("r1"),
        clock=DeadlineClock(asyncio.get_running_loop(), print, seconds=time),
        close=lambda endpoint: None,
    )


class Priced(ScriptedClient):
    """A cent for each token of an answer."""

    def cost_usd(self, usage: Any) -> float | None:
        tokens = usage["completion_tokens"]
        return tokens / 100 if tokens < 100 else None


def lists(call: AnsweredCall) -> dict[str, Any]:
    return call.metrics().model_dump(exclude_none=True)


async def test_a_call_that_was_answered_is_told_in_full(http: aiohttp.ClientSession) -> None:
    with ScriptedModel(HttpReply(200, ANSWER)) as model, rollout_on(model) as endpoint:
        await post(http, endpoint)
        calls = endpoint.answered_calls()
    told = lists(calls[0])
    assert told.pop("extra")["latency_sec"] == round(calls[0].latency_sec, 6)
    assert told == {
        "prompt_tokens": 3,
        "completion_tokens": 2,
        "cached_tokens": 2,
        "prompt_token_ids": [1, 2, 3],
        "completion_token_ids": [7, 8],
        "logprobs": [-0.5, -0.25],
        "model_name": "served-name",
    }


async def test_a_stream_is_told_alike(http: aiohttp.ClientSession) -> None:
    """The first choice's tokens, from as many events as there are."""
    choice = ANSWER["choices"][0]  # type: ignore[index]
    parts = [
        {"model": "served-name", "prompt_token_ids": [1, 2, 3], "choices": [{"delta": {}}]},
        {"choices": ["no choice", {"index": 1, "delta": {}, "token_ids": [99]}]},
        *(
            {"choices": [{"delta": {}, "token_ids": [place], "logprobs": {"content": [token]}}]}
            for place, token in zip(choice["token_ids"], TOKENS, strict=True)
        ),
        {"choices": [], "usage": ANSWER["usage"]},
    ]
    with (
        ScriptedModel([StreamReply(parts), HttpReply(200, ANSWER)]) as model,
        rollout_on(model) as endpoint,
    ):
        await stream(http, endpoint)
        await post(http, endpoint)
        streamed, whole = (lists(call) for call in endpoint.answered_calls())
    assert streamed.pop("extra") != whole.pop("extra")
    assert streamed == whole


async def test_only_answered_calls_are_told(http: aiohttp.ClientSession) -> None:
    """So that they fit the steps of a conversation; the others are in its counts."""
    pauses = Pauses()
    replies = [HttpReply(400, {"error": "no"}), HttpReply(429), "42", HttpReply(401), HangUp()]
    with (
        ScriptedModel([*replies, HangUp()]) as model,
        rollout_on(model, retry=pauses.policy(1)) as endpoint,
    ):
        for _ in range(4):
            await post(http, endpoint)
        usage, calls = endpoint.usage(), endpoint.answered_calls()
    assert [(call.turn, call.retries) for call in calls] == [(1, 1)]
    assert lists(calls[0])["extra"]["retries"] == 1
    assert (usage.calls, usage.failed_calls, usage.retries) == (4, 2, 2)
    assert usage.last_failure_status is None
    assert "gave no answer" in (usage.last_error or "")


async def test_time_is_counted_once_where_calls_overlap(
    endpoint: RolloutEndpoint, time: Ticking
) -> None:
    """Two calls at once of a second each are one second of waiting for the model."""
    assert endpoint.model_sec == 0
    one = endpoint.begin_call()
    time.at += 1
    other = endpoint.begin_call()
    time.at += 2
    assert endpoint.model_sec == 3
    with one:
        one.answered(Receipt())
    time.at += 4
    with other:
        other.answered(Receipt())
    time.at += 8
    assert endpoint.model_sec == 7
    assert [call.latency_sec for call in endpoint.answered_calls()] == [3, 6]


async def test_only_the_first_word_on_a_call_counts(endpoint: RolloutEndpoint) -> None:
    with endpoint.begin_call() as call:
        call.failed("torn", None)
        call.answered(Receipt())
    with endpoint.begin_call() as call:
        call.answered(Receipt())
        call.failed("too late", None)
    assert (endpoint.usage().failed_calls, len(endpoint.answered_calls())) == (1, 1)


async def test_a_price_adds_up_and_one_unknown_price_makes_the_sum_unknown(
    http: aiohttp.ClientSession,
) -> None:
    """What is not known is not nothing: a sum without it would be too low."""
    costs = []
    with (
        Controller(Priced(lambda request, call: "word " * (2, 3, 100)[call.turn])) as controller,
        controller.open_rollout("r1") as endpoint,
    ):
        costs.append(endpoint.usage().cost_usd)
        for _ in range(3):
            await post(http, endpoint)
            costs.append(endpoint.usage().cost_usd)
        calls = endpoint.answered_calls()
    assert costs == [None, 0.02, 0.05, None]
    assert [lists(call).get("cost_usd") for call in calls] == [0.02, 0.03, None]


@pytest.mark.parametrize(
    ("value", "count"), [(3, 3), (3.0, 3), (3.5, None), (math.inf, None), (-1, None), ("3", None)]
)
def test_what_is_no_count_of_tokens_is_not_told(value: Any, count: int | None) -> None:
    call = AnsweredCall(0, 0.5, 0, Receipt(usage={"prompt_tokens": value}, model_name=7))
    assert call.metrics().prompt_tokens == count
    assert call.metrics().model_name is None
