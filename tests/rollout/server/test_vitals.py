"""`/health` and the log say whether a server gets on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from osmosis_ai.rollout.backend.base import ExecutionBackend, ResultCallback
from osmosis_ai.rollout.http import HttpClient
from osmosis_ai.rollout.server.delivery import Delivery
from osmosis_ai.rollout.server.vitals import Vitals
from osmosis_ai.rollout.types import ExecutionRequest
from tests.rollout.programs import limited
from tests.rollout.receiver import reply
from tests.rollout.server.serving import Site, answer, local, serving

AGES = ("oldest_queued_sec", "oldest_running_sec", "oldest_undelivered_sec")


async def ages(site: Site) -> list[float | None]:
    health = (await site.send("GET", "/health")).body
    return [health[name] for name in AGES]


async def test_an_idle_server_has_nothing_old() -> None:
    async with serving() as site:
        health = (await site.send("GET", "/health")).body
    assert [health[name] for name in AGES] == [None, None, None]
    assert health["loop_lag_sec"] >= 0


async def test_health_says_how_long_rollouts_have_waited_and_run() -> None:
    """Counts alone look the same whether a server works or hangs."""
    gate = asyncio.Event()

    async def wait(ctx: Any) -> Any:
        await gate.wait()
        return await answer(ctx)

    async with serving(local(run=wait, workflow_config=limited(1))) as site:
        await site.start("a")
        await site.start("b")
        first = await ages(site)
        second = await ages(site)
        for early, late in zip(first[:2], second[:2], strict=True):
            assert early is not None
            assert late is not None
            assert 0 <= early < late
        assert first[2] is None
        gate.set()
        await site.answers("a")
        await site.answers("b")


async def test_health_says_how_long_an_answer_has_been_on_its_way() -> None:
    pausing, gate = asyncio.Event(), asyncio.Event()

    async def pause(seconds: float) -> None:
        pausing.set()
        await gate.wait()

    async with serving(local(), reply(500), client=HttpClient(sleep=pause)) as site:
        await site.start()
        await pausing.wait()
        undelivered = (await ages(site))[2]
        assert undelivered is not None
        assert undelivered >= 0
        gate.set()
        await site.answers()
        while (await ages(site))[2] is not None:
            pass


async def test_who_holds_the_event_loop_shows() -> None:
    """Code that blocks stops every rollout, and none of them can say so."""
    vitals = Vitals(local(), Delivery(HttpClient()), look_every_sec=0.01)
    clock = asyncio.get_running_loop().time
    async with vitals.watching():
        await asyncio.sleep(0)  # it has begun to wait
        held_until = clock() + 0.06
        while clock() < held_until:
            pass
        for _ in range(5):  # the turns until it has woken and looked
            await asyncio.sleep(0)
        lag = vitals.report()["loop_lag_sec"]
    assert lag is not None
    assert lag >= 0.04


async def test_a_rollout_that_makes_no_progress_is_named_once_for_each_step(
    caplog: pytest.LogCaptureFixture,
) -> None:
    started, gate, graded = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def wait(ctx: Any) -> Any:
        started.set()
        await gate.wait()
        return await answer(ctx)

    async def grade(ctx: Any) -> None:
        started.set()
        await graded.wait()
        ctx.set_reward(1)

    async def take(result: Any) -> None:
        pass

    backend = local(run=wait, grade=grade)
    vitals = Vitals(backend, Delivery(HttpClient()), stall_sec=0.0)
    patient = Vitals(backend, Delivery(HttpClient()), stall_sec=3600.0)
    unasked = Vitals(backend, Delivery(HttpClient()))
    request = ExecutionRequest(id="r", prompt=[{"role": "user", "content": "x"}], label="4")
    async with asyncio.TaskGroup() as group:
        group.create_task(backend.execute(request, take, take))
        await started.wait()
        for one in (patient, unasked, vitals, vitals):
            one.look(late_sec=0.0)
        assert [record.message for record in caplog.records] == [
            "rollout r: running for 0 s and no further"
        ]
        started.clear()
        gate.set()
        await started.wait()
        vitals.look(late_sec=0.0)
        assert caplog.records[1].message == "rollout r: grading for 0 s and no further"
        graded.set()
    vitals.look(late_sec=0.0)
    assert len(caplog.records) == 2


async def test_a_backend_that_does_not_tell_has_no_ages() -> None:
    class Silent(ExecutionBackend):
        async def execute(
            self,
            request: ExecutionRequest,
            on_workflow_complete: ResultCallback,
            on_grader_complete: ResultCallback | None = None,
        ) -> None:
            """It is never asked to."""

    async with serving(Silent()) as site:
        assert await ages(site) == [None, None, None]
