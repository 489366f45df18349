"""Agents that speak only OpenAI's Responses API, through its own client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

pytest.importorskip("openai", reason="runs in the environments of the frameworks")
pytest.importorskip("litellm", reason="runs in the environments of the frameworks")

import openai
from openai import AsyncOpenAI

from osmosis_ai.testing import Gate, Held, HttpReply, StreamReply, call_tool
from tests.frameworks.dialect import PLACES, Place, rollout_at, with_ids
from tests.isolated import run_python

# LiteLLM warns of itself.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")

TOOLS: list[Any] = [
    {
        "type": "function",
        "name": "multiply",
        "description": "Multiply two numbers.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
        "strict": False,
    }
]
QUESTION: Any = [{"role": "user", "content": "6 times 7"}]
CRASH = {"error": {"message": "the engine crashed"}}


def client_of(place: Place, **options: Any) -> AsyncOpenAI:
    given = {"base_url": place.base_url, "api_key": place.api_key, "max_retries": 0}
    return AsyncOpenAI(**{**given, **options})


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("where", PLACES)
async def test_a_tool_loop_is_a_conversation_of_chat_completions(where: str, stream: bool) -> None:
    replies = [{**call_tool("multiply", a=6, b=7), "content": "Let me."}, "42"]
    with rollout_at(where, replies) as place:
        async with client_of(place) as client:
            first = await ask(client, QUESTION, stream=stream)
            [wanted] = [item for item in first.output if item.type == "function_call"]
            assert (wanted.name, json.loads(wanted.arguments)) == ("multiply", {"a": 6, "b": 7})
            output = {"type": "function_call_output", "call_id": wanted.call_id, "output": "42"}
            again = [*QUESTION, *(item.model_dump(exclude_unset=True) for item in first.output)]
            second = await ask(client, [*again, output], stream=stream)
        assert second.output_text == "42"
        assert second.status == "completed"
        assert stream or second.model == "real-name"
        sent = place.model.calls[1].request
        assert [message["role"] for message in sent["messages"]] == [
            "system", "user", "assistant", "tool",
        ]  # fmt: skip
        assert sent["messages"][0]["content"] == "You multiply."
        assert sent["messages"][3] == {
            "role": "tool", "tool_call_id": wanted.call_id, "content": "42",
        }  # fmt: skip
        assert sent["tools"][0]["function"]["name"] == "multiply"
        assert (sent["max_tokens"], sent["temperature"]) == (64, 0.5)
        usage = place.endpoint.usage()
    assert second.usage is not None
    assert second.usage.input_tokens > 0
    assert (usage.calls, usage.failed_calls) == (2, 0)
    assert usage.prompt_tokens == first.usage.input_tokens + second.usage.input_tokens


async def ask(client: AsyncOpenAI, messages: Any, *, stream: bool) -> Any:
    given: Any = {
        "model": "gpt-5.5",
        "instructions": "You multiply.",
        "input": messages,
        "tools": TOOLS,
        "max_output_tokens": 64,
        "temperature": 0.5,
    }
    if not stream:
        return await client.responses.create(**given)
    async with client.responses.stream(**given) as events:
        return await events.get_final_response()


@pytest.mark.parametrize("stream", [False, True])
async def test_the_recorders_sample_is_chat_shaped(stream: bool) -> None:
    """It does not show in which dialect the agent spoke."""
    with rollout_at("recorder", ["41", "42"]) as place:
        async with client_of(place) as client:
            first = await ask(client, QUESTION, stream=stream)
            said = {"role": "assistant", "content": first.output_text}
            again = {"role": "user", "content": "Sure?"}
            await ask(client, [*QUESTION, said, again], stream=stream)
        sample = await place.sample()
    assert [(m["role"], m["content"]) for m in sample.messages] == [
        ("system", "You multiply."),
        ("user", "6 times 7"),
        ("assistant", "41"),
        ("user", "Sure?"),
        ("assistant", "42"),
    ]
    assert sample.extra_fields["endpoint"]["verdict"] == "clean"


async def test_the_tokens_of_the_endpoint_are_kept() -> None:
    replies = [with_ids("42", prompt=[1, 2], sampled=[3])]
    with rollout_at("recorder", replies) as place:
        async with client_of(place) as client:
            await ask(client, QUESTION, stream=False)
        sample = await place.sample()
    [turn] = sample.extra_fields["endpoint"]["turns"]
    assert (turn["prompt_token_ids"], turn["token_ids"]) == ([1, 2], [3])
    assert turn["logprobs"]["content"][0]["logprob"] == -0.5


@pytest.mark.parametrize("where", PLACES)
async def test_a_stream_passes_as_it_comes(where: str) -> None:
    gate = Gate()
    with rollout_at(where, StreamReply(["4", gate, "2"])) as place:
        async with client_of(place) as client:
            events = await client.responses.create(model="m", input="hello", stream=True)
            texts: list[str] = []
            async for event in events:
                if event.type == "response.output_text.delta":
                    texts.append(event.delta)
                    gate.opened.set()
        assert gate.reached.is_set
    assert texts == ["4", "2"]


@pytest.mark.parametrize("where", PLACES)
async def test_reasoning_comes_back_to_the_model(where: str) -> None:
    """As an item of its own in the one API, as a field beside the text in the other."""
    reply = {"content": "42", "reasoning_content": "six sevens"}
    with rollout_at(where, [reply, "yes"]) as place:
        async with client_of(place) as client:
            first = await ask(client, QUESTION, stream=False)
            items = [item.model_dump(exclude_unset=True) for item in first.output]
            again = [*QUESTION, *items, {"role": "user", "content": "Sure?"}]
            await ask(client, again, stream=False)
        said = place.model.calls[1].request["messages"][2]
    assert first.output_text == "42"
    assert (said["role"], said["content"]) == ("assistant", [{"type": "text", "text": "42"}])
    assert said["reasoning_content"] == "six sevens"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (HttpReply(400, CRASH), openai.BadRequestError),
        (HttpReply(429, CRASH), openai.RateLimitError),
        (HttpReply(503, CRASH), openai.InternalServerError),
    ],
)
async def test_an_error_keeps_its_status_and_words(
    where: str, reply: HttpReply, error: type[openai.APIStatusError], stream: bool
) -> None:
    with rollout_at(where, reply) as place:
        async with client_of(place) as client:
            with pytest.raises(error) as caught:
                await client.responses.create(model="m", input="hello", stream=stream)
        usage = place.endpoint.usage()
    assert caught.value.status_code == reply.status
    assert caught.value.body == {
        "message": "the engine crashed", "type": "osmosis", "code": reply.status, "param": None,
    }  # fmt: skip
    assert usage.calls == 1
    assert usage.failed_calls == (0 if reply.status == 400 else 1)


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize(
    ("ending", "words"),
    [
        ({"parts": [CRASH]}, "the engine crashed"),
        ({"end": "short"}, "ended before its answer was finished"),
        ({"end": "cut"}, "gave no answer"),
    ],
)
async def test_an_answer_that_breaks_off_is_an_error(
    where: str, ending: dict[str, Any], words: str
) -> None:
    gate = Gate()
    given = {"parts": [], **ending}
    reply = StreamReply(["4", gate, *given.pop("parts")], **given)
    with rollout_at(where, reply) as place:
        async with client_of(place) as client:
            with pytest.raises(openai.APIError, match=words):
                await read_to_the_end(client, gate)
        assert place.endpoint.usage().failed_calls == 1


async def read_to_the_end(client: AsyncOpenAI, gate: Gate) -> None:
    async for _ in await client.responses.create(model="m", input="hello", stream=True):
        gate.opened.set()


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"previous_response_id": "resp_1"}, "send the whole of it as input"),
        ({"background": True}, "wait for the answer, or stream it"),
        ({"input": openai.omit}, "input is missing"),
    ],
)
async def test_what_a_rollout_cannot_do_is_said(
    where: str, given: dict[str, Any], words: str
) -> None:
    with rollout_at(where, "42") as place:
        async with client_of(place) as client:
            with pytest.raises(openai.BadRequestError, match=words):
                await client.responses.create(**{"model": "m", "input": "hello", **given})
        assert place.endpoint.usage().calls == 0


async def test_another_key_opens_nothing() -> None:
    with rollout_at("bridge", "42") as place:
        async with client_of(place, api_key="stolen") as client:
            with pytest.raises(openai.AuthenticationError, match="that rollout's API key"):
                await client.responses.create(model="m", input="hello")


async def test_a_rollout_that_has_ended_says_so() -> None:
    with rollout_at("bridge", "42") as place:
        place.endpoint.close()
        async with client_of(place) as client:
            with pytest.raises(openai.NotFoundError, match="or it has ended"):
                await client.responses.create(model="m", input="hello")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_hangs_up_ends_the_models_call(stream: bool) -> None:
    """Nobody would read what it still costs."""
    gate = Gate()
    reply: Any = StreamReply(["4", gate]) if stream else Held(gate, "42")
    with rollout_at("bridge", reply) as place:
        async with client_of(place) as client:
            work = asyncio.create_task(ask(client, QUESTION, stream=stream))
            await gate.reached.wait()
            work.cancel()
            await asyncio.wait([work])
            await place.model.calls[0].hung_up.wait()
            gate.opened.set()


async def test_what_openai_does_not_know_reaches_the_endpoint() -> None:
    with rollout_at("bridge", "42") as place:
        async with client_of(place) as client:
            await client.responses.create(
                model="m",
                input="hello",
                reasoning={"effort": "high"},
                extra_body={"top_k": 5, "api_base": "http://127.0.0.1:1", "mock_response": "no"},
            )
        sent = place.model.calls[0].request
    assert (sent["top_k"], sent["reasoning_effort"]) == (5, "high")


async def test_calls_of_many_rollouts_stay_apart() -> None:
    def named(request: dict[str, Any], call: Any) -> str:
        return f"hi {request['messages'][-1]['content']}"

    with rollout_at("recorder", named) as place:
        async with client_of(place) as client:
            work = [client.responses.create(model="m", input=str(n)) for n in range(50)]
            said = [answer.output_text for answer in await asyncio.gather(*work)]
    assert said == [f"hi {n}" for n in range(50)]


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.mark.parametrize("where", PLACES)
async def test_a_text_that_no_encoder_takes_is_answered(
    where: str, http: aiohttp.ClientSession
) -> None:
    with rollout_at(where, "42") as place:
        url, key = f"{place.base_url}/responses", {"Authorization": f"Bearer {place.api_key}"}
        async with http.post(url, data=b'{"input": "a\\ud800b"}', headers=key) as answer:
            assert answer.status == 200, await answer.text()
        assert place.model.calls[0].request["messages"][0]["content"].startswith("a")


def test_nothing_heavy_is_imported_before_the_first_call() -> None:
    """Chat completions are answered at once, and in as little memory, as without the dialects."""
    names = "osmosis_ai.rollout.controller.listener, osmosis_ai.rollout.integrations.recorder"
    asked = f"import sys, {names}; print({{'litellm', 'openai'}} & {{*sys.modules}})"
    assert run_python("-c", asked) == "set()\n"


@pytest.mark.parametrize("where", PLACES)
async def test_what_the_translator_never_met_is_an_error_too(
    where: str, http: aiohttp.ClientSession
) -> None:
    with rollout_at(where, "42") as place:
        url, key = f"{place.base_url}/messages", {"Authorization": f"Bearer {place.api_key}"}
        async with http.post(url, json={"messages": [5], "max_tokens": 9}, headers=key) as answer:
            said = await answer.json()
            assert (answer.status, said["type"]) == (500, "error")
    assert said["error"]["message"].startswith("LiteLLM could not translate this call: ")
