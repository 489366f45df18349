"""One plain question to the model, and what its answer tells the person who started a run."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from osmosis_ai.errors import ModelError
from osmosis_ai.rollout.controller.endpoint import PAST_DEADLINE
from osmosis_ai.rollout.controller.listener import Controller
from osmosis_ai.rollout.controller.model.base import (
    ModelCall,
    ModelClient,
    ModelReply,
    ModelRequest,
)
from osmosis_ai.rollout.controller.model.scripted import ScriptedClient
from osmosis_ai.rollout.controller.probe import probe_model
from osmosis_ai.rollout.controller.retry import RetryPolicy
from osmosis_ai.testing import HttpReply, ScriptedModel, StreamReply
from tests.rollout.controller.calling import to

NO_LIMIT = HttpReply(400, {"error": {"message": "max_tokens is not supported"}})


def error(status: int, message: str = "no") -> HttpReply:
    return HttpReply(status, {"error": {"message": message}})


async def no_pause(seconds: float) -> None:
    """Time does not matter here."""


async def probed(*replies: Any, max_retries: int = 0, **client: Any) -> list[dict[str, Any]]:
    """The questions the model got; raises what the probe raises."""
    retry = RetryPolicy(max_retries=max_retries, sleep=no_pause)
    with (
        ScriptedModel(list(replies)) as model,
        Controller(to(model, **client), retry=retry) as controller,
    ):
        await controller.probe()
        return [call.request for call in model.calls]


async def test_a_model_that_answers_is_asked_one_short_thing() -> None:
    (asked,) = await probed("ok", params={"temperature": 0})
    assert (asked["model"], asked["max_tokens"], asked["temperature"]) == ("real-name", 16, 0)


async def test_a_model_that_takes_no_limit_is_asked_without() -> None:
    first, second = await probed(NO_LIMIT, "ok")
    assert "max_tokens" in first
    assert "max_tokens" not in second


async def test_a_model_that_is_to_stream_is_there_when_it_begins() -> None:
    (asked,) = await probed(StreamReply(["o", "k"]), params={"stream": True})
    assert asked["stream"] is True


async def test_passing_trouble_is_tried_again_as_often_as_for_rollouts() -> None:
    assert len(await probed(error(429), error(503), "ok", max_retries=2)) == 3


@pytest.mark.parametrize(
    ("replies", "status", "said"),
    [
        ([error(401, "bad key")], 401, "answered 401: bad key\nIt rejects the key: look at"),
        ([error(402)], 402, "The account has nothing left."),
        ([error(403)], 403, "no right to this model"),
        ([error(404, "no model x")], 404, "no model x\nIt knows no such model"),
        ([error(405)], 405, "Look at `[model] base_url`."),
        ([error(503)], 503, "does not answer now. Try again later, or go on with --no-probe."),
        ([NO_LIMIT, error(400, "I want tools")], 400, "I want tools"),
        ([NO_LIMIT, error(422, "odd")], 422, "If rollouts ask it otherwise: --no-probe."),
        (
            [HttpReply(200, "<html>Hello</html>")],
            None,
            "Is it running, and is `[model] base_url`",
        ),
        ([{"choices": []}], None, "answered without choices"),
    ],
)
async def test_each_trouble_says_what_to_do(
    replies: list[Any], status: int | None, said: str
) -> None:
    with pytest.raises(ModelError) as caught:
        await probed(*replies)
    assert caught.value.status_code == status
    assert str(caught.value).startswith("model 'real-name': ")
    assert said in str(caught.value)


async def test_nobody_at_the_address_is_told_with_the_address() -> None:
    with ScriptedModel([]) as gone:
        client = to(gone)
    refused = pytest.raises(ModelError, match=f"the model at {gone.base_url}")
    with Controller(client) as controller, refused as caught:
        await controller.probe()
    assert caught.value.status_code is None


class Silent(ModelClient):
    """Is asked, and says nothing."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def complete(self, request: ModelRequest, call: ModelCall) -> ModelReply:
        self.asked.set()
        await asyncio.Event().wait()
        raise AssertionError


async def test_a_probe_that_is_cancelled_stays_so() -> None:
    model = Silent()
    with Controller(model) as controller, controller.open_rollout("r1") as endpoint:
        probe = asyncio.create_task(probe_model(model, endpoint, retry=RetryPolicy()))
        await model.asked.wait()
        probe.cancel()
        with pytest.raises(asyncio.CancelledError):
            await probe


async def test_an_answer_that_does_not_come_is_not_waited_for() -> None:
    model = Silent()
    with Controller(model) as controller, controller.open_rollout("r1") as endpoint:
        probe = asyncio.create_task(probe_model(model, endpoint, retry=RetryPolicy()))
        await model.asked.wait()
        endpoint.end_calls(PAST_DEADLINE)
        with pytest.raises(ModelError, match="gave no answer in time: the deadline"):
            await probe


async def test_a_model_that_is_code_here_is_not_asked() -> None:
    def reply(request: Any, call: Any) -> str:
        raise AssertionError("asked")

    with Controller(ScriptedClient(reply)) as controller:
        await controller.probe()
