"""Agents that speak only Anthropic's Messages API, through its own client."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("anthropic", reason="runs in the environment of OpenAI Agents")

import anthropic
from anthropic import AsyncAnthropic

from osmosis_ai.testing import Gate, Held, HttpReply, StreamReply, call_tool
from tests.frameworks.dialect import PLACES, Place, rollout_at, with_ids

# LiteLLM warns of itself.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")

TOOLS: list[Any] = [
    {
        "name": "multiply",
        "description": "Multiply two numbers.",
        "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}}},
    }
]
QUESTION: list[Any] = [{"role": "user", "content": "6 times 7"}]
CRASH = {"error": {"message": "the engine crashed"}}
IMAGE = {"type": "base64", "media_type": "image/png", "data": "aGk="}


def client_of(place: Place, **options: Any) -> AsyncAnthropic:
    given = {"base_url": place.base_url, "api_key": place.api_key, "max_retries": 0}
    return AsyncAnthropic(**{**given, **options})


async def ask(client: AsyncAnthropic, messages: Any, *, stream: bool) -> Any:
    given: Any = {
        "model": "claude-sonnet-4-5",
        "system": "You multiply.",
        "messages": messages,
        "tools": TOOLS,
        "max_tokens": 64,
        "extra_body": {"temperature": 0.5},
    }
    if not stream:
        return await client.messages.create(**given)
    async with client.messages.stream(**given) as events:
        return await events.get_final_message()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("where", PLACES)
async def test_a_tool_loop_is_a_conversation_of_chat_completions(where: str, stream: bool) -> None:
    replies = [{**call_tool("multiply", a=6, b=7), "content": "Let me."}, "42"]
    with rollout_at(where, replies) as place:
        async with client_of(place) as client:
            first = await ask(client, QUESTION, stream=stream)
            assert first.stop_reason == "tool_use"
            text, wanted = first.content
            assert text.text == "Let me."
            assert (wanted.name, wanted.input) == ("multiply", {"a": 6, "b": 7})
            result = {"type": "tool_result", "tool_use_id": wanted.id, "content": "42"}
            said = [block.model_dump(exclude_unset=True) for block in first.content]
            again = [
                *QUESTION,
                {"role": "assistant", "content": said},
                {"role": "user", "content": [result]},
            ]
            second = await ask(client, again, stream=stream)
        assert (second.content[0].text, second.stop_reason) == ("42", "end_turn")
        sent = place.model.calls[1].request
        assert [message["role"] for message in sent["messages"]] == [
            "system", "user", "assistant", "tool",
        ]  # fmt: skip
        assert sent["messages"][0]["content"] == "You multiply."
        assert sent["messages"][3] == {
            "role": "tool", "tool_call_id": wanted.id, "content": "42",
        }  # fmt: skip
        assert sent["tools"][0]["function"]["name"] == "multiply"
        assert (sent["max_tokens"], sent["temperature"]) == (64, 0.5)
        usage = place.endpoint.usage()
    assert (usage.calls, usage.failed_calls) == (2, 0)
    assert usage.prompt_tokens == first.usage.input_tokens + second.usage.input_tokens > 0


@pytest.mark.parametrize("stream", [False, True])
async def test_the_recorders_sample_is_chat_shaped(stream: bool) -> None:
    """It does not show in which dialect the agent spoke."""
    replies = [call_tool("multiply", a=6, b=7), "42"]
    with rollout_at("recorder", replies) as place:
        async with client_of(place) as client:
            first = await ask(client, QUESTION, stream=stream)
            [wanted] = first.content
            result = {"type": "tool_result", "tool_use_id": wanted.id, "content": "42"}
            said = [block.model_dump(exclude_unset=True) for block in first.content]
            await ask(
                client,
                [
                    *QUESTION,
                    {"role": "assistant", "content": said},
                    {"role": "user", "content": [result]},
                ],
                stream=stream,
            )
        sample = await place.sample()
    assert [m["role"] for m in sample.messages] == [
        "system", "user", "assistant", "tool", "assistant",
    ]  # fmt: skip
    assert sample.messages[-1]["content"] == "42"
    said_of = sample.extra_fields["endpoint"]
    assert (len(said_of["turns"]), said_of["side_calls"]) == (2, 0)
    # Anthropic's blocks hold arguments as an object: their spelling is the translator's.
    assert said_of["verdict"] == "re-tokenised"
    assert said_of["reason"] == "the arguments of a tool call were written anew"


async def test_the_tokens_of_the_endpoint_are_kept() -> None:
    replies = [with_ids("42", prompt=[1, 2], sampled=[3])]
    with rollout_at("recorder", replies) as place:
        async with client_of(place) as client:
            await ask(client, QUESTION, stream=False)
        sample = await place.sample()
    [turn] = sample.extra_fields["endpoint"]["turns"]
    assert (turn["prompt_token_ids"], turn["token_ids"]) == ([1, 2], [3])
    assert sample.extra_fields["endpoint"]["verdict"] == "clean"


@pytest.mark.parametrize("where", PLACES)
async def test_a_stream_passes_as_it_comes(where: str) -> None:
    gate = Gate()
    with rollout_at(where, StreamReply(["4", gate, "2"])) as place:
        async with client_of(place) as client:
            texts: list[str] = []
            async with client.messages.stream(model="m", max_tokens=9, messages=QUESTION) as stream:
                async for text in stream.text_stream:
                    texts.append(text)
                    gate.opened.set()
        assert gate.reached.is_set
    assert texts == ["4", "2"]


@pytest.mark.parametrize("stream", [False, True])
async def test_parallel_tools_reasoning_and_images_pass(stream: bool) -> None:
    wanted = call_tool("multiply", a=1)["tool_calls"] + call_tool("multiply", a=2)["tool_calls"]
    reply = {"content": None, "reasoning_content": "twice", "tool_calls": wanted}
    looks = [{"type": "text", "text": "look"}, {"type": "image", "source": IMAGE}]
    with rollout_at("bridge", reply) as place:
        async with client_of(place) as client:
            answer = await ask(client, [{"role": "user", "content": looks}], stream=stream)
        [_, asked] = place.model.calls[0].request["messages"]
    assert asked["content"][1]["image_url"]["url"] == "data:image/png;base64,aGk="
    assert [block.type for block in answer.content] == ["thinking", "tool_use", "tool_use"]
    assert answer.content[0].thinking == "twice"
    assert [block.input for block in answer.content[1:]] == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize(
    ("reply", "error", "kind"),
    [
        (HttpReply(400, CRASH), anthropic.BadRequestError, "invalid_request_error"),
        (HttpReply(429, CRASH), anthropic.RateLimitError, "rate_limit_error"),
        (HttpReply(503, CRASH), anthropic.InternalServerError, "api_error"),
    ],
)
async def test_an_error_keeps_its_status_and_words(
    where: str, reply: HttpReply, error: type[anthropic.APIStatusError], kind: str, stream: bool
) -> None:
    with rollout_at(where, reply) as place:
        async with client_of(place) as client:
            with pytest.raises(error) as caught:
                await ask(client, QUESTION, stream=stream)
        usage = place.endpoint.usage()
    assert caught.value.status_code == reply.status
    assert caught.value.body == {
        "type": "error", "error": {"type": kind, "message": "the engine crashed"},
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
            with pytest.raises(anthropic.APIStatusError, match=words):
                await read_to_the_end(client, gate)
        assert place.endpoint.usage().failed_calls == 1


async def read_to_the_end(client: AsyncAnthropic, gate: Gate) -> None:
    async with client.messages.stream(model="m", max_tokens=9, messages=QUESTION) as stream:
        async for _ in stream.text_stream:
            gate.opened.set()


@pytest.mark.parametrize("where", PLACES)
async def test_what_a_rollout_cannot_do_is_said(where: str) -> None:
    servers = [{"type": "url", "url": "https://example.com", "name": "x"}]
    with rollout_at(where, "42") as place:
        async with client_of(place) as client:
            with pytest.raises(anthropic.BadRequestError, match="connect to MCP servers in the"):
                await client.messages.create(
                    model="m", max_tokens=9, messages=QUESTION, extra_body={"mcp_servers": servers}
                )
        assert place.endpoint.usage().calls == 0


async def test_another_key_opens_nothing() -> None:
    with rollout_at("bridge", "42") as place:
        async with client_of(place, api_key="stolen") as client:
            with pytest.raises(anthropic.AuthenticationError, match="that rollout's API key"):
                await ask(client, QUESTION, stream=False)


async def test_the_key_may_be_a_bearer() -> None:
    with rollout_at("bridge", "42") as place:
        async with client_of(place, api_key=None, auth_token=place.api_key) as client:
            assert (await ask(client, QUESTION, stream=False)).content[0].text == "42"


async def test_a_rollout_that_has_ended_says_so() -> None:
    with rollout_at("bridge", "42") as place:
        place.endpoint.close()
        async with client_of(place) as client:
            with pytest.raises(anthropic.NotFoundError, match="or it has ended"):
                await ask(client, QUESTION, stream=False)


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


async def test_a_deadline_ends_a_stream_with_its_reason() -> None:
    """The rollout has no time left, whichever dialect its agent speaks."""
    gate = Gate()
    with rollout_at("bridge", StreamReply(["4", gate])) as place:
        async with client_of(place) as client:
            work = asyncio.create_task(ask(client, QUESTION, stream=True))
            await gate.reached.wait()
            place.endpoint.stop_calls("its time is up")
            with pytest.raises(anthropic.APIStatusError, match="its time is up"):
                await work
        gate.opened.set()
