"""A Python function as the model."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from osmosis_ai.errors import ConfigError
from osmosis_ai.launch import import_path
from osmosis_ai.rollout.controller.listener import Controller
from osmosis_ai.rollout.controller.model.base import ModelCall, ModelReply, parse_request
from osmosis_ai.rollout.controller.model.scripted import (
    ScriptedClient,
    load_scripted,
    to_completion,
)
from tests.rollout.controller.calling import post, scripted_rollout

CALL = ModelCall("r1", row=3, attempt=1, turn=2, seed=99)


async def answer(function: Any, request: dict[str, Any] | None = None) -> ModelReply:
    body = json.dumps(request or {"messages": []}).encode()
    return await ScriptedClient(function).complete(parse_request(body), CALL)


async def message_of(function: Any) -> dict[str, Any]:
    reply = await answer(function)
    message: dict[str, Any] = json.loads(reply.body)["choices"][0]["message"]
    return message


async def test_a_text_is_the_assistants_message() -> None:
    assert await message_of(lambda request, call: "hi") == {"role": "assistant", "content": "hi"}


async def test_the_function_may_be_asynchronous() -> None:
    async def reply(request: dict[str, Any], call: ModelCall) -> str:
        await asyncio.sleep(0)
        return "later"

    assert (await message_of(reply))["content"] == "later"


def sent(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


async def test_a_message_is_kept_and_completed() -> None:
    calls = [
        {"function": {"name": "f", "arguments": {"x": 1}}},
        {"id": "mine", "function": {"name": "g", "arguments": "{not json"}},
        {"function": {"name": "h"}},
    ]
    message = await message_of(lambda request, call: {"tool_calls": calls, "refusal": None})
    assert message == {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "tool_calls": [
            {
                "id": "call_2_0",
                "type": "function",
                "function": {"name": "f", "arguments": '{"x":1}'},
            },
            {"id": "mine", "type": "function", "function": {"name": "g", "arguments": "{not json"}},
            {"id": "call_2_2", "type": "function", "function": {"name": "h", "arguments": "{}"}},
        ],
    }


def test_a_whole_completion_is_kept() -> None:
    whole = {"id": "mine", "choices": [{"message": {"content": "hi"}}], "usage": None}
    completion = to_completion(whole, request={"model": "m"}, call=CALL)
    assert completion == {"object": "chat.completion", "created": 0, "model": "m", **whole}


def test_a_reply_says_which_call_it_answers() -> None:
    """And nothing else that could differ between two runs."""
    completion = to_completion("hi", request={}, call=CALL)
    assert (completion["id"], completion["created"], completion["model"]) == (
        "chatcmpl-r1-2",
        0,
        "scripted",
    )


def test_tokens_are_words() -> None:
    messages = [
        {"role": "user", "content": "one  two\nthree"},
        {"role": "user", "content": [{"type": "text", "text": "four five"}, {"type": "image_url"}]},
        {"role": "assistant", "tool_calls": [{"function": {"arguments": '{"a": 1}'}}]},
        {"role": "assistant", "content": 7, "tool_calls": "none"},
        {"role": "assistant", "content": [None], "tool_calls": [None, {"function": None}]},
        "odd",
    ]
    completion = to_completion("six seven", request={"messages": messages}, call=CALL)
    assert completion["usage"] == {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}


@pytest.mark.parametrize("messages", [None, "text", 3])
def test_a_request_without_messages_counts_none(messages: Any) -> None:
    completion = to_completion("six seven", request={"messages": messages}, call=CALL)
    assert completion["usage"]["prompt_tokens"] == 0


def test_choices_without_sense_count_none() -> None:
    completion = to_completion({"choices": "none"}, request={}, call=CALL)
    assert completion["usage"]["completion_tokens"] == 0


async def test_a_reply_that_json_does_not_know_is_made_to_fit() -> None:
    assert (await message_of(lambda request, call: {"content": "\ud800"}))["content"] == "\ufffd"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("no idea"), "ValueError: no idea"),
        (KeyError(), "KeyError"),
        (StopIteration(), "StopIteration"),
        (SystemExit(3), "SystemExit: 3"),
        (asyncio.CancelledError("mine"), "CancelledError: mine"),
    ],
)
async def test_what_the_function_raises_is_the_models_failure(
    error: BaseException, message: str
) -> None:
    def reply(request: dict[str, Any], call: ModelCall) -> str:
        raise error

    reply_ = await answer(reply)
    assert reply_.status == 500
    said = json.loads(reply_.body)["error"]
    assert said["type"] == type(error).__name__
    place = r" \(test_scripted\.py:\d+, in reply\)"
    assert re.fullmatch(f"the scripted model failed: {message}{place}", said["message"])


@pytest.mark.parametrize("returned", [None, 42, ["hi"], b"hi"])
async def test_a_reply_of_another_type_is_an_error_that_says_so(returned: Any) -> None:
    reply = await answer(lambda request, call: returned)
    assert reply.status == 500
    assert f"returned {type(returned).__name__}; return a str" in reply.body.decode()


async def test_a_cancelled_call_stays_cancelled() -> None:
    async def reply(request: dict[str, Any], call: ModelCall) -> str:
        await asyncio.Event().wait()
        return "never"

    task = asyncio.ensure_future(answer(reply))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_the_function_is_told_which_call_it_is(http: aiohttp.ClientSession) -> None:
    """Row, attempt and seed are the item's; the turn counts the calls of the rollout."""
    seen: list[ModelCall] = []

    def reply(request: dict[str, Any], call: ModelCall) -> str:
        seen.append(call)
        return "hi"

    with scripted_rollout(reply, row=3, attempt=1, seed=99) as endpoint:
        await post(http, endpoint)
        await post(http, endpoint)
    assert seen == [ModelCall("r1", row=3, attempt=1, turn=turn, seed=99) for turn in (0, 1)]


async def test_its_failures_are_counted_as_the_models(http: aiohttp.ClientSession) -> None:
    def reply(request: dict[str, Any], call: ModelCall) -> str:
        raise ConnectionError("the policy is down")

    with scripted_rollout(reply) as endpoint:
        answered = await post(http, endpoint)
        usage = endpoint.usage()
    assert answered.status == 500
    assert "the scripted model failed: ConnectionError: the policy is down" in str(answered.error)
    assert usage.failed_calls == 1
    assert usage.last_error is not None
    assert "the policy is down" in usage.last_error


async def test_rollouts_of_one_controller_do_not_share_turns(http: aiohttp.ClientSession) -> None:
    model = ScriptedClient(lambda request, call: f"{call.rollout_id} {call.turn}")
    with Controller(model) as controller:
        one, other = controller.open_rollout("one"), controller.open_rollout("other")
        texts = [(await post(http, endpoint)).text for endpoint in (one, one, other)]
    assert texts == ["one 0", "one 1", "other 0"]


def write_policy(folder: Path, text: str) -> str:
    name = f"policy_{folder.name.replace('-', '_')}"
    (folder / f"{name}.py").write_text(text)
    return name


async def test_a_path_names_a_function_of_a_module(tmp_path: Path) -> None:
    name = write_policy(tmp_path, "def reply(request, call):\n    return 'from a file'\n")
    with import_path([tmp_path]):
        client = load_scripted(f"scripted:{name}:reply")
    reply = await client.complete(parse_request(b"{}"), CALL)
    assert b"from a file" in reply.body
    del sys.modules[name]


@pytest.mark.parametrize("path", ["scripted:", "scripted:module", "scripted::reply", "scripted:m:"])
def test_a_path_has_a_module_and_a_name(path: str) -> None:
    with pytest.raises(ConfigError, match="must look like 'scripted:module:attr'") as caught:
        load_scripted(path)
    assert caught.value.key == "model_path"


def test_a_misspelt_module_or_function_is_known(tmp_path: Path) -> None:
    name = write_policy(tmp_path, "def reply(request, call): ...\n")
    with import_path([tmp_path]):
        with pytest.raises(ConfigError, match=f"; did you mean '{name}'\\?"):
            load_scripted(f"scripted:{name[:-1]}:reply")
        with pytest.raises(ConfigError, match="; did you mean 'reply'\\?"):
            load_scripted(f"scripted:{name}:rply")
    del sys.modules[name]


def test_a_module_that_lacks_another_is_not_misspelt(tmp_path: Path) -> None:
    name = write_policy(tmp_path, "import nowhere_to_be_found\n")
    with import_path([tmp_path]), pytest.raises(ConfigError) as caught:
        load_scripted(f"scripted:{name}:reply")
    assert str(caught.value).endswith("No module named 'nowhere_to_be_found'")


@pytest.mark.parametrize("text", ["", "reply = 'text'\n"])
def test_the_name_must_be_callable(tmp_path: Path, text: str) -> None:
    name = write_policy(tmp_path, text)
    with import_path([tmp_path]), pytest.raises(ConfigError, match="has no callable 'reply'"):
        load_scripted(f"scripted:{name}:reply")
    del sys.modules[name]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("{}['answer']", "KeyError: 'answer'"),
    ],
)
def test_a_module_that_fails_keeps_its_traceback(tmp_path: Path, text: str, reason: str) -> None:
    name = write_policy(tmp_path, text)
    with import_path([tmp_path]), pytest.raises(ConfigError) as caught:
        load_scripted(f"scripted:{name}:reply")
    assert f"importing {name} failed: {reason}" in str(caught.value)
    assert caught.value.__cause__ is not None
    assert caught.value.__cause__.__traceback__ is not None
