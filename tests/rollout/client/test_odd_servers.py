"""Servers that say strange things, and those that only know the long poll."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest

from osmosis_ai.rollout import RolloutErrorCategory, RolloutStatus
from osmosis_ai.rollout.controller.retry import RetryPolicy
from osmosis_ai.rollout.types import ExecutionOutcome
from osmosis_ai.testing import HttpReply, Signal
from osmosis_ai.testing.serving import serve
from tests.rollout.client.fake_server import fake_server, said
from tests.rollout.client.staged import client_of
from tests.rollout.controller.calling import Pauses

LEASE = {"polling_lease_token": "t", "status": "queued", "result_wait_timeout_sec": 0.1}
SUCCESS = {"status": "success", "sample": {"messages": [{"a": 1}], "reward": 0.5}}


class PollServer:
    """Takes every order, and answers the polls of it one after the other."""

    def __init__(self, *results: Any, lease: dict[str, Any] | None = None) -> None:
        self._results = [*results]
        self._lease = LEASE if lease is None else lease
        self.orders: list[dict[str, Any]] = []

    def __call__(self, route: str, body: dict[str, Any]) -> Any:
        if route == "rollout":
            self.orders.append(body)
            return HttpReply(202, self._lease)
        if route != "result":
            return said(dispositions={})
        result = self._results.pop(0) if self._results else HttpReply(404)
        if isinstance(result, dict):
            return said(rollout_id=self.orders[-1]["rollout_id"], **result)
        return result


async def polled(
    *results: Any, label: str | None = "42", server: PollServer | None = None, **given: Any
) -> ExecutionOutcome:
    """What a client makes of these answers to its polls."""
    given = {"lost": "no_result", "retry": Pauses().policy(4), "watch_sec": 3600, **given}
    with serve(fake_server(server or PollServer(*results))) as url:
        async with client_of(url, **given) as client, asyncio.timeout(20):
            return await client.submit([{"role": "user", "content": "?"}], label=label)


async def test_a_server_that_only_knows_the_long_poll_is_understood() -> None:
    """It ignores the callback URLs it was sent, and gives a lease."""
    server = PollServer(SUCCESS)
    outcome = await polled(server=server)
    assert "completion_callback_url" in server.orders[0]
    assert outcome.reward == 0.5
    assert outcome.workflow.sample is not None
    assert outcome.workflow.sample.messages == [{"a": 1}]


async def test_a_lease_without_terms_has_those_of_the_protocol() -> None:
    server = PollServer(SUCCESS, lease={"polling_lease_token": "t"})
    assert (await polled(server=server)).reward == 0.5


async def test_a_server_that_does_not_hold_the_question_is_not_hurried() -> None:
    pauses = Pauses()
    running = {"status": "running"}
    outcome = await polled(running, running, running, SUCCESS, retry=pauses.policy(0))
    assert outcome.reward == 0.5
    assert pauses.taken == [0.0, 0.05, 0.05]


@pytest.mark.parametrize("trouble", [HttpReply(503), HttpReply(429), HttpReply(500)])
async def test_a_poll_in_passing_trouble_is_asked_again(trouble: Any) -> None:
    """Without end: whether the server is there, is seen by whoever watches it."""
    pauses = Pauses()
    outcome = await polled(*[trouble] * 9, SUCCESS, retry=pauses.policy(0))
    assert outcome.reward == 0.5
    assert len(pauses.taken) == 9


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (HttpReply(404, "who?"), "is not known any more"),
        (HttpReply(403, "not yours"), "is not known any more"),
        (HttpReply(422, "odd"), "answered 422: odd"),
        (HttpReply(200, "<html>"), "no result of a rollout"),
    ],
)
async def test_a_poll_that_makes_no_sense_is_no_result(answer: Any, message: str) -> None:
    outcome = await polled(answer)
    assert outcome.reward is None
    assert message in str(outcome.workflow.no_result)


SAYS_PHASE = {"status": "failure", "phase": "grader", "err_message": "judge"}


@pytest.mark.parametrize(
    ("result", "label", "workflow", "grader"),
    [
        ({"status": "failure", "phase": "workflow", "err_message": "boom"}, "42", "boom", None),
        (SAYS_PHASE, "42", None, "judge"),
        ({"status": "failure", "err_message": "boom"}, None, "boom", None),
        ({"status": "failure", "err_message": "late", "sample": {}}, "42", None, "late"),
        ({"status": "failure"}, None, None, None),
    ],
)
async def test_which_half_failed_is_told_or_seen(
    result: Any, label: str | None, workflow: str | None, grader: str | None
) -> None:
    """Servers of others do not say the phase: what they send with it tells."""
    outcome = await polled(result, label=label)
    assert outcome.workflow.err_message == workflow
    assert outcome.workflow.succeeded is (workflow is None)
    assert outcome.grader is not None
    assert (outcome.grader.succeeded, outcome.grader.err_message) == (False, grader)
    assert outcome.reward is None


async def test_a_rollout_that_is_cancelled_elsewhere_is_no_result() -> None:
    outcome = await polled({"status": "cancelled"})
    assert outcome.workflow.status is RolloutStatus.CANCELLED
    assert outcome.workflow.no_result == "the rollout was cancelled"


async def test_a_lease_that_expired_is_no_result() -> None:
    outcome = await polled({"status": "failure", "err_category": "lease_expired"})
    assert outcome.workflow.err_category is RolloutErrorCategory.LEASE_EXPIRED
    assert outcome.workflow.no_result == "polling lease expired"


async def test_a_poll_that_is_answered_past_the_deadline_does_not_count() -> None:
    """But it ends the waiting for a rollout that was told to stop."""
    server = LateServer()
    with serve(fake_server(server)) as url:
        async with client_of(url, deadline=lambda request: 0.1) as client, asyncio.timeout(20):
            outcome = await client.submit([{"role": "user", "content": "?"}])
    assert server.cancelled.is_set
    assert outcome.workflow.err_category is RolloutErrorCategory.TIMEOUT
    assert outcome.reward is None


class LateServer:
    """Has a result as soon as it is told to cancel the rollout."""

    def __init__(self) -> None:
        self.cancelled = Signal()

    def __call__(self, route: str, body: dict[str, Any]) -> Any:
        if route == "rollout":
            self._id = body["rollout_id"]
            return HttpReply(202, LEASE)
        if route == "cancel":
            self.cancelled.set()
            return said(dispositions={self._id: "cancelled_running"})
        if route == "result":
            result = SUCCESS if self.cancelled.is_set else {"status": "running"}
            return said(rollout_id=self._id, **result)
        return said()


# Servers with callbacks


class CallbackServer:
    """Takes every order, and says of each rollout what it is told to say."""

    def __init__(self, status: Callable[[int], Any], *, active: int = 0) -> None:
        self._status = status
        self._looks = 0
        self._active = active
        self.orders = 0

    def __call__(self, route: str, body: dict[str, Any]) -> Any:
        if route == "status":
            self._looks += 1
            return self._status(self._looks)
        if route == "rollout":
            self.orders += 1
            return HttpReply(202, {})
        if route == "cancel":
            return said(dispositions={})
        return said(lifecycle={"active_rollouts": self._active})


async def answer_of(server: CallbackServer, **given: Any) -> ExecutionOutcome:
    with serve(fake_server(server)) as url:
        async with client_of(url, **given) as client:
            client._flights._answer_patience_sec = 0.1
            async with asyncio.timeout(20):
                return await client.submit([{"role": "user", "content": "?"}])


async def test_answers_that_went_to_somebody_else_are_not_waited_for() -> None:
    """The rollout is not active there, and its server says it has ended: asked twice, no more."""
    server = CallbackServer(lambda look: HttpReply(200, {"status": "success"}))
    outcome = await answer_of(server)
    assert "gave the answers of this rollout to somebody else" in str(outcome.workflow.no_result)
    assert server.orders > 2


async def test_a_server_that_forgot_a_rollout_has_no_result_of_it() -> None:
    server = CallbackServer(
        lambda look: HttpReply(404) if look < 3 else HttpReply(200, {"status": "unknown"})
    )
    outcome = await answer_of(server, lost="no_result")
    assert "does not know this rollout any more" in str(outcome.workflow.no_result)
    assert server.orders == 1


async def test_a_bug_in_the_client_is_a_value_too(caplog: pytest.LogCaptureFixture) -> None:
    """And is logged: the trainer's other rollouts go on."""
    with serve(fake_server(PollServer(SUCCESS))) as url:
        async with client_of(url) as client:
            rollout = client.submit([{"role": "user"}], item="a")
            with client._flights._controller.open_rollout(rollout.id):
                outcome = await rollout
    assert "the client failed: ValueError: rollout" in str(outcome.workflow.no_result)
    assert [record.exc_info is not None for record in caplog.records] == [True]


class Health:
    """Servers that share the orders they get, and say each its own of itself."""

    def __init__(self) -> None:
        self.orders: list[str] = []

    def server(self, name: str, **health: Any) -> Any:
        def say(route: str, body: dict[str, Any]) -> Any:
            if route == "rollout":
                self.orders.append(name)
                return HttpReply(422, "enough")
            return said(**health)

        return fake_server(say)


async def test_a_server_that_is_about_to_end_is_spared() -> None:
    """As long as another one takes rollouts."""
    health = Health()
    ending = health.server("ending", lifecycle={"accepting_rollouts": False})
    full = health.server("full", concurrency={"max_concurrent": 4, "running": 9, "queued": 1})
    with serve(ending) as one, serve(full) as other:
        async with client_of(one, other) as client:
            await client.submit([{"role": "user"}])
        async with client_of(one) as client:
            await client.submit([{"role": "user"}])
    assert health.orders == ["full", "ending"]


async def test_the_rollouts_of_others_count() -> None:
    health = Health()
    crowded = health.server("crowded", concurrency={"max_concurrent": 8, "running": 6})
    small = health.server("small", concurrency={"max_concurrent": 4})
    with serve(crowded) as one, serve(small) as other:
        async with client_of(one, other) as client:
            await client.submit([{"role": "user"}])
    assert health.orders == ["small"]


async def test_a_server_that_comes_back_as_another_is_asked_for_its_rollouts() -> None:
    """Its name is another one: what was there is looked after, although it never was away."""
    instances = iter(["a", "a"])

    def say(route: str, body: dict[str, Any]) -> Any:
        if route == "rollout":
            return HttpReply(202, {})
        if route == "status":
            return said(status="unknown")
        return said(instance_id=next(instances, "b"))

    with serve(fake_server(say)) as url:
        async with client_of(url, lost="no_result") as client, asyncio.timeout(20):
            outcome = await client.submit([{"role": "user"}])
    assert "does not know this rollout any more" in str(outcome.workflow.no_result)


async def test_no_server_will_be_there_again_where_all_refuse_the_client() -> None:
    """Nobody waits for one, however patient."""

    def refuse(route: str, body: dict[str, Any]) -> Any:
        return HttpReply(401, "who are you?") if route == "rollout" else said()

    with serve(fake_server(refuse)) as one, serve(fake_server(refuse)) as other:
        async with client_of(one, other, lost_patience_sec=3600) as client, asyncio.timeout(20):
            for _ in range(2):
                outcome = await client.submit([{"role": "user"}])
                assert str(outcome.workflow.no_result).count("who are you?") == 2


async def test_a_rollout_that_waits_for_a_server_can_be_cancelled() -> None:
    """There is nobody to tell, and nothing to wait for."""
    calls: list[str] = []

    def say(route: str, body: dict[str, Any]) -> Any:
        calls.append(route)
        return HttpReply(503) if "rollout" in calls else said()

    with serve(fake_server(say)) as url:
        async with client_of(url, retry=Pauses().policy(0)) as client, asyncio.timeout(20):
            rollout = client.submit([{"role": "user"}])
            fleet = client._flights.fleet
            while fleet.is_there:
                await asyncio.wait({fleet.servers[0].news})
            outcome = await rollout.cancel()
    assert outcome.workflow.no_result == "the rollout was cancelled"
    assert "cancel" not in calls


async def test_time_without_a_server_is_not_the_rollouts() -> None:
    """Its deadline does not run while nothing of it goes on: it is lost, and not late."""
    calls: list[str] = []

    def say(route: str, body: dict[str, Any]) -> Any:
        calls.append(route)
        if route == "rollout":
            return HttpReply(202, {})
        return HttpReply(503) if "rollout" in calls else said()

    with serve(fake_server(say)) as url:
        async with (
            client_of(url, deadline=lambda request: 0.8, lost_patience_sec=1.5) as client,
            asyncio.timeout(20),
        ):
            outcome = await client.submit([{"role": "user"}])
    assert outcome.workflow.err_category is not RolloutErrorCategory.TIMEOUT
    assert "is gone" in str(outcome.workflow.no_result)


async def test_a_policy_elsewhere_is_not_answered_for_here() -> None:
    """Whoever calls the listener of a client that serves no model is told so."""
    server = PollServer({"status": "running"}, *[{"status": "running"}] * 999)
    with serve(fake_server(server)) as url:
        async with client_of(url, retry=RetryPolicy(max_retries=1)) as client:
            rollout = client.submit([{"role": "user"}])
            flights = client._flights
            async with asyncio.timeout(20):
                while not server.orders:
                    await asyncio.wait({rollout.task}, timeout=0.01)
            [flight] = flights._flights.values()
            async with aiohttp.ClientSession() as http:
                headers = {"Authorization": f"Bearer {flight.endpoint.api_key}"}
                place = f"{flight.endpoint.chat_completions_url}/chat/completions"
                body = {"messages": [{"role": "user", "content": "?"}]}
                async with http.post(place, json=body, headers=headers) as reply:
                    assert "serves no model" in await reply.text()


async def test_a_client_without_any_slot_left_says_so() -> None:
    """All are held by rollouts that were told to stop and did not: later ones have no result."""

    def say(route: str, body: dict[str, Any]) -> Any:
        if route == "rollout":
            return HttpReply(202, {})
        if route == "cancel":
            return said(dispositions=dict.fromkeys(body["ids"], "cancelled_running"))
        return said(concurrency={"max_concurrent": 1})

    with serve(fake_server(say)) as url:
        async with (
            client_of(url, stop_patience_sec=0.05, deadline=lambda request: 0.05) as client,
            asyncio.timeout(20),
        ):
            late = await client.submit([{"role": "user"}])
            never = await client.submit([{"role": "user"}])
    assert late.workflow.err_category is RolloutErrorCategory.TIMEOUT
    assert "held by rollouts that were told to stop" in str(never.workflow.no_result)
