"""Ended rollouts are remembered for a while, and not more of them than there is room for."""

from __future__ import annotations

import gc
from dataclasses import dataclass

from osmosis_ai.rollout.http import HttpClient
from osmosis_ai.rollout.protocol import RolloutInitRequest
from osmosis_ai.rollout.server.delivery import Delivery
from osmosis_ai.rollout.server.entry import Accepted
from osmosis_ai.rollout.server.history import History
from osmosis_ai.rollout.server.job import Job
from osmosis_ai.rollout.server.mailbox import mailbox_for
from osmosis_ai.rollout.server.recipient import Callbacks
from osmosis_ai.rollout.types import ExecutionResult, RolloutStatus


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def a_job(rollout_id: str, digest: str = "") -> Job:
    body = RolloutInitRequest(
        initial_messages=[],
        chat_completions_url="http://policy",
        completion_callback_url="http://controller",
    )
    return Job(
        body.to_execution_request(rollout_id),
        body,
        digest,
        Callbacks(
            mailbox_for(Accepted(rollout_id, digest, body.completion_callback_url)),
            Delivery(HttpClient()),
        ),
        completion=ExecutionResult(status=RolloutStatus.FAILURE, err_message="boom"),
    )


def test_how_a_rollout_ended_is_remembered() -> None:
    history = History()
    history.add(a_job("a"))
    ended = history.get("a")
    assert ended is not None
    assert (ended.outcome.status, ended.outcome.err_message) == (RolloutStatus.FAILURE, "boom")
    assert history.get("b") is None


def test_what_arrived_is_not_kept() -> None:
    history = History()
    arrived, stranded = a_job("a"), a_job("b")
    assert isinstance(stranded.recipient, Callbacks)
    mailbox = stranded.recipient.mailbox
    mailbox.completion.give(b"{}")
    for job in (arrived, stranded):
        history.add(job)
    assert [getattr(history.get(name), "mailbox", None) for name in "ab"] == [
        None,
        mailbox,
    ]


def test_the_garbage_collector_has_nothing_to_look_at() -> None:
    """With thousands of rollouts remembered, looking at them took a tenth of a server's time."""
    history = History()
    gc.collect()
    before = len(gc.get_objects())
    for index in range(1000):
        history.add(a_job(str(index)))
    gc.collect()
    assert len(gc.get_objects()) - before < 100


def test_after_a_while_nobody_knows() -> None:
    clock = Clock()
    history = History(retention_sec=900, clock=clock)
    history.add(a_job("a"))
    clock.now = 900
    assert history.get("a") is not None
    clock.now = 901
    assert history.get("a") is None


def test_the_oldest_makes_room() -> None:
    history = History(max_rollouts=2)
    for name in "abc":
        history.add(a_job(name))
    assert [history.get(name) is not None for name in "abc"] == [False, True, True]


def test_what_is_too_old_takes_no_room() -> None:
    clock = Clock()
    history = History(retention_sec=10, clock=clock)
    for name in "abc":
        history.add(a_job(name))
    clock.now = 11
    history.add(a_job("d"))
    assert len(history) == 1


def test_a_rollout_that_ran_again_is_as_new_as_its_last_end() -> None:
    clock = Clock()
    history = History(retention_sec=10, clock=clock)
    history.add(a_job("a", "first"))
    clock.now = 6
    history.add(a_job("b"))
    clock.now = 11
    history.add(a_job("a", "second"))
    clock.now = 17
    history.add(a_job("c"))
    ended = history.get("a")
    assert ended is not None
    assert ended.digest == "second"
    assert history.get("b") is None
