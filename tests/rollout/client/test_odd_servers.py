"""Servers that say strange things, and those that only know the long poll."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from osmosis_ai.rollout import RolloutErrorCategory, RolloutStatus
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
