"""Calls in another dialect: answered at the bridge and at a recorder, whoever translates them.

The translations themselves are LiteLLM's, and tested where it is installed: tests/frameworks/.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import aiohttp
import pytest

from osmosis_ai.rollout import RolloutContext
from osmosis_ai.rollout.controller.endpoint import RolloutEndpoint
from osmosis_ai.rollout.controller.listener import Controller
from osmosis_ai.rollout.controller.model.scripted import ScriptedClient
from osmosis_ai.rollout.dialect import MESSAGES, RESPONSES, Dialect, DialectError, to_event
from osmosis_ai.rollout.integrations.recorder import EndpointSampleSource
from osmosis_ai.rollout.translator import Translator, load_interpreter
from osmosis_ai.testing import Signal

PLACES = ["bridge", "recorder"]
HELLO = {"input": "hello"}


class Parrot:
    """Asks the endpoint what it was asked, and says what that says, or what the test wants."""

    def __init__(self, says: Any = None) -> None:
        self.says = says
        self.is_closed = False

    async def translate(
        self, dialect: Dialect, body: dict[str, Any], *, base_url: str, api_key: str
    ) -> dict[str, Any] | AsyncGenerator[bytes, None]:
        if isinstance(self.says, Exception):
            raise self.says
        if self.says is not None:
            stream: AsyncGenerator[bytes, None] = self.says()
            return stream
        request = {"messages": [{"role": "user", "content": body["input"]}]}
        async with (
            aiohttp.ClientSession(headers={"Authorization": f"Bearer {api_key}"}) as http,
            http.post(f"{base_url}/chat/completions", json=request) as answer,
        ):
            return {"said": (await answer.json())["choices"][0]["message"]["content"]}

    async def close(self) -> None:
        self.is_closed = True


@dataclass(frozen=True)
class Place:
    url: str
    headers: dict[str, str]
    endpoint: RolloutEndpoint
    context: RolloutContext


@contextmanager
def rollout_at(where: str, translator: Translator) -> Iterator[Place]:
    model = ScriptedClient(lambda request, call: request["messages"][0]["content"].upper())
    with (
        Controller(model, translator=translator) as controller,
        controller.open_rollout("r1") as endpoint,
    ):
        url, key = endpoint.chat_completions_url, endpoint.api_key
        context = RolloutContext(url, api_key=key, rollout_id="r1")
        if where == "recorder":
            context.set_sample_source(EndpointSampleSource(context, translator=translator))
        headers = {"Authorization": f"Bearer {key}"}
        yield Place(context.chat_completions_url, headers, endpoint, context)


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.mark.parametrize("where", PLACES)
async def test_a_call_in_another_dialect_is_a_model_call(
    http: aiohttp.ClientSession, where: str
) -> None:
    parrot = Parrot()
    with rollout_at(where, Translator(lambda: parrot)) as place:
        async with http.post(f"{place.url}/responses", json=HELLO, headers=place.headers) as answer:
            assert (answer.status, answer.content_type) == (200, "application/json")
            assert await answer.json() == {"said": "HELLO"}
        assert place.endpoint.usage().calls == 1
        if where == "recorder":
            sample = await place.context.get_sample()
            assert sample is not None
            assert [m["content"] for m in sample.messages] == ["hello", "HELLO"]
    assert parrot.is_closed


@pytest.mark.parametrize("where", PLACES)
async def test_a_stream_ends_with_the_error_that_broke_it(
    http: aiohttp.ClientSession, where: str
) -> None:
    async def breaks() -> AsyncGenerator[bytes, None]:
        yield to_event("first", {"n": 1})
        raise DialectError(503, "it fell over")

    with rollout_at(where, Translator(lambda: Parrot(breaks))) as place:
        async with http.post(f"{place.url}/responses", json=HELLO, headers=place.headers) as answer:
            assert (answer.status, answer.content_type) == (200, "text/event-stream")
            first, last, rest = (await answer.text()).split("\n\n")
    assert first == 'event: first\ndata: {"n":1}'
    assert rest == ""
    kind, data = last.split("\n")
    assert kind == "event: error"
    said = json.loads(data.removeprefix("data: "))
    assert said["type"] == "error"
    assert (said["error"]["message"], said["error"]["code"]) == ("it fell over", 503)


@pytest.mark.parametrize("where", PLACES)
async def test_a_client_that_hangs_up_ends_the_stream(
    http: aiohttp.ClientSession, where: str
) -> None:
    ended, going = Signal(), Signal()

    async def endless() -> AsyncGenerator[bytes, None]:
        try:
            while True:
                yield to_event("more", {"text": "x" * 1000})
                going.set()
                await asyncio.sleep(0)
        finally:
            ended.set()

    with rollout_at(where, Translator(lambda: Parrot(endless))) as place:
        answer = await http.post(f"{place.url}/responses", json=HELLO, headers=place.headers)
        await going.wait()
        answer.close()
        await ended.wait()


BODIES: list[tuple[str, bytes, str]] = [
    ("responses", b"{", "the body is not JSON"),
    ("responses", b"[]", "the body must be a JSON object, not list"),
    ("responses", b"{}", "input is missing"),
    ("responses", b'{"input": "x", "previous_response_id": "r"}', "send the whole of it as input"),
    ("messages", b'{"messages": []}', "max_tokens is missing"),
    ("v1/messages", b'{"messages": []}', "max_tokens is missing"),
]


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize(("route", "body", "words"), BODIES)
async def test_what_is_no_call_of_the_dialect_is_refused_in_its_shape(
    http: aiohttp.ClientSession, where: str, route: str, body: bytes, words: str
) -> None:
    with rollout_at(where, Translator(Parrot)) as place:
        async with http.post(f"{place.url}/{route}", data=body, headers=place.headers) as answer:
            assert answer.status == 400
            said = await answer.json()
        assert place.endpoint.usage().calls == 0
    assert words in said["error"]["message"]
    assert ("type" in said) is route.endswith("messages")


async def test_a_lone_surrogate_costs_nothing(http: aiohttp.ClientSession) -> None:
    with rollout_at("bridge", Translator(Parrot)) as place:
        body = b'{"input": "a\\ud800"}'
        async with http.post(f"{place.url}/responses", data=body, headers=place.headers) as answer:
            assert (await answer.json())["said"].startswith("A")


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (429, "rate_limit_error"),
        (502, "api_error"),
    ],
)
def test_errors_have_the_shape_of_their_api(status: int, kind: str) -> None:
    body = json.loads(MESSAGES.error_body("no", status=status))
    assert body == {"type": "error", "error": {"type": kind, "message": "no"}}
    body = json.loads(RESPONSES.error_body("no", status=status))
    assert body["error"]["code"] == status


async def test_the_key_may_come_as_anthropics_clients_send_it(http: aiohttp.ClientSession) -> None:
    async def nothing() -> AsyncGenerator[bytes, None]:
        yield b""

    call = {"messages": [], "max_tokens": 9}
    with rollout_at("bridge", Translator(lambda: Parrot(nothing))) as place:
        key = place.endpoint.api_key
        for sent, status in [({"x-api-key": key}, 200), ({"x-api-key": "stolen"}, 401), ({}, 401)]:
            async with http.post(f"{place.url}/v1/messages", json=call, headers=sent) as answer:
                assert answer.status == status
                said = await answer.read()
    assert json.loads(said)["error"]["type"] == "authentication_error"


@pytest.mark.parametrize("where", PLACES)
async def test_a_rollout_that_has_ended_says_so_in_the_dialect(
    http: aiohttp.ClientSession, where: str
) -> None:
    with rollout_at(where, Translator(Parrot)) as place:
        if where == "bridge":
            place.endpoint.close()
        else:
            place.context.sample_source = None
        async with http.post(f"{place.url}/messages", json={}, headers=place.headers) as answer:
            assert answer.status == 404
            assert (await answer.json())["error"]["type"] == "not_found_error"


@pytest.mark.parametrize("where", PLACES)
async def test_a_translator_that_fails_is_not_the_agents_failure(
    http: aiohttp.ClientSession, where: str
) -> None:
    """The workflow that raises for it has no result, rather than a bad one."""
    parrot = Parrot(DialectError(500, "it is broken", fault=True))
    with rollout_at(where, Translator(lambda: parrot)) as place:
        async with http.post(f"{place.url}/responses", json=HELLO, headers=place.headers) as answer:
            assert answer.status == 500
        if where == "bridge":
            assert place.endpoint.usage().last_error == "it is broken"


async def test_calls_that_come_together_share_what_was_loaded() -> None:
    parrots: list[Parrot] = []
    together = threading.Barrier(2)

    def load() -> Parrot:
        together.wait(10)
        parrots.append(Parrot(DialectError(400, "no")))
        return parrots[-1]

    translator = Translator(load)
    given: Any = {"base_url": "", "api_key": ""}
    first, second, third = [
        translator.answer(RESPONSES, b'{"input": "x"}', **given) for _ in range(3)
    ]
    answers = [*await asyncio.gather(first, second), await third]
    await translator.close()
    assert [answer.status for answer in answers] == [400, 400, 400]
    assert len(parrots) == 2
    assert [parrot.is_closed for parrot in parrots].count(True) == 1


async def test_a_translator_that_was_never_used_closes() -> None:
    await Translator(load_interpreter).close()


@pytest.mark.skipif(find_spec("litellm") is not None, reason="LiteLLM is installed here")
async def test_without_litellm_the_answer_names_the_extra(http: aiohttp.ClientSession) -> None:
    """Whoever runs the evaluation reads it in the record, and knows what to install."""
    with rollout_at("bridge", Translator()) as place:
        async with http.post(f"{place.url}/responses", json=HELLO, headers=place.headers) as answer:
            assert answer.status == 501
            assert answer.headers["x-should-retry"] == "false"
            said = (await answer.json())["error"]["message"]
        usage = place.endpoint.usage()
    assert said == (
        "an agent that does not speak chat completions needs the package litellm, which is not "
        'installed: pip install "osmosis-ai[litellm]"'
    )
    assert (usage.failed_calls, usage.last_error) == (1, said)
