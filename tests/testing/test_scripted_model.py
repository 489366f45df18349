"""The model of the test kit: it says what it was told, and shows what it was asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from osmosis_ai.testing import (
    Gate,
    HangUp,
    Held,
    HttpReply,
    LoggedCall,
    ScriptedModel,
    StreamReply,
    call_tool,
)

QUESTION = {"model": "m", "messages": [{"role": "user", "content": "one two"}]}


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def ask(
    http: aiohttp.ClientSession, model: ScriptedModel, /, **fields: Any
) -> tuple[int, Any]:
    url = f"{model.base_url}/chat/completions"
    async with http.post(url, json={**QUESTION, **fields}) as answer:
        return answer.status, await answer.json(content_type=None)


async def stream(http: aiohttp.ClientSession, model: ScriptedModel, /, **fields: Any) -> list[Any]:
    url = f"{model.base_url}/chat/completions"
    async with http.post(url, json={**QUESTION, "stream": True, **fields}) as answer:
        assert answer.content_type == "text/event-stream"
        lines = (await answer.text()).split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


async def test_replies_of_a_list_are_used_up_call_by_call(http: aiohttp.ClientSession) -> None:
    with ScriptedModel(["first", {"content": "second"}]) as model:
        answers = [await ask(http, model) for _ in range(3)]
    texts = [body["choices"][0]["message"]["content"] for status, body in answers[:2]]
    assert texts == ["first", "second"]
    assert answers[2] == (
        500,
        {
            "error": {
                "message": "LookupError: the script has 2 replies, and call 3 came",
                "type": "scripted",
                "code": 500,
            }
        },
    )


async def test_one_reply_answers_every_call(http: aiohttp.ClientSession) -> None:
    with ScriptedModel("always") as model:
        answers = [await ask(http, model) for _ in range(3)]
    assert {body["choices"][0]["message"]["content"] for _, body in answers} == {"always"}


async def test_a_function_says_the_reply(http: aiohttp.ClientSession) -> None:
    async def reply(request: dict[str, Any], call: LoggedCall) -> str:
        return f"{call.number} {request['messages'][0]['content']}"

    with ScriptedModel(reply) as model:
        await ask(http, model)
        _, body = await ask(http, model)
    assert body["choices"][0]["message"]["content"] == "1 one two"


async def test_the_log_shows_each_call_as_it_came(http: aiohttp.ClientSession) -> None:
    with ScriptedModel("hi") as model:
        await http.post(
            f"{model.base_url}/chat/completions", data=b'{"a": 1.50}', headers={"X-Test": "yes"}
        )
    [call] = model.calls
    assert (call.number, call.body, call.request) == (0, b'{"a": 1.50}', {"a": 1.5})
    assert call.headers["x-test"] == "yes"
    assert not call.hung_up.is_set


async def test_a_whole_answer_looks_like_a_chat_completion(http: aiohttp.ClientSession) -> None:
    with ScriptedModel("three words here") as model:
        status, body = await ask(http, model)
    assert status == 200
    assert body == {
        "id": "chatcmpl-scripted-0",
        "object": "chat.completion",
        "created": 0,
        "model": "m",
        "usage": {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5},
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "three words here"},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
    }


async def test_a_tool_call_needs_only_a_name_and_arguments(http: aiohttp.ClientSession) -> None:
    with ScriptedModel(call_tool("multiply", val1=2, val2=3)) as model:
        _, body = await ask(http, model)
    [choice] = body["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    assert choice["message"]["tool_calls"] == [
        {
            "id": "call_0_0",
            "type": "function",
            "function": {"name": "multiply", "arguments": '{"val1":2,"val2":3}'},
        }
    ]


async def test_a_client_that_asks_for_a_stream_gets_one(http: aiohttp.ClientSession) -> None:
    with ScriptedModel("hello") as model:
        events = await stream(http, model, stream_options={"include_usage": True})
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": "hello"}
    assert events[1]["choices"][0]["finish_reason"] == "stop"
    assert events[2]["usage"] == {"prompt_tokens": 2, "completion_tokens": 1, "total_tokens": 3}


async def test_the_parts_of_a_stream_are_sent_as_they_are_given(
    http: aiohttp.ClientSession,
) -> None:
    parts = ["hel", b'data: {"raw": true}\n\n', {"choices": [{"delta": {"content": "lo"}}]}]
    with ScriptedModel(StreamReply(parts)) as model:
        events = await stream(http, model, stream_options={"include_usage": True})
    assert [event.get("raw") for event in events] == [None, True, None, None, None]
    assert events[0]["choices"][0]["delta"] == {"content": "hel"}
    assert events[2]["choices"] == [{"delta": {"content": "lo"}}]
    assert events[3]["choices"][0]["finish_reason"] == "stop"
    assert events[4]["usage"]["completion_tokens"] == 1


async def test_usage_comes_only_where_it_was_asked_for(http: aiohttp.ClientSession) -> None:
    """As the real ones do: a client that forgets to ask is to notice it in its tests."""
    with ScriptedModel(["hello", StreamReply(["hello"])]) as model:
        for _ in range(2):
            assert not any("usage" in event for event in await stream(http, model))


async def test_a_stream_waits_at_its_gate(http: aiohttp.ClientSession) -> None:
    gate = Gate()
    with ScriptedModel(StreamReply(["first", gate, "second"])) as model:
        url = f"{model.base_url}/chat/completions"
        async with http.post(url, json={**QUESTION, "stream": True}) as answer:
            early = await answer.content.readuntil(b"\n\n")
            await gate.reached.wait()
            gate.opened.set()
            late = await answer.content.read()
    assert b"first" in early
    assert b"second" not in early
    assert b"second" in late


async def test_a_short_stream_ends_without_its_end(http: aiohttp.ClientSession) -> None:
    with ScriptedModel(StreamReply(["hello"], end="short")) as model:
        async with http.post(f"{model.base_url}/chat/completions", json=QUESTION) as answer:
            body = await answer.read()
    assert b"hello" in body
    assert b"[DONE]" not in body


async def test_a_stream_can_be_cut(http: aiohttp.ClientSession) -> None:
    with ScriptedModel(StreamReply(["hello"], end="cut")) as model:
        async with http.post(f"{model.base_url}/chat/completions", json=QUESTION) as answer:
            with pytest.raises(aiohttp.ClientPayloadError):
                await answer.read()


async def test_a_held_call_is_answered_when_its_gate_opens(http: aiohttp.ClientSession) -> None:
    gate = Gate()
    with ScriptedModel(Held(gate, "late")) as model:
        call = asyncio.create_task(ask(http, model))
        await gate.reached.wait()
        assert not call.done()
        gate.opened.set()
        _, body = await call
    assert body["choices"][0]["message"]["content"] == "late"


async def test_a_client_that_hangs_up_is_noticed(http: aiohttp.ClientSession) -> None:
    gate = Gate()
    with ScriptedModel(Held(gate, "never")) as model:
        call = asyncio.create_task(ask(http, model))
        await gate.reached.wait()
        call.cancel()
        await model.calls[0].hung_up.wait()
    assert model.calls[0].hung_up.is_set


async def test_any_http_answer_can_be_given(http: aiohttp.ClientSession) -> None:
    busy = HttpReply(429, {"error": "busy"}, headers={"Retry-After": "3"})
    with ScriptedModel([busy, HttpReply(503, "<html>"), HttpReply(299, b"\xff")]) as model:
        url = f"{model.base_url}/chat/completions"
        answers = [await http.post(url, json=QUESTION) for _ in range(3)]
        bodies = [await answer.read() for answer in answers]
    assert [answer.status for answer in answers] == [429, 503, 299]
    assert bodies == [b'{"error":"busy"}', b"<html>", b"\xff"]
    assert answers[0].headers["Retry-After"] == "3"
    assert [a.content_type for a in answers[:2]] == ["application/json", "text/plain"]


@pytest.mark.parametrize(
    "after", [b"", b"nonsense", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n"]
)
async def test_a_connection_can_be_closed_instead(
    http: aiohttp.ClientSession, after: bytes
) -> None:
    with ScriptedModel(HangUp(after)) as model, pytest.raises(aiohttp.ClientError):
        await ask(http, model)
    assert len(model.calls) == 1


async def test_a_key_is_wanted_where_one_is_set(http: aiohttp.ClientSession) -> None:
    with ScriptedModel("hi", api_key="secret") as model:
        url = f"{model.base_url}/chat/completions"
        refused = await http.post(url, json=QUESTION)
        taken = await http.post(url, json=QUESTION, headers={"Authorization": "Bearer secret"})
    assert (refused.status, taken.status) == (401, 200)
    assert len(model.calls) == 1


async def test_what_is_no_json_object_is_refused(http: aiohttp.ClientSession) -> None:
    with ScriptedModel("hi") as model:
        answer = await http.post(f"{model.base_url}/chat/completions", data=b"[1]")
        message = (await answer.json())["error"]["message"]
    assert (answer.status, message) == (400, "the body must be a JSON object, not list")
    assert model.calls == []


async def test_it_lists_its_model(http: aiohttp.ClientSession) -> None:
    with ScriptedModel("hi") as model:
        answer = await http.get(f"{model.base_url}/models")
        assert [one["id"] for one in (await answer.json())["data"]] == ["scripted"]


async def test_calls_can_be_waited_for(http: aiohttp.ClientSession) -> None:
    gate = Gate()
    with ScriptedModel(Held(gate, "hi")) as model:
        calls = [asyncio.create_task(ask(http, model)) for _ in range(3)]
        await model.received(3)
        with pytest.raises(TimeoutError, match="3 of 4 calls"):
            await model.received(4, timeout_sec=0)
        gate.opened.set()
        gate.opened.set()
        await asyncio.gather(*calls)


def test_a_signal_can_be_waited_for_without_a_loop() -> None:
    gate = Gate()
    with pytest.raises(TimeoutError):
        gate.reached.block(timeout_sec=0)
    gate.reached.set()
    gate.reached.block()


async def test_a_signal_that_does_not_come_fails_the_test_that_waits() -> None:
    with pytest.raises(TimeoutError):
        await Gate().reached.wait(timeout_sec=0)
