"""An OpenAI-compatible server as the model: what is sent, and what is taken."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from osmosis_ai.errors import ConfigError, ModelError
from osmosis_ai.rollout import http_connection
from osmosis_ai.rollout.controller.model import openai_compatible
from osmosis_ai.rollout.controller.model.base import ModelCall, parse_request
from osmosis_ai.rollout.controller.model.openai_compatible import (
    OpenAICompatibleClient,
    set_fields,
)
from osmosis_ai.testing import HttpReply, ScriptedModel
from tests.rollout.controller.calling import to

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner, max_size=2),
    max_leaves=4,
)
BODIES = st.dictionaries(
    st.sampled_from(["model", "messages", "temperature", 'x"model', ""]) | st.text(max_size=5),
    JSON,
    max_size=4,
)
SURROGATE = "\ud800"


@given(body=BODIES, fields=BODIES, model=st.text(), indent=st.none() | st.integers(0, 2))
def test_exactly_these_fields_are_set(
    body: dict[str, Any], fields: dict[str, Any], model: str, indent: int | None
) -> None:
    """Whatever a rollout sends, to the last digit of its numbers."""
    fields = {**fields, "model": model}
    sent = set_fields(parse_request(json.dumps(body, indent=indent).encode()), fields)
    assert json.loads(sent) == {**body, **json.loads(json.dumps(fields))}


@pytest.mark.parametrize(
    ("body", "sent"),
    [
        (b'{"model": "a", "x": 1.0}', b'{"model":"new", "x": 1.0}'),
        (b'{"x": {"y": [1]},\n "model":"a\\"b"}', b'{"x": {"y": [1]},\n "model":"new"}'),
        (b"{}", b'{"model": "new"}'),
        (b' {"x": 1e2}', b'{"model": "new","x": 1e2}'),
        (b'{"a": "say \\"model\\"", "model": "b"}', b'{"a": "say \\"model\\"", "model":"new"}'),
        (
            b'{"x": {"model": "keep"}, "m\\u006fdel": "a"}',
            b'{"model": "new","x":{"model":"keep"}}',
        ),
        (b'{"model": null, "x": 1}', b'{"model": "new","x":1}'),
        (b'{"x": {"model": "keep"}}', b'{"model": "new","x": {"model": "keep"}}'),
        (b'{"x": {"model": "keep"}, "model": "a"}', b'{"model": "new","x":{"model":"keep"}}'),
    ],
)
def test_the_rest_of_a_body_keeps_its_bytes_where_the_model_is_plain_to_see(
    body: bytes, sent: bytes
) -> None:
    assert set_fields(parse_request(body), {"model": "new"}) == sent


@pytest.mark.parametrize(
    "value", [SURROGATE, 2**80, 0.1234567890123456789, float("nan"), 10**400, -(2**63) - 1]
)
def test_a_body_that_is_encoded_again_keeps_what_fast_decoders_change(value: Any) -> None:
    body = json.dumps({"model": None, "x": value}).encode()
    assert (
        set_fields(parse_request(body), {"model": "new"})
        == json.dumps({"model": "new", "x": value}).encode()
    )


@pytest.mark.parametrize("base_url", ["", "localhost:8000/v1", "ftp://host/v1"])
def test_a_base_url_is_an_address(base_url: str) -> None:
    with pytest.raises(ConfigError, match="starts with http:// or https://") as caught:
        OpenAICompatibleClient(base_url, model="m")
    assert caught.value.key == "base_url"


@pytest.mark.parametrize(("asked", "set_to"), [(False, True), (True, False)])
async def test_whether_to_stream_is_for_the_run_to_say(asked: bool, set_to: bool) -> None:
    with ScriptedModel("42") as model:
        client = OpenAICompatibleClient(model.base_url, model="m", params={"stream": set_to})
        await client.open()
        body = json.dumps({"stream": asked, "messages": []}).encode()
        reply = await client.complete(parse_request(body), ModelCall("r1"))
        assert (reply.chunks is not None) is set_to
        if reply.chunks is not None:
            await reply.chunks.aclose()
        await client.close()


async def test_a_slash_at_the_end_of_the_base_url_does_no_harm() -> None:
    with ScriptedModel("42") as model:
        client = OpenAICompatibleClient(model.base_url + "/", model="m")
        await client.open()
        reply = await client.complete(parse_request(b"{}"), ModelCall("r1"))
        await client.close()
    assert reply.status == 200


@pytest.mark.parametrize("body", [b"{}", b'{"stream": true}'])
async def test_an_answer_without_end_is_not_taken(
    monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    monkeypatch.setattr(openai_compatible, "MAX_REPLY_BYTES", 100)
    monkeypatch.setattr(http_connection, "MAX_ANSWER_BYTES", 100)
    with ScriptedModel(HttpReply(200, "x" * 101)) as model:
        client = to(model)
        await client.open()
        with pytest.raises(ModelError, match="longer than 100 bytes"):
            await client.complete(parse_request(body), ModelCall("r1"))
        await client.close()


async def test_calls_one_after_another_share_a_connection() -> None:
    async with serving_counted() as (base_url, connections):
        client = OpenAICompatibleClient(base_url, model="m")
        await client.open()
        for _ in range(3):
            assert (await client.complete(parse_request(b"{}"), ModelCall("r1"))).status == 200
        await client.close()
    assert len(connections) == 1


@asynccontextmanager
async def serving_counted() -> AsyncIterator[tuple[str, list[Any]]]:
    """A model that answers everything alike, and who connected to it."""
    connections: list[Any] = []
    ended: list[asyncio.Task[Any] | None] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer.get_extra_info("peername"))
        ended.append(asyncio.current_task())
        while await reader.readline():
            await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(len(b'{"model": "m"}'))
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(answer, "127.0.0.1")
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", connections
        for task in ended:  # else a connection outlives its loop
            assert task is not None
            await task


@pytest.mark.parametrize("key", ["sk-1\n", "sk-1\r\nX-Other: 1"])
def test_a_key_is_one_line(key: str) -> None:
    """Or it would end the header it stands in; and it is a secret, so it is not shown."""
    with pytest.raises(ConfigError, match="holds a line end") as caught:
        OpenAICompatibleClient("http://host/v1", model="m", api_key=key)
    assert "sk-1" not in str(caught.value)


def test_no_credentials_stand_in_an_address() -> None:
    """They would be shown wherever the address is."""
    with pytest.raises(ConfigError, match="without credentials") as caught:
        OpenAICompatibleClient("http://me:secret@host/v1", model="m")
    assert caught.value.key == "base_url"
    assert "secret" not in str(caught.value)


async def test_a_large_body_is_sent_whole() -> None:
    body = json.dumps({"messages": [{"content": "x" * 2**21}]}).encode()
    with ScriptedModel("42") as model:
        client = to(model)
        await client.open()
        reply = await client.complete(parse_request(body), ModelCall("r1"))
        await client.close()
    assert reply.status == 200
    assert len(model.calls[0].request["messages"][0]["content"]) == 2**21


async def test_no_key_is_sent_where_there_is_none() -> None:
    with ScriptedModel("42") as model:
        client = to(model)
        await client.open()
        await client.complete(parse_request(b"{}"), ModelCall("r1"))
        await client.close()
    assert "authorization" not in model.calls[0].headers
