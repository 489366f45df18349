"""The bridge: a call passes through to the model, is retried, and is counted."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest

from osmosis_ai.errors import ModelError
from osmosis_ai.rollout.controller.listener import Controller
from osmosis_ai.rollout.controller.model.base import (
    ModelCall,
    ModelClient,
    ModelReply,
    ModelRequest,
)
from osmosis_ai.rollout.controller.retry import RetryPolicy
from osmosis_ai.rollout.types import ModelUsage
from osmosis_ai.testing import Gate, HangUp, Held, HttpReply, ScriptedModel, Signal, call_tool
from tests.rollout.controller.calling import (
    QUESTION,
    Pauses,
    post,
    rollout_on,
    scripted_rollout,
    to,
)

DOWN = HttpReply(503, {"error": {"message": "overloaded"}})


async def test_every_field_but_the_model_passes_through_untouched(
    http: aiohttp.ClientSession,
) -> None:
    fields = {
        "temperature": 0.10,
        "logprobs": True,
        "tools": [{"type": "function", "function": {"name": "add"}}],
        "something_new": {"nested": [1, None, "é", "\ud800"]},
        "seed": 2**70,
    }
    with ScriptedModel("42") as model, rollout_on(model) as endpoint:
        answer = await post(http, endpoint, **fields)
    assert answer.text == "42"
    assert model.calls[0].request == {**QUESTION, **fields, "model": "real-name"}


async def test_the_bytes_around_the_model_are_the_rollouts_own(
    http: aiohttp.ClientSession,
) -> None:
    """Whoever caches prompts or compares requests sees no difference."""
    body = b'{ "messages":[],  "model" : "x", "temperature": 1.50e0 }'
    with ScriptedModel("42") as model, rollout_on(model) as endpoint:
        await post(http, endpoint, data=body)
    assert model.calls[0].body == b'{ "messages":[],  "model":"real-name", "temperature": 1.50e0 }'


async def test_the_models_params_win_over_what_the_rollout_sent(
    http: aiohttp.ClientSession,
) -> None:
    with (
        ScriptedModel("42") as model,
        rollout_on(model, params={"temperature": 0, "top_p": 1}) as endpoint,
    ):
        await post(http, endpoint, temperature=1, seed=5)
    assert model.calls[0].request == {
        **QUESTION,
        "model": "real-name",
        "temperature": 0,
        "top_p": 1,
        "seed": 5,
    }


async def test_the_models_own_key_goes_to_the_model_and_no_other(
    http: aiohttp.ClientSession,
) -> None:
    with (
        ScriptedModel("42", api_key="real-key") as model,
        rollout_on(model, api_key="real-key") as endpoint,
    ):
        assert (await post(http, endpoint)).status == 200
    assert model.calls[0].headers["authorization"] == "Bearer real-key"


async def test_an_answer_passes_through_as_it_is(http: aiohttp.ClientSession) -> None:
    whole = {
        "id": "x",
        "choices": [{"message": call_tool("add", a=1), "logprobs": {"content": [0.5]}}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 8},
        "vendor": {"field": 1},
    }
    with ScriptedModel(HttpReply(200, whole)) as model, rollout_on(model) as endpoint:
        answer = await post(http, endpoint)
        usage = endpoint.usage()
    assert answer.body == whole
    assert usage == ModelUsage(calls=1, prompt_tokens=3, completion_tokens=4, total_tokens=8)


async def test_tokens_add_up_over_the_calls_of_a_rollout(http: aiohttp.ClientSession) -> None:
    with ScriptedModel(["one two", "three"]) as model, rollout_on(model) as endpoint:
        await post(http, endpoint)
        await post(http, endpoint)
        usage = endpoint.usage()
    assert usage == ModelUsage(calls=2, prompt_tokens=12, completion_tokens=3, total_tokens=15)


@pytest.mark.parametrize("usage", [None, "many", {"prompt_tokens": "3", "total_tokens": -1}])
async def test_a_usage_that_makes_no_sense_counts_nothing(
    http: aiohttp.ClientSession, usage: Any
) -> None:
    reply = HttpReply(200, {"choices": [{"message": {"content": "42"}}], "usage": usage})
    with ScriptedModel(reply) as model, rollout_on(model) as endpoint:
        assert (await post(http, endpoint)).status == 200
        assert endpoint.usage() == ModelUsage(calls=1)


async def test_each_rollout_has_its_own_url_key_and_count(http: aiohttp.ClientSession) -> None:
    """64 rollouts at once never mix: each key opens one URL, and each count is its own."""
    with (
        ScriptedModel(lambda request, call: request["messages"][0]["content"]) as model,
        Controller(to(model)) as controller,
    ):
        endpoints = [controller.open_rollout(f"r{n}") for n in range(64)]

        async def run(number: int) -> list[str]:
            messages = [{"content": f"{number} " * number}]
            answers = [await post(http, endpoints[number], messages=messages) for _ in range(3)]
            return [answer.text for answer in answers]

        texts = await asyncio.gather(*(run(number) for number in range(64)))
        usages = [endpoint.usage() for endpoint in endpoints]
    assert texts == [[f"{n} " * n] * 3 for n in range(64)]
    assert [(usage.calls, usage.prompt_tokens) for usage in usages] == [
        (3, 3 * n) for n in range(64)
    ]
    assert len({endpoint.api_key for endpoint in endpoints}) == 64
    assert len({endpoint.chat_completions_url for endpoint in endpoints}) == 64


@pytest.mark.parametrize("key", [None, "Bearer ", "Bearer wrong", "Basic {key}", "{key}"])
async def test_another_key_opens_nothing(http: aiohttp.ClientSession, key: str | None) -> None:
    with scripted_rollout(lambda request, call: "42") as endpoint:
        headers = {} if key is None else {"Authorization": key.format(key=endpoint.api_key)}
        url = f"{endpoint.chat_completions_url}/chat/completions"
        async with http.post(url, headers=headers, json=QUESTION) as answer:
            assert answer.status == 401
            assert answer.headers["x-should-retry"] == "false"
        assert endpoint.usage() == ModelUsage()


async def test_the_key_of_one_rollout_does_not_open_another(http: aiohttp.ClientSession) -> None:
    with ScriptedModel("42") as model, Controller(to(model)) as controller:
        one, other = controller.open_rollout("r1"), controller.open_rollout("r2")
        async with http.post(
            f"{one.chat_completions_url}/chat/completions",
            headers={"Authorization": f"Bearer {other.api_key}"},
            json=QUESTION,
        ) as answer:
            assert answer.status == 401


async def test_an_outage_is_the_models_failure(http: aiohttp.ClientSession) -> None:
    with ScriptedModel(DOWN) as model, rollout_on(model) as endpoint:
        answer = await post(http, endpoint)
        usage = endpoint.usage()
    assert (answer.status, answer.error) == (503, "overloaded")
    assert answer.headers["x-should-retry"] == "false"
    assert usage == ModelUsage(
        calls=1,
        failed_calls=1,
        last_error="the model endpoint answered 503: overloaded",
        last_failure_status=503,
    )


async def test_an_answered_call_ends_the_last_error(http: aiohttp.ClientSession) -> None:
    """`last_error` speaks of the newest call: a workflow that went on was not stopped by it."""
    with ScriptedModel([DOWN, "42"]) as model, rollout_on(model) as endpoint:
        await post(http, endpoint)
        await post(http, endpoint)
        usage = endpoint.usage()
    assert (usage.calls, usage.failed_calls, usage.last_error) == (2, 1, None)
    assert usage.last_failure_status is None


@pytest.mark.parametrize("status", [400, 409, 413, 415, 422])
async def test_a_body_the_model_refuses_is_the_agents_own_mistake(
    http: aiohttp.ClientSession, status: int
) -> None:
    pauses = Pauses()
    reply = HttpReply(status, {"error": {"message": "no such role"}})
    with ScriptedModel(reply) as model, rollout_on(model, retry=pauses.policy(3)) as endpoint:
        answer = await post(http, endpoint)
        usage = endpoint.usage()
    assert (answer.status, answer.error) == (status, "no such role")
    assert usage == ModelUsage(calls=1)
    assert len(model.calls) == 1


@pytest.mark.parametrize("status", [302, 401, 402, 403, 404, 405])
async def test_what_the_runs_owner_set_wrong_is_not_the_agents_mistake(
    http: aiohttp.ClientSession, status: int
) -> None:
    """A rejected key, an unknown model: no agent can do anything about it, nor another try."""
    pauses = Pauses()
    reply = HttpReply(status, {"error": "no"}, headers={"Location": "/elsewhere"})
    with ScriptedModel(reply) as model, rollout_on(model, retry=pauses.policy(3)) as endpoint:
        assert (await post(http, endpoint)).status == status
        usage = endpoint.usage()
    assert usage.failed_calls == 1
    assert usage.last_error == f"the model endpoint answered {status}: no"
    assert usage.last_failure_status == status
    assert len(model.calls) == 1


@pytest.mark.parametrize("failure", [DOWN, HttpReply(429), HttpReply(408), HangUp()])
async def test_what_passes_is_tried_again(http: aiohttp.ClientSession, failure: Any) -> None:
    pauses = Pauses()
    with (
        ScriptedModel([failure, failure, "42"]) as model,
        rollout_on(model, retry=pauses.policy(2)) as endpoint,
    ):
        answer = await post(http, endpoint)
        usage = endpoint.usage()
    assert answer.text == "42"
    assert (usage.calls, usage.failed_calls, usage.retries) == (1, 0, 2)
    assert pauses.taken == [0.5, 1.0]


async def test_retries_end(http: aiohttp.ClientSession) -> None:
    pauses = Pauses()
    with ScriptedModel(DOWN) as model, rollout_on(model, retry=pauses.policy(6)) as endpoint:
        answer = await post(http, endpoint)
        usage = endpoint.usage()
    assert answer.status == 503
    assert answer.headers["x-should-retry"] == "false"
    assert (usage.calls, usage.failed_calls) == (1, 1)
    assert pauses.taken == [0.5, 1.0, 2.0, 4.0, 8.0, 8.0]


async def test_the_servers_retry_after_is_kept(http: aiohttp.ClientSession) -> None:
    pauses = Pauses()
    busy = HttpReply(429, headers={"Retry-After": "17"})
    with (
        ScriptedModel([busy, "42"]) as model,
        rollout_on(model, retry=pauses.policy(1)) as endpoint,
    ):
        assert (await post(http, endpoint)).status == 200
    assert pauses.taken == [17.0]


async def test_no_retry_waits_past_the_deadline(http: aiohttp.ClientSession) -> None:
    """The answer would come too late: the rollout hears of the outage while it can act."""
    pauses = Pauses()
    busy = HttpReply(429, headers={"Retry-After": "1000"})
    with (
        ScriptedModel(busy) as model,
        rollout_on(model, retry=pauses.policy(5), deadline_sec=900) as endpoint,
    ):
        assert (await post(http, endpoint)).status == 429
    assert pauses.taken == []


async def test_the_turn_of_a_retry_is_the_turn_of_its_call(http: aiohttp.ClientSession) -> None:
    turns: list[int] = []

    class Flaky(ModelClient):
        async def complete(self, request: ModelRequest, call: ModelCall) -> ModelReply:
            turns.append(call.turn)
            if len(turns) < 3:
                raise ModelError("gone")
            return ModelReply(200, b'{"choices": [{"message": {"content": "42"}}]}')

    with Controller(Flaky(), retry=Pauses().policy(2)) as controller:
        endpoint = controller.open_rollout("r1")
        await post(http, endpoint)
        await post(http, endpoint)
    assert turns == [0, 0, 0, 1]


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (HttpReply(200, "<html>sorry</html>"), "is not a JSON object: '<html>sorry</html>'"),
        (HttpReply(200, "[1]"), "is not a JSON object: '[1]'"),
        (HttpReply(200, '{"choices": [{"mess'), "is not a JSON object"),
        (HttpReply(200, ""), "is not a JSON object: ''"),
        (HttpReply(200, {"choices": []}), "without choices"),
        (HttpReply(200, {"choices": "none"}), "without choices"),
        (HttpReply(200, {"error": {"message": "quota"}}), "without choices: quota"),
        (HttpReply(200, {"choices": ["42"]}), "a choice without a message"),
        (HttpReply(200, {"choices": [{"text": "42"}]}), "a choice without a message"),
        (HttpReply(200, "é" * 300), "…"),
        (HangUp(), "gave no answer"),
        (HangUp(b"garbage\r\n\r\n"), "gave no answer"),
        (HangUp(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{}"), "gave no answer"),
    ],
)
async def test_what_is_no_answer_is_a_bad_gateway(
    http: aiohttp.ClientSession, reply: Any, message: str
) -> None:
    with ScriptedModel(reply) as model, rollout_on(model) as endpoint:
        answer = await post(http, endpoint)
        usage = endpoint.usage()
    assert answer.status == 502
    assert message in answer.error
    assert usage.failed_calls == 1
    assert usage.last_error == answer.error


async def test_a_page_of_html_becomes_a_sentence(http: aiohttp.ClientSession) -> None:
    page = HttpReply(503, "<html> \n<b>nginx</b>")
    with ScriptedModel(page) as model, rollout_on(model) as endpoint:
        answer = await post(http, endpoint)
    assert answer.status == 503
    assert answer.error == "the model endpoint answered 503: '<html> <b>nginx</b>'"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"detail": "busy"}, "busy"),
        ({"message": "busy"}, "busy"),
        ({"error": {"code": 1}}, '{"error":{"code":1}}'),
    ],
)
async def test_errors_of_every_shape_are_read(
    http: aiohttp.ClientSession, body: Any, message: str
) -> None:
    with ScriptedModel(HttpReply(500, body)) as model, rollout_on(model) as endpoint:
        await post(http, endpoint)
        last_error = endpoint.usage().last_error
    assert last_error is not None
    assert message in last_error


async def test_a_model_that_is_not_there_is_a_bad_gateway(http: aiohttp.ClientSession) -> None:
    with ScriptedModel("42") as gone:
        pass
    with rollout_on(gone) as endpoint:
        answer = await post(http, endpoint)
    assert answer.status == 502
    assert f"the model at {gone.base_url}/chat/completions gave no answer" in answer.error


async def test_a_bug_of_a_model_client_is_not_the_agents_failure(
    http: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(ModelClient):
        async def complete(self, request: ModelRequest, call: ModelCall) -> ModelReply:
            raise KeyError("oops")

    with Controller(Broken()) as controller, controller.open_rollout("r1") as endpoint:
        answer = await post(http, endpoint)
        usage = endpoint.usage()
    assert answer.status == 500
    assert usage.last_error == "the model client failed: KeyError: 'oops'"
    assert "rollout r1: the model client failed" in caplog.text


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "the body is not JSON"),
        (b"\xff", "the body is not JSON"),
        (b"[1]", "the body must be a JSON object, not list"),
        (b"[" * 100_000, "the body is not JSON"),
    ],
)
async def test_a_body_that_is_no_json_object_never_reaches_the_model(
    http: aiohttp.ClientSession, body: bytes, message: str
) -> None:
    with ScriptedModel("42") as model, rollout_on(model) as endpoint:
        answer = await post(http, endpoint, data=body)
        usage = endpoint.usage()
    assert (answer.status, usage) == (400, ModelUsage())
    assert message in answer.error
    assert model.calls == []


async def test_a_body_that_is_too_long_is_refused(http: aiohttp.ClientSession) -> None:
    with ScriptedModel("42") as model, rollout_on(model, max_body_bytes=1000) as endpoint:
        answer = await post(http, endpoint, data=b'{"a": "' + b"x" * 1000 + b'"}')
    assert (answer.status, answer.error) == (413, "the body is longer than 1,000 bytes")
    assert model.calls == []


async def test_a_long_body_comes_through_whole(http: aiohttp.ClientSession) -> None:
    """2 MB arrive in many pieces."""
    text = "long " * 400_000
    with ScriptedModel("42") as model, rollout_on(model, max_body_bytes=2**22) as endpoint:
        answer = await post(http, endpoint, messages=[{"role": "user", "content": text}])
    assert answer.status == 200
    assert model.calls[0].request["messages"][0]["content"] == text


async def test_a_client_that_hangs_up_ends_the_call_to_the_model(
    http: aiohttp.ClientSession,
) -> None:
    """Nobody would read what it still costs."""
    gate = Gate()
    with ScriptedModel(Held(gate, "never")) as model, rollout_on(model) as endpoint:
        call = asyncio.create_task(post(http, endpoint))
        await gate.reached.wait()
        call.cancel()
        await model.calls[0].hung_up.wait()
        usage = endpoint.usage()
    assert (usage.calls, usage.failed_calls, usage.last_error) == (1, 0, None)


async def test_a_client_that_gives_up_during_an_outage_did_not_fail_by_itself(
    http: aiohttp.ClientSession,
) -> None:
    """Its own time limit is shorter than our retries: the reason is the outage all the same."""
    pausing, interrupted = Signal(), Signal()

    async def pause(seconds: float) -> None:
        pausing.set()
        try:
            await Signal().wait()
        finally:
            interrupted.set()

    retry = RetryPolicy(max_retries=3, sleep=pause)
    with ScriptedModel(DOWN) as model, Controller(to(model), retry=retry) as controller:
        endpoint = controller.open_rollout("r1")
        call = asyncio.create_task(post(http, endpoint))
        await pausing.wait()
        call.cancel()
        await interrupted.wait()
    usage = endpoint.usage()
    assert (usage.calls, usage.failed_calls) == (1, 1)
    assert usage.last_error == "the model endpoint answered 503: overloaded"


async def test_a_rollout_that_ends_takes_its_open_calls_with_it(
    http: aiohttp.ClientSession,
) -> None:
    gate = Gate()
    with ScriptedModel(Held(gate, "never")) as model, rollout_on(model) as endpoint:
        call = asyncio.create_task(post(http, endpoint))
        await gate.reached.wait()
        endpoint.close()
        answer = await call
        await model.calls[0].hung_up.wait()
    assert (answer.status, answer.error) == (410, "this rollout has ended")
    assert endpoint.usage().failed_calls == 0


async def test_a_controller_that_stops_answers_its_open_calls(http: aiohttp.ClientSession) -> None:
    gate = Gate()
    with ScriptedModel(Held(gate, "never")) as model, Controller(to(model)) as controller:
        endpoint = controller.open_rollout("r1")
        call = asyncio.create_task(post(http, endpoint))
        await gate.reached.wait()
        stopping = asyncio.create_task(asyncio.to_thread(controller.__exit__, None, None, None))
        answer = await call
        await stopping
    assert (answer.status, answer.error) == (410, "the controller has stopped")


async def test_a_stopping_controller_lets_its_last_answers_out(
    http: aiohttp.ClientSession,
) -> None:
    reached = Signal()

    async def reply(request: dict[str, Any], call: ModelCall) -> str:
        reached.set()
        await asyncio.Event().wait()
        return "never"

    with scripted_rollout(reply) as endpoint:
        open_call = asyncio.create_task(post(http, endpoint))
        await reached.wait()
    assert (await open_call).status == 410


async def test_the_list_of_models_names_the_one_there_is(http: aiohttp.ClientSession) -> None:
    with ScriptedModel("42") as model, rollout_on(model) as endpoint:
        headers = {"Authorization": f"Bearer {endpoint.api_key}"}
        async with http.get(f"{endpoint.chat_completions_url}/models", headers=headers) as answer:
            listed = await answer.json()
        async with http.get(f"{endpoint.chat_completions_url}/models") as answer:
            assert answer.status == 401
    assert [one["id"] for one in listed["data"]] == ["real-name"]
