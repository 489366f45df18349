"""Rollouts on a server: dispatched, awaited, cancelled, and what a bad server costs."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from osmosis_ai.errors import BackendError, ConfigError
from osmosis_ai.rollout import (
    ConcurrencyConfig,
    ExecutionRequest,
    Grader,
    GraderContext,
    LocalBackend,
    RolloutErrorCategory,
    RolloutSample,
    RolloutStatus,
)
from osmosis_ai.rollout.controller.listener import Controller
from osmosis_ai.rollout.controller.model.scripted import ScriptedClient
from osmosis_ai.rollout.controller.retry import RetryPolicy
from osmosis_ai.rollout.driver.base import RolloutItem
from osmosis_ai.rollout.driver.http import HttpDriver, open_http_driver
from osmosis_ai.rollout.flight.flight import OnSample
from osmosis_ai.rollout.server import create_rollout_server
from osmosis_ai.rollout.types import AgentWorkflowConfig, ExecutionOutcome
from osmosis_ai.testing import (
    ChatWorkflow,
    EchoWorkflow,
    ExactMatchGrader,
    FailingWorkflow,
    Gate,
    HangUp,
    Held,
    HttpReply,
    LoggedCall,
    RemovingGrader,
    ScriptedModel,
)
from osmosis_ai.testing.serving import serve
from tests.rollout.controller.calling import Pauses

TAKEN = HttpReply(202, {})


def request(rollout_id: str = "r1", *, label: str | None = "42") -> ExecutionRequest:
    return ExecutionRequest(
        id=rollout_id, prompt=[{"role": "user", "content": "?"}], label=label, agent_timeout_sec=5
    )


@asynccontextmanager
async def driving(url: str, *, reply: str = "42", **given: Any) -> AsyncIterator[HttpDriver]:
    with Controller(ScriptedClient(lambda request, call: reply)) as controller:
        async with open_http_driver(url, controller=controller, **given) as driver:
            yield driver


def local_server(**wiring: Any) -> Any:
    return serve(create_rollout_server(backend=LocalBackend(**wiring), configure_logging=False))


class FakeServer:
    """A server that takes rollouts and says what the test tells it to say of them."""

    def __init__(self, *replies: Any) -> None:
        self._replies = [*replies]
        self.cancelled: list[str] = []
        self.disposition = "cancelled_running"

    def __call__(self, request: dict[str, Any], call: LoggedCall) -> Any:
        if call.path.endswith("/rollout/cancel"):
            self.cancelled += request["ids"]
            return HttpReply(200, {"dispositions": dict.fromkeys(request["ids"], self.disposition)})
        return self._replies.pop(0) if self._replies else TAKEN


async def answer(order: dict[str, Any], *, completion: Any = None, grade: Any = None) -> None:
    """Post the answers of a rollout as its server would."""
    headers = {"Authorization": f"Bearer {order['controller_api_key']}"}
    async with aiohttp.ClientSession(headers=headers) as http:
        for kind, said in (("completion", completion), ("grader", grade)):
            if said is not None:
                body = {"rollout_id": order["rollout_id"], **said}
                async with http.post(order[f"{kind}_callback_url"], json=body) as ack:
                    assert ack.status == 200


def after(seconds: float) -> Callable[[ExecutionRequest], float]:
    return lambda request: seconds


# With a server of ours


async def test_a_rollout_on_a_server_has_both_results_and_its_usage() -> None:
    shown: list[tuple[str, Any]] = []

    def on_sample(request: ExecutionRequest, sample: RolloutSample | None) -> None:
        shown.append((request.id, sample and sample.reward))

    with local_server(workflow=ChatWorkflow, grader=ExactMatchGrader) as url:
        async with driving(url, on_sample=on_sample) as driver:
            assert driver.description == f"http, {url}"
            assert driver.max_in_flight == 4
            outcome = await driver.run(request())
    assert outcome.workflow.succeeded
    assert outcome.grader is not None
    assert outcome.grader.sample is not None
    assert outcome.grader.sample.reward == 1.0
    assert outcome.workflow.sample is outcome.grader.sample
    assert outcome.usage is not None
    assert outcome.usage.calls == 1
    assert shown == [("r1", None)]


async def test_a_failed_workflow_on_a_server_is_a_value() -> None:
    with local_server(workflow=FailingWorkflow) as url:
        async with driving(url) as driver:
            outcome = await driver.run(request())
    assert outcome.workflow.err_message == "boom"
    assert outcome.workflow.err_category is RolloutErrorCategory.VALIDATION_ERROR
    assert outcome.workflow.phase == "workflow"
    assert outcome.grader is not None
    assert (outcome.grader.succeeded, outcome.grader.err_message) == (False, None)


async def test_a_removed_sample_comes_without_reward() -> None:
    with local_server(workflow=EchoWorkflow, grader=RemovingGrader) as url:
        async with driving(url) as driver:
            outcome = await driver.run(request())
    assert outcome.grader is not None
    assert outcome.grader.sample is not None
    assert (outcome.grader.sample.remove_sample, outcome.grader.sample.reward) == (True, None)


async def test_a_server_without_a_limit_is_sent_all() -> None:
    config = AgentWorkflowConfig(name="all", concurrency=ConcurrencyConfig())
    wiring: dict[str, Any] = {"workflow": EchoWorkflow, "grader": ExactMatchGrader}
    with local_server(workflow_config=config, **wiring) as url:
        async with driving(url) as driver:
            assert driver.max_in_flight is None
            outcomes = await asyncio.gather(*(driver.run(request(f"r{n}")) for n in range(64)))
    assert {outcome.result.status for outcome in outcomes} == {RolloutStatus.SUCCESS}


async def test_the_servers_own_key_is_sent() -> None:
    app = create_rollout_server(
        backend=LocalBackend(workflow=EchoWorkflow), configure_logging=False, api_key="secret"
    )
    with serve(app) as url:
        async with driving(url, api_key="secret") as driver:
            assert (await driver.run(request())).workflow.succeeded
        async with driving(url, api_key="wrong") as driver:
            with pytest.raises(BackendError, match="answered 401"):
                await driver.run(request())


async def test_past_its_deadline_a_rollout_is_cancelled_on_its_server() -> None:
    class Waits(Grader):
        async def grade(self, ctx: GraderContext) -> None:
            await asyncio.Event().wait()

    backend = LocalBackend(workflow=EchoWorkflow, grader=Waits)
    app = create_rollout_server(backend=backend, configure_logging=False)
    with serve(app) as url:
        async with driving(url, deadline=after(0.3)) as driver:
            outcome = await driver.run(request())
    assert backend.capacity().running == 0
    assert outcome.workflow.succeeded
    assert outcome.grader is not None
    assert outcome.grader.err_category is RolloutErrorCategory.TIMEOUT


# What is sent, and what is understood


async def test_a_server_is_told_all_it_needs() -> None:
    server = FakeServer()
    with ScriptedModel(server) as place:
        async with driving(place.base_url) as driver:
            running = asyncio.create_task(
                driver.run(request(), item=RolloutItem(row=7, attempt=2, seed=1))
            )
            await place.received(1)
            order = place.calls[0].request
            await answer(
                order,
                completion={"status": "success"},
                grade={"status": "success", "sample": {"messages": [{"a": 1}], "reward": 0.5}},
            )
            outcome = await running
    assert place.calls[0].path == "/v1/rollout"
    base = order.pop("chat_completions_url")
    [name] = {
        order[f"{kind}_callback_url"].partition("?to=")[2] for kind in ("completion", "grader")
    }
    keys = {order.pop("llm_api_key"), order.pop("controller_api_key")}
    assert len(keys) == 2
    assert order == {
        "rollout_id": "r1",
        "initial_messages": [{"role": "user", "content": "?"}],
        "label": "42",
        "metadata": None,
        "agent_timeout_sec": 5.0,
        "grader_timeout_sec": None,
        "completion_callback_url": f"{base}/completion?to={name}",
        "grader_callback_url": f"{base}/grader?to={name}",
        "grade": True,
        "extra_fields": {"row_index": 7, "run_index": 2},
    }
    assert outcome.grader is not None
    assert outcome.grader.sample == RolloutSample(messages=[{"a": 1}], reward=0.5)


async def outcome_of(
    *, completion: Any = None, grade: Any = None, on_sample: OnSample | None = None
) -> ExecutionOutcome:
    """What a driver makes of these answers."""
    with ScriptedModel(FakeServer()) as place:
        async with driving(place.base_url, on_sample=on_sample) as driver:
            running = asyncio.create_task(driver.run(request()))
            await place.received(1)
            await answer(place.calls[0].request, completion=completion, grade=grade)
            return await running


async def test_a_lost_completion_is_known_by_the_sample() -> None:
    outcome = await outcome_of(grade={"status": "success", "sample": {"reward": 1.0}})
    assert outcome.workflow.succeeded
    assert outcome.result.sample is not None
    assert outcome.result.sample.reward == 1.0


async def test_a_rollout_without_a_sample_is_shown_as_one() -> None:
    shown: list[Any] = []
    outcome = await outcome_of(
        completion={"status": "success"},
        grade={"status": "failure"},
        on_sample=lambda request, sample: shown.append(sample),
    )
    assert shown == [None]
    assert outcome.workflow.succeeded


async def test_a_lost_completion_without_a_sample_is_no_result() -> None:
    outcome = await outcome_of(grade={"status": "failure"})
    assert outcome.workflow.no_result == "the backend ended the rollout without an answer"


async def test_a_lost_completion_is_known_by_the_reason_for_no_result() -> None:
    """A restarted server says it with both answers, of which one may be lost."""
    outcome = await outcome_of(grade={"status": "failure", "no_result": "server_restarted"})
    assert outcome.workflow.no_result == "server_restarted"
    assert outcome.grader is not None
    assert outcome.grader.no_result == "server_restarted"


async def test_a_rollout_that_its_server_cancelled_is_no_result() -> None:
    outcome = await outcome_of(completion={"status": "cancelled"}, grade={"status": "failure"})
    assert outcome.workflow.status is RolloutStatus.CANCELLED
    assert outcome.workflow.no_result == "the rollout was cancelled"


async def test_what_a_server_says_of_a_failure_is_kept() -> None:
    failure = {
        "status": "failure",
        "err_message": "judge is down",
        "err_category": "agent_error",
        "err_summary": "NoResult: judge is down (main.py:3, in grade)",
        "phase": "grader",
        "no_result": "judge is down",
    }
    outcome = await outcome_of(completion={"status": "success"}, grade=failure)
    assert outcome.grader is not None
    assert outcome.grader.model_dump(exclude={"sample", "extra_fields"}) == failure


# Servers in trouble


async def run_fake(place: ScriptedModel, *, posts: int, retry: RetryPolicy) -> ExecutionOutcome:
    """A rollout that the server takes at the last of so many posts."""
    async with driving(place.base_url, retry=retry) as driver:
        running = asyncio.create_task(driver.run(request()))
        await place.received(posts)
        await answer(
            place.calls[posts - 1].request,
            completion={"status": "success"},
            grade={"status": "failure"},
        )
        return await running


async def test_a_full_server_is_asked_again_when_it_says() -> None:
    """For ever, and not faster than 20 times a second, nor slower than once a minute."""
    pauses = Pauses()
    busy = [HttpReply(429, headers={"Retry-After": value}) for value in ("5", "0", "9999", "odd")]
    with ScriptedModel(FakeServer(HttpReply(429), *busy)) as place:
        outcome = await run_fake(place, posts=6, retry=pauses.policy(0))
    assert outcome.workflow.succeeded
    assert pauses.taken == [1.0, 5.0, 0.05, 60.0, 1.0]


@pytest.mark.parametrize("trouble", [HttpReply(503), HttpReply(500), HangUp()])
async def test_a_server_in_passing_trouble_is_asked_again(trouble: Any) -> None:
    pauses = Pauses()
    with ScriptedModel(FakeServer(trouble, trouble)) as place:
        outcome = await run_fake(place, posts=3, retry=pauses.policy(2))
    assert outcome.workflow.succeeded
    assert pauses.taken == [0.5, 1.0]


@pytest.mark.parametrize(
    ("trouble", "message"),
    [
        (HttpReply(503, "draining"), "answered 503: draining"),
        (HangUp(), "does not answer"),
        (HttpReply(401), "answered 401"),
        (HttpReply(404), "answered 404"),
        (HttpReply(302), "answered 302"),
    ],
)
async def test_a_server_that_takes_nothing_ends_the_run(trouble: Any, message: str) -> None:
    """No further rollout can succeed: those that wait are told so, too."""
    with ScriptedModel(FakeServer(*[trouble] * 99)) as place:
        async with driving(place.base_url, retry=Pauses().policy(2)) as driver:
            for _ in range(2):
                with pytest.raises(BackendError, match=message):
                    await driver.run(request())


async def test_rollouts_in_flight_end_with_their_server() -> None:
    with ScriptedModel(FakeServer(TAKEN, HttpReply(404))) as place:
        async with driving(place.base_url) as driver:
            first = asyncio.create_task(driver.run(request("r1")))
            await place.received(1)
            with pytest.raises(BackendError, match="answered 404"):
                await driver.run(request("r2"))
            with pytest.raises(BackendError, match="answered 404"):
                await first


@pytest.mark.parametrize("status", [400, 409, 413, 422])
async def test_a_rollout_that_the_server_refuses_is_no_result_and_no_more(status: int) -> None:
    """The next one may be fine."""
    with ScriptedModel(FakeServer(HttpReply(status, "no"))) as place:
        async with driving(place.base_url) as driver:
            outcome = await driver.run(request())
    assert (
        outcome.workflow.no_result
        == f"the rollout server at {place.base_url} answered {status}: no"
    )


async def test_a_server_that_is_gone_ends_the_run(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody waits an hour for answers that cannot come."""
    with ScriptedModel(FakeServer()) as place:
        stack = driving(place.base_url)
        driver = await stack.__aenter__()
        running = asyncio.create_task(driver.run(request()))
        await place.received(1)
    await driver.watch(driver.server, every_sec=0)
    with pytest.raises(BackendError, match="is gone"):
        await running
    await stack.__aexit__(None, None, None)
    assert "does not answer" in caplog.messages[0]
    assert "(3 of 3)" in caplog.messages[2]


async def test_a_server_that_is_there_is_watched_on() -> None:
    """One answer in time makes up for those that were missing."""
    healths = iter([503, 503, 200, 503, 503, 503])

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            status = next(healths) if seen else 200
            seen.append(status)
            await send({"type": "http.response.start", "status": status, "headers": []})
            await send({"type": "http.response.body", "body": b"[]"})

    seen: list[int] = []
    with serve(app) as url:
        async with driving(url, watch_sec=3600) as driver:
            await driver.watch(driver.server, every_sec=0)
            assert seen == [200, 503, 503, 200, 503, 503, 503]
            assert driver.max_in_flight is None


async def test_without_a_server_there_is_no_driver() -> None:
    with ScriptedModel("gone") as place:
        pass
    with pytest.raises(
        BackendError, match=f"the rollout server at {place.base_url} does not answer"
    ):
        async with driving(place.base_url):
            pass


async def test_a_url_is_an_address() -> None:
    with pytest.raises(ConfigError, match="starts with http:// or https://") as caught:
        async with driving("localhost:8000"):
            pass
    assert caught.value.key == "server"


@pytest.mark.parametrize(
    ("health", "limit"),
    [
        ({"concurrency": {"max_concurrent": 3}}, 3),
        ({"concurrency": {"max_concurrent": None}}, None),
        ({"concurrency": {"max_concurrent": 0}}, None),
        ({"concurrency": "much"}, None),
        ("<html>", None),
    ],
)
async def test_the_limit_is_the_one_the_server_says(health: Any, limit: int | None) -> None:
    body = health if isinstance(health, str) else json.dumps(health)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": body.encode()})

    with serve(app) as url:
        async with driving(url) as driver:
            assert driver.max_in_flight == limit


# Cancelling


async def test_a_cancelled_run_cancels_its_rollout_and_waits_for_the_last_answer() -> None:
    server = FakeServer()
    with ScriptedModel(server) as place:
        async with driving(place.base_url) as driver:
            running = asyncio.create_task(driver.run(request()))
            await place.received(1)
            order = place.calls[0].request
            await answer(order, completion={"status": "success"})
            running.cancel()
            await place.received(2)
            assert not running.done()
            await answer(order, grade={"status": "failure"})
            with pytest.raises(asyncio.CancelledError):
                await running
    assert server.cancelled == ["r1"]


async def test_a_rollout_that_its_server_does_not_know_is_not_waited_for() -> None:
    server = FakeServer()
    server.disposition = "not_found"
    with ScriptedModel(server) as place:
        async with driving(place.base_url, deadline=after(0.05)) as driver:
            outcome = await driver.run(request())
    assert outcome.workflow.err_category is RolloutErrorCategory.TIMEOUT


async def test_a_server_that_is_gone_is_not_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    with ScriptedModel(FakeServer()) as place:
        stack = driving(place.base_url)
        driver = await stack.__aenter__()
        running = asyncio.create_task(driver.run(request()))
        await place.received(1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await stack.__aexit__(None, None, None)
    assert "rollout r1 cannot be told to stop" in caplog.text


async def test_a_run_cancelled_while_the_server_takes_it_is_cancelled_there() -> None:
    """Else it would run on, with nobody to wait for it."""
    gate = Gate()
    server = FakeServer(Held(gate, TAKEN))
    server.disposition = "not_found"
    with ScriptedModel(server) as place:
        async with driving(place.base_url) as driver:
            running = asyncio.create_task(driver.run(request()))
            await gate.reached.wait()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
    assert server.cancelled == ["r1", "r1"]


async def test_answers_after_the_deadline_do_not_count() -> None:
    """But they free the slot: the rollout has ended."""
    with ScriptedModel(FakeServer()) as place:
        async with driving(place.base_url, deadline=after(0.05)) as driver:
            running = asyncio.create_task(driver.run(request()))
            await place.received(2)
            success = {"status": "success", "sample": {"reward": 1.0}}
            await answer(place.calls[0].request, completion={"status": "success"}, grade=success)
            outcome = await running
            assert not driver._flights
    assert outcome.workflow.err_category is RolloutErrorCategory.TIMEOUT
    assert outcome.result.sample is None


async def test_a_rollout_that_does_not_stop_can_make_no_calls(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its outcome is there, its slot stays taken, and its last answer frees it."""
    caplog.set_level(logging.ERROR)
    with ScriptedModel(FakeServer()) as place:
        async with driving(place.base_url, stop_patience_sec=0.05) as driver:
            running = asyncio.create_task(driver.run(request()))
            await place.received(1)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            order = place.calls[0].request
            async with aiohttp.ClientSession() as http:
                headers = {"Authorization": f"Bearer {order['llm_api_key']}"}
                url = f"{order['chat_completions_url']}/chat/completions"
                async with http.post(url, json={}, headers=headers) as refusal:
                    assert refusal.status == 410
            [task] = driver._flights
            await answer(order, grade={"status": "failure"})
            await task
    assert "rollout r1 was told to stop and goes on" in caplog.text
