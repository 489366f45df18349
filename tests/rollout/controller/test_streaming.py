"""Streaming through the bridge: chunks as they come, counted, and an honest end."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from osmosis_ai.rollout.controller.endpoint import RolloutEndpoint
from osmosis_ai.rollout.controller.listener import Controller
from osmosis_ai.rollout.types import ModelUsage
from osmosis_ai.testing import Gate, HangUp, HttpReply, ScriptedModel, StreamReply, call_tool
from tests.rollout.controller.calling import QUESTION, Pauses, rollout_on, scripted_rollout, to

ASK_USAGE = {"stream_options": {"include_usage": True}}
DONE = b"data: [DONE]\n\n"


def calling(http: aiohttp.ClientSession, endpoint: RolloutEndpoint, /, **fields: Any) -> Any:
    """A streaming call, to be entered."""
    return http.post(
        f"{endpoint.chat_completions_url}/chat/completions",
        headers={"Authorization": f"Bearer {endpoint.api_key}"},
        json={**QUESTION, "stream": True, **fields},
    )


async def read(
    http: aiohttp.ClientSession, endpoint: RolloutEndpoint, /, **fields: Any
) -> tuple[int, list[str]]:
    """A streaming call to its end: the status, and the data of each event."""
    async with calling(http, endpoint, **fields) as answer:
        events = (await answer.text()).split("\n\n")
    return answer.status, [event.removeprefix("data: ") for event in events if event]


def error_of(event: str) -> str:
    message: str = json.loads(event)["error"]["message"]
    return message


async def test_a_chunk_is_passed_on_before_the_next_one_is_there(
    http: aiohttp.ClientSession,
) -> None:
    """The client reads the first word while the model still waits to send the second."""
    gate = Gate()
    with (
        ScriptedModel(StreamReply(["first", gate, "second"])) as model,
        rollout_on(model) as endpoint,
    ):
        async with calling(http, endpoint) as answer:
            assert answer.content_type == "text/event-stream"
            early = await answer.content.readuntil(b"\n\n")
            await gate.reached.wait()
            gate.opened.set()
            late = await answer.content.read()
    assert b"first" in early
    assert b"second" in late
    assert late.endswith(DONE)


async def test_a_stream_passes_byte_by_byte(http: aiohttp.ClientSession) -> None:
    """Tool call deltas, comments and odd spacing included."""
    deltas = [
        b'data: {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "id": "c1", ',
        b'"function": {"name": "add", "arguments": ""}}]}}]}\r\n\r\n',
        b": ping\n\n",
        b'data: {"choices": [{"delta": {"tool_calls": [{"index": 0, "function": ',
        b'{"arguments": "{\\"a\\": 1}"}}]}, "finish_reason": "tool_calls"}]}\n\n',
        DONE,
    ]
    with (
        ScriptedModel(StreamReply(deltas, end="short")) as model,
        rollout_on(model) as endpoint,
    ):
        async with calling(http, endpoint) as answer:
            assert await answer.read() == b"".join(deltas)
        assert endpoint.usage() == ModelUsage(calls=1)


async def test_the_usage_chunk_is_counted(http: aiohttp.ClientSession) -> None:
    with (
        ScriptedModel(StreamReply(["one", "two"])) as model,
        rollout_on(model) as endpoint,
    ):
        await read(http, endpoint, **ASK_USAGE)
        assert endpoint.usage() == ModelUsage(
            calls=1, prompt_tokens=1, completion_tokens=2, total_tokens=3
        )


async def test_a_stream_is_counted_when_its_last_chunk_is_read(
    http: aiohttp.ClientSession,
) -> None:
    """The rollout may be over as soon as it has read `[DONE]`."""
    gate = Gate()
    usage = {"choices": [{"finish_reason": "stop"}], "usage": {"total_tokens": 5}}
    with (
        ScriptedModel(StreamReply([usage, DONE, gate], end="short")) as model,
        rollout_on(model) as endpoint,
    ):
        async with calling(http, endpoint) as answer:
            await answer.content.readuntil(DONE)
            assert endpoint.usage().total_tokens == 5
            gate.opened.set()


async def test_a_stream_without_done_is_whole_when_it_was_finished(
    http: aiohttp.ClientSession,
) -> None:
    """Not every server says `[DONE]`."""
    parts = ["42", {"choices": [{"delta": {}, "finish_reason": "stop"}]}]
    with (
        ScriptedModel(StreamReply(parts, end="short")) as model,
        rollout_on(model) as endpoint,
    ):
        _, events = await read(http, endpoint)
        assert len(events) == 2
        assert endpoint.usage() == ModelUsage(calls=1)


@pytest.mark.parametrize(
    ("rest", "end", "message"),
    [
        ([], "short", "ended before its answer was finished"),
        ([], "cut", "gave no answer"),
        ([b"data: {torn\n\n"], "done", "an event that is not JSON"),
        ([{"error": {"message": "out of memory"}}], "done", "out of memory"),
        ([{"error": True}], "done", "reported an error"),
    ],
)
async def test_a_stream_that_breaks_says_so_to_the_client_and_in_the_count(
    http: aiohttp.ClientSession, rest: list[Any], end: Any, message: str
) -> None:
    """The status was sent long ago: the last event is an error, which OpenAI clients raise."""
    gate = Gate()
    reply = StreamReply(["4", gate, *rest], end=end)
    with ScriptedModel(reply) as model, rollout_on(model) as endpoint:
        async with calling(http, endpoint) as answer:
            await answer.content.readuntil(b"\n\n")
            gate.opened.set()
            last = (await answer.text()).split("\n\n")[-2].removeprefix("data: ")
        usage = endpoint.usage()
    assert answer.status == 200
    assert message in error_of(last)
    assert (usage.calls, usage.failed_calls) == (1, 1)
    assert usage.last_error == error_of(last)


async def test_a_stream_without_choices_is_no_answer(http: aiohttp.ClientSession) -> None:
    reply = StreamReply([{"choices": []}, DONE], end="short")
    with ScriptedModel(reply) as model, rollout_on(model) as endpoint:
        _, events = await read(http, endpoint)
        usage = endpoint.usage()
    assert error_of(events[-1]) == "the model answered without choices" == usage.last_error


async def test_events_that_say_nothing_do_no_harm(http: aiohttp.ClientSession) -> None:
    parts = [b"data: 17\n\n", b"\n\n", b"event: x\n", {"choices": ["odd"]}, {"choices": None}, "42"]
    with ScriptedModel(StreamReply(parts)) as model, rollout_on(model) as endpoint:
        await read(http, endpoint)
        assert endpoint.usage() == ModelUsage(calls=1)


@pytest.mark.parametrize(
    "failure",
    [
        HttpReply(503),
        HangUp(),
        StreamReply([], end="short"),
        StreamReply([], end="cut"),
        StreamReply([{"error": {"message": "overloaded"}}]),
    ],
)
async def test_a_stream_that_breaks_before_it_begins_is_tried_again(
    http: aiohttp.ClientSession, failure: Any
) -> None:
    """Nothing was sent yet, so that nothing is lost."""
    pauses = Pauses()
    with (
        ScriptedModel([failure, StreamReply(["42"])]) as model,
        rollout_on(model, retry=pauses.policy(1)) as endpoint,
    ):
        status, events = await read(http, endpoint)
        usage = endpoint.usage()
    assert status == 200
    assert events[-1] == "[DONE]"
    assert (usage.calls, usage.failed_calls) == (1, 0)
    assert len(pauses.taken) == 1


@pytest.mark.parametrize(
    ("failure", "status", "message"),
    [
        (HttpReply(503), 503, "answered 503"),
        (StreamReply([], end="short"), 502, "ended before it began"),
        (StreamReply([{"error": "overloaded"}]), 502, "begins with an error: overloaded"),
    ],
)
async def test_a_stream_that_never_begins_is_an_error_with_its_status(
    http: aiohttp.ClientSession, failure: Any, status: int, message: str
) -> None:
    with ScriptedModel(failure) as model, rollout_on(model) as endpoint:
        async with calling(http, endpoint) as answer:
            body = await answer.json()
        usage = endpoint.usage()
    assert answer.status == status
    assert answer.headers["x-should-retry"] == "false"
    assert message in body["error"]["message"]
    assert usage.failed_calls == 1


async def test_a_client_that_hangs_up_ends_the_stream_of_the_model(
    http: aiohttp.ClientSession,
) -> None:
    gate = Gate()
    with (
        ScriptedModel(StreamReply(["first", gate, "second"])) as model,
        rollout_on(model) as endpoint,
    ):
        async with calling(http, endpoint) as answer:
            await answer.content.readuntil(b"\n\n")
            answer.close()
        await model.calls[0].hung_up.wait()
        assert endpoint.usage().failed_calls == 0


async def test_a_rollout_that_ends_takes_its_streams_with_it(
    http: aiohttp.ClientSession,
) -> None:
    gate = Gate()
    with (
        ScriptedModel(StreamReply(["first", gate])) as model,
        rollout_on(model) as endpoint,
    ):
        async with calling(http, endpoint) as answer:
            await answer.content.readuntil(b"\n\n")
            endpoint.close()
            rest = (await answer.text()).removeprefix("data: ")
        await model.calls[0].hung_up.wait()
    assert error_of(rest) == "this rollout has ended"
    assert endpoint.usage() == ModelUsage(calls=1)


async def test_a_scripted_reply_is_streamed_to_a_client_that_asks(
    http: aiohttp.ClientSession,
) -> None:
    def reply(request: dict[str, Any], call: Any) -> Any:
        return {"content": "thinking", "reasoning_content": "hm", **call_tool("add", a=1)}

    with scripted_rollout(reply) as endpoint:
        status, events = await read(http, endpoint, **ASK_USAGE)
        usage = endpoint.usage()
    first, finish, counted = (json.loads(event) for event in events[:3])
    assert (status, events[3:]) == (200, ["[DONE]"])
    assert first["object"] == "chat.completion.chunk"
    assert first["choices"][0]["delta"] == {
        "role": "assistant",
        "content": "thinking",
        "reasoning_content": "hm",
        "tool_calls": [
            {
                "index": 0,
                "id": "call_0_0",
                "type": "function",
                "function": {"name": "add", "arguments": '{"a":1}'},
            }
        ],
    }
    assert finish["choices"][0]["finish_reason"] == "tool_calls"
    assert counted["usage"]["total_tokens"] == usage.total_tokens > 0


async def test_a_server_that_refuses_to_stream_is_asked_for_the_whole(
    http: aiohttp.ClientSession,
) -> None:
    refusal = HttpReply(400, {"error": {"message": "Streaming is not supported by this model"}})
    with ScriptedModel([refusal, "42"]) as model, rollout_on(model) as endpoint:
        status, events = await read(http, endpoint, temperature=0, **ASK_USAGE)
        usage = endpoint.usage()
    assert (status, events[-1]) == (200, "[DONE]")
    assert json.loads(events[0])["choices"][0]["delta"]["content"] == "42"
    assert model.calls[1].request == {
        **QUESTION,
        "model": "real-name",
        "stream": False,
        "temperature": 0,
    }
    assert (usage.calls, usage.failed_calls) == (1, 0)


@pytest.mark.parametrize(
    "refusal", [HttpReply(400, "no such role"), HttpReply(500, "streams are not supported today")]
)
async def test_other_refusals_are_passed_on(http: aiohttp.ClientSession, refusal: Any) -> None:
    with ScriptedModel(refusal) as model, rollout_on(model) as endpoint:
        status, _ = await read(http, endpoint)
    assert status == refusal.status
    assert len(model.calls) == 1


async def test_a_server_that_answers_whole_is_streamed_from(http: aiohttp.ClientSession) -> None:
    """Some ignore `stream`; the client that asked for events gets events."""
    whole = HttpReply(200, {"choices": [{"message": {"content": "42"}, "finish_reason": "length"}]})
    with ScriptedModel(whole) as model, rollout_on(model) as endpoint:
        _, events = await read(http, endpoint)
    assert json.loads(events[0])["choices"][0]["delta"] == {"content": "42"}
    assert json.loads(events[1])["choices"][0]["finish_reason"] == "length"
    assert events[2:] == ["[DONE]"]


async def test_a_stopping_controller_ends_its_streams(http: aiohttp.ClientSession) -> None:
    gate = Gate()
    with ScriptedModel(StreamReply(["first", gate])) as model:
        with Controller(to(model)) as controller:
            endpoint = controller.open_rollout("r1")
            answer = await calling(http, endpoint)
            await answer.content.readuntil(b"\n\n")
        rest = (await answer.text()).removeprefix("data: ")
    assert error_of(rest) == "the controller has stopped"


async def test_64_streams_at_once_never_mix(http: aiohttp.ClientSession) -> None:
    with (
        ScriptedModel(lambda request, call: StreamReply([request["user"]] * 3)) as model,
        Controller(to(model)) as controller,
    ):
        endpoints = [controller.open_rollout(f"r{n}") for n in range(64)]
        calls = (read(http, one, user=one.rollout_id, **ASK_USAGE) for one in endpoints)
        answers = await asyncio.gather(*calls)
        totals = {endpoint.usage().total_tokens for endpoint in endpoints}
    words = [
        {json.loads(event)["choices"][0]["delta"]["content"] for event in events[:3]}
        for _, events in answers
    ]
    assert words == [{f"r{n}"} for n in range(64)]
    assert totals == {4}
