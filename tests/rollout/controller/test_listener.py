"""The controller's listener: routes, rollouts that open and close, deadlines, its thread."""

from __future__ import annotations

import asyncio
import socket
import threading
from urllib.parse import urlsplit

import aiohttp
import pytest

from osmosis_ai.errors import ConfigError
from osmosis_ai.rollout.controller.listener import Controller
from osmosis_ai.rollout.controller.model.base import (
    ModelCall,
    ModelClient,
    ModelReply,
    ModelRequest,
)
from osmosis_ai.rollout.controller.model.scripted import ScriptedClient
from osmosis_ai.testing import Gate, Held, ScriptedModel, Signal
from tests.rollout.controller.calling import QUESTION, post, scripted_rollout, to


def always_42() -> ScriptedClient:
    return ScriptedClient(lambda request, call: "42")


async def test_a_rollout_that_was_closed_is_gone(http: aiohttp.ClientSession) -> None:
    with Controller(always_42()) as controller:
        with controller.open_rollout("r1") as endpoint:
            assert (await post(http, endpoint)).status == 200
        answer = await post(http, endpoint)
        endpoint.close()
    assert answer.status == 404
    assert "no such rollout, or it has ended" in answer.error
    assert endpoint.usage().calls == 1


async def test_an_id_may_be_opened_again_after_it_was_closed(http: aiohttp.ClientSession) -> None:
    """With another key; closing the first one again leaves the second alone."""
    with Controller(always_42()) as controller:
        first = controller.open_rollout("r1")
        with pytest.raises(ValueError, match="rollout 'r1' is open already"):
            controller.open_rollout("r1")
        first.close()
        second = controller.open_rollout("r1")
        first.close()
        assert (await post(http, first)).status == 401
        assert (await post(http, second)).status == 200


@pytest.mark.parametrize("rollout_id", ["a b", "ä", "a%2Fb", "50%", "?x#y", "...", "\ud800", "a+b"])
async def test_any_id_has_a_url(http: aiohttp.ClientSession, rollout_id: str) -> None:
    with (
        Controller(always_42()) as controller,
        controller.open_rollout(rollout_id) as endpoint,
    ):
        assert (await post(http, endpoint)).text == "42"
        assert endpoint.rollout_id == rollout_id


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "", 404),
        ("GET", "/v1/rollouts", 404),
        ("POST", "/v1/rollouts/r1", 404),
        ("POST", "/v1/rollouts/r1/", 404),
        ("POST", "/v1/rollouts/r1/embeddings", 404),
        ("POST", "/v1/rollouts/r2/chat/completions", 404),
        ("POST", "/x/v1/rollouts/r1/chat/completions", 404),
        ("GET", "/v1/rollouts/r1/chat/completions", 405),
        ("POST", "/v1/rollouts/r1/models", 405),
        ("POST", "/v1/rollouts/r1/completion", 404),
    ],
)
async def test_there_is_nothing_else(
    http: aiohttp.ClientSession, method: str, path: str, status: int
) -> None:
    with Controller(always_42()) as controller, controller.open_rollout("r1") as endpoint:
        headers = {"Authorization": f"Bearer {endpoint.api_key}"}
        url = f"{controller.base_url}{path}"
        async with http.request(method, url, headers=headers, json=QUESTION) as answer:
            assert answer.status == status
            assert (await answer.json())["error"]["code"] == status


async def test_the_deadline_rings_while_the_callers_loop_is_blocked() -> None:
    """A late return is then known to be one."""
    rang = threading.Event()
    with Controller(always_42()) as controller:
        endpoint = controller.open_rollout("r1", deadline_sec=0.01, on_deadline=rang.set)
        assert rang.wait(10)
        assert endpoint.is_expired
        assert endpoint.remaining_sec < 0.01


async def test_without_a_deadline_there_is_all_the_time() -> None:
    with scripted_rollout(lambda request, call: "42") as endpoint:
        assert endpoint.remaining_sec == float("inf")
        assert not endpoint.is_expired


async def test_a_passed_deadline_is_known_before_the_clock_rings() -> None:
    """The clock has a thread; the question whether it is too late must not wait for it."""
    with Controller(always_42()) as controller:
        assert controller.open_rollout("r1", deadline_sec=-1).is_expired


async def test_after_the_deadline_there_are_no_calls(http: aiohttp.ClientSession) -> None:
    """A workflow that ignores its cancellation must not go on spending."""
    gate, rang = Gate(), Signal()
    with ScriptedModel(Held(gate, "late")) as model, Controller(to(model)) as controller:
        endpoint = controller.open_rollout("r1")
        calling = asyncio.create_task(post(http, endpoint))
        await gate.reached.wait()
        endpoint.set_deadline(0, rang.set)
        open_call = await calling
        await rang.wait()
        next_call = await post(http, endpoint)
        await model.calls[0].hung_up.wait()
    assert (open_call.status, open_call.error) == (410, "the deadline of this rollout has passed")
    assert (next_call.status, next_call.error) == (410, "the deadline of this rollout has passed")
    assert (endpoint.usage().calls, len(model.calls)) == (1, 1)


async def test_a_rollout_closed_in_time_does_not_ring() -> None:
    rung: list[str] = []
    last = Signal()
    with Controller(always_42()) as controller:
        early = controller.open_rollout(
            "early", deadline_sec=0.01, on_deadline=lambda: rung.append("early")
        )
        early.close()
        controller.open_rollout("late", deadline_sec=0.02, on_deadline=last.set)
        await last.wait()
    assert rung == []


async def test_a_client_that_hangs_up_in_the_middle_of_its_request_does_no_harm(
    http: aiohttp.ClientSession,
) -> None:
    with Controller(always_42()) as controller, controller.open_rollout("r1") as endpoint:
        where = urlsplit(endpoint.chat_completions_url)
        with socket.create_connection((where.hostname, where.port)) as client:
            head = (
                f"POST {where.path}/chat/completions HTTP/1.1\r\nHost: x\r\n"
                f"Authorization: Bearer {endpoint.api_key}\r\nContent-Length: 99\r\n\r\n"
            )
            client.sendall(head.encode() + b"{")
        assert (await post(http, endpoint)).text == "42"
        assert endpoint.usage().calls == 1


async def test_a_model_that_cannot_open_is_the_callers_error() -> None:
    class Closed(ModelClient):
        async def open(self) -> None:
            raise OSError("no way in")

        async def complete(self, request: ModelRequest, call: ModelCall) -> ModelReply:
            raise NotImplementedError

    with pytest.raises(OSError, match="no way in"), Controller(Closed()):
        pass


async def test_the_thread_ends_with_the_block(http: aiohttp.ClientSession) -> None:
    before = threading.active_count()
    with Controller(always_42()) as controller, controller.open_rollout("r1") as endpoint:
        await post(http, endpoint)
        assert threading.active_count() == before + 1
    assert threading.active_count() == before


async def test_controllers_do_not_know_each_other(http: aiohttp.ClientSession) -> None:
    with Controller(always_42()) as one, Controller(always_42()) as other:
        mine, yours = one.open_rollout("r1"), other.open_rollout("r1")
        assert mine.chat_completions_url != yours.chat_completions_url
        assert await asyncio.gather(*(post(http, endpoint) for endpoint in (mine, yours)))


def test_rollouts_are_told_what_is_advertised() -> None:
    """A server elsewhere reaches this machine by another name than it has for itself."""
    advertised = "http://gpu-box:9000"
    with (
        Controller(always_42(), host="0.0.0.0", advertise_url=advertised) as controller,
        controller.open_rollout("r1") as endpoint,
    ):
        assert endpoint.chat_completions_url == f"{advertised}/v1/rollouts/r1"
        grader_url = endpoint.expect_callbacks().grader_url
        assert grader_url.startswith(f"{advertised}/v1/rollouts/r1/grader?to=")


async def test_it_listens_where_it_is_told_to(http: aiohttp.ClientSession) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with Controller(always_42(), host="localhost", port=port) as controller:
        assert controller.base_url == f"http://localhost:{port}"
        with controller.open_rollout("r1") as endpoint:
            assert (await post(http, endpoint)).text == "42"
    with Controller(always_42(), host="::1") as controller:
        assert controller.base_url.startswith("http://[::1]:")
        with controller.open_rollout("r1") as endpoint:
            assert (await post(http, endpoint)).text == "42"


def test_an_address_that_is_taken_or_not_ours_is_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(ConfigError, match=f"127.0.0.1:{port} cannot be listened on: Address"),
            Controller(always_42(), port=port),
        ):
            pass
    with (
        pytest.raises(ConfigError, match="cannot be listened on: "),
        Controller(always_42(), host="no-such-machine.invalid", port=1),
    ):
        pass
