"""An OpenAI-compatible server as the model: what is sent, and what is taken."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from osmosis_ai.errors import ConfigError, ModelError
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


async def test_a_slash_at_the_end_of_the_base_url_does_no_harm() -> None:
    with ScriptedModel("42") as model:
        client = OpenAICompatibleClient(model.base_url + "/", model="m")
        await client.open()
        reply = await client.complete(parse_request(b"{}"), ModelCall("r1"))
        await client.close()
    assert reply.status == 200


async def test_an_answer_without_end_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai_compatible, "MAX_REPLY_BYTES", 100)
    with ScriptedModel(HttpReply(200, "x" * 101)) as model:
        client = to(model)
        await client.open()
        with pytest.raises(ModelError, match="longer than 100 bytes"):
            await client.complete(parse_request(b"{}"), ModelCall("r1"))
        await client.close()


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
