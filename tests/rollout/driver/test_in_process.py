"""Rollouts on a backend in this process: endpoint, deadline, cancellation, outcome."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from bdb import BdbQuit
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.errors import BackendError
from osmosis_ai.rollout import (
    AgentWorkflow,
    AgentWorkflowContext,
    ExecutionBackend,
    ExecutionRequest,
    Grader,
    GraderContext,
    LocalBackend,
    MessageDict,
    RolloutErrorCategory,
    RolloutSample,
    RolloutStatus,
    get_rollout_context,
)
from osmosis_ai.rollout.backend.base import ResultCallback
from osmosis_ai.rollout.controller.listener import Controller
from osmosis_ai.rollout.controller.model.scripted import ScriptedClient
from osmosis_ai.rollout.driver.base import RolloutItem
from osmosis_ai.rollout.driver.in_process import InProcessDriver
from osmosis_ai.rollout.flight.flight import NO_ITEM, Flight
from osmosis_ai.rollout.types import ExecutionOutcome
from osmosis_ai.testing import ChatWorkflow, EchoWorkflow, ExactMatchGrader, Signal, ask_model
from tests.rollout.driver.backends import ClaimingBackend, Play, PlayingBackend, succeeded


def request(rollout_id: str = "r1", *, label: str | None = "42") -> ExecutionRequest:
    return ExecutionRequest(id=rollout_id, prompt=[{"role": "user", "content": "?"}], label=label)


@contextmanager
def driving(
    backend: ExecutionBackend, *, reply: Callable[..., Any] | str = "42", **given: Any
) -> Iterator[InProcessDriver]:
    function = reply if callable(reply) else lambda request, call: reply
    with Controller(ScriptedClient(function)) as controller:
        yield InProcessDriver(backend, controller=controller, **given)


def after(seconds: float) -> Callable[[ExecutionRequest], float]:
    return lambda request: seconds


class SynchronousClient(AgentWorkflow):
    """Calls its model with a client that blocks the event loop."""

    async def run(self, ctx: AgentWorkflowContext) -> list[MessageDict]:
        return [*ctx.prompt, ask_synchronously(ctx.prompt)]


class BlocksUntilItsDeadline(AgentWorkflow):
    """Keeps the loop busy until its endpoint says that the time is up, and returns then."""

    async def run(self, ctx: AgentWorkflowContext) -> list[MessageDict]:
        ask_until_refused(ctx.prompt)
        return [*ctx.prompt, {"role": "assistant", "content": "42"}]


class GraderBlocksUntilItsDeadline(Grader):
    async def grade(self, ctx: GraderContext) -> None:
        ask_until_refused([])
        ctx.set_reward(1.0)


class NeverGraded(Grader):
    async def grade(self, ctx: GraderContext) -> None:
        raise AssertionError("graded after the deadline")


class Waits(AgentWorkflow):
    """Says that it runs, and waits for its cancellation."""

    running: Signal
    ended: Signal

    async def run(self, ctx: AgentWorkflowContext) -> None:
        type(self).running.set()
        try:
            await asyncio.Event().wait()
        finally:
            type(self).ended.set()


def waiting_workflow() -> type[Waits]:
    """A class of its own for each test, with its signals."""
    return type("Waiting", (Waits,), {"running": Signal(), "ended": Signal()})


class Stubborn(Waits):
    """Goes on when it is told to stop, until the test lets it."""

    let_go: Signal

    async def run(self, ctx: AgentWorkflowContext) -> None:
        type(self).running.set()
        while not type(self).let_go.is_set:
            try:
                await type(self).let_go.wait(timeout_sec=None)
            except asyncio.CancelledError:
                type(self).ended.set()


def stubborn_workflow() -> type[Stubborn]:
    signals = {"running": Signal(), "ended": Signal(), "let_go": Signal()}
    return type("StubbornOne", (Stubborn,), signals)


def plays(workflow: type[AgentWorkflow]) -> Play:
    """A backend's part that is this workflow, and has no answer."""

    async def play(on_workflow: ResultCallback, on_grader: ResultCallback) -> None:
        await workflow().run(AgentWorkflowContext(prompt=[]))

    return play


def ask_synchronously(messages: list[MessageDict]) -> MessageDict:
    context = get_rollout_context()
    assert context is not None
    call = urllib.request.Request(
        f"{context.chat_completions_url}/chat/completions",
        data=json.dumps({"model": "policy", "messages": messages}).encode(),
        headers={"Authorization": f"Bearer {context.api_key}"},
    )
    with urllib.request.urlopen(call) as answer:
        message: MessageDict = json.load(answer)["choices"][0]["message"]
    return message


def ask_until_refused(messages: list[MessageDict]) -> None:
    while True:
        try:
            ask_synchronously(messages)
        except urllib.error.HTTPError as refusal:
            with refusal:
                if refusal.code != 410:
                    raise
            return


def reward_of(outcome: ExecutionOutcome) -> float | None:
    assert outcome.grader is not None
    assert outcome.grader.sample is not None, outcome.grader.err_message
    return outcome.grader.sample.reward


# What comes out


async def test_a_rollout_brings_both_results_its_usage_and_its_time(tmp_path: Path) -> None:
    backend = LocalBackend(workflow=ChatWorkflow, grader=ExactMatchGrader)
    with driving(backend, artifact_root=tmp_path) as driver:
        outcome = await driver.run(request(), item=RolloutItem(row=1, attempt=2, seed=3))
    assert reward_of(outcome) == 1.0
    assert outcome.usage is not None
    assert (outcome.usage.calls, outcome.usage.total_tokens) == (1, 2)
    assert outcome.duration_sec is not None
    assert outcome.duration_sec > 0


async def test_a_run_with_a_synchronous_client_finishes(tmp_path: Path) -> None:
    """The listener has a thread of its own: the call is answered while the caller's loop waits."""
    backend = LocalBackend(workflow=SynchronousClient, grader=ExactMatchGrader)
    with driving(backend, artifact_root=tmp_path) as driver:
        outcomes = await asyncio.gather(*(driver.run(request(f"r{n}")) for n in range(8)))
    assert [reward_of(outcome) for outcome in outcomes] == [1.0] * 8
    assert {o.usage.calls for o in outcomes if o.usage} == {1}


async def test_64_rollouts_at_once_never_mix_their_answers_or_usage(tmp_path: Path) -> None:
    class Counts(AgentWorkflow):
        async def run(self, ctx: AgentWorkflowContext) -> list[MessageDict]:
            row = int(ctx.prompt[0]["content"])
            return [await ask_model(ctx.prompt) for _ in range(1 + row % 3)]

    def reply(request: dict[str, Any], call: Any) -> str:
        return f"{call.row} {request['messages'][0]['content']}"

    class Checks(Grader):
        async def grade(self, ctx: GraderContext) -> None:
            assert ctx.sample is not None
            texts = {message["content"] for message in ctx.sample.messages}
            ctx.set_reward(float(texts == {f"{ctx.label} {ctx.label}"}))

    def row_request(row: int) -> ExecutionRequest:
        prompt = [{"role": "user", "content": str(row)}]
        return ExecutionRequest(id=f"r{row}", prompt=prompt, label=str(row))

    backend = LocalBackend(workflow=Counts, grader=Checks)
    with driving(backend, reply=reply, artifact_root=tmp_path) as driver:
        outcomes = await asyncio.gather(
            *(driver.run(row_request(n), item=RolloutItem(n, 0, n)) for n in range(64))
        )
    assert [reward_of(outcome) for outcome in outcomes] == [1.0] * 64
    assert [o.usage.calls for o in outcomes if o.usage] == [1 + n % 3 for n in range(64)]
    assert [o.usage.completion_tokens for o in outcomes if o.usage] == [
        2 * (1 + n % 3) for n in range(64)
    ]


async def test_the_sample_is_shown_before_it_is_graded(tmp_path: Path) -> None:
    shown: list[tuple[str, Any]] = []

    def on_sample(request: ExecutionRequest, sample: RolloutSample | None) -> None:
        shown.append((request.id, sample and sample.reward))

    backend = LocalBackend(workflow=EchoWorkflow, grader=ExactMatchGrader)
    with driving(backend, artifact_root=tmp_path, on_sample=on_sample) as driver:
        await driver.run(request())
    assert shown == [("r1", None)]


async def test_a_sample_that_cannot_be_kept_is_no_result(tmp_path: Path) -> None:
    """Whoever keeps samples failed, which says nothing about the agent."""

    def on_sample(request: ExecutionRequest, sample: RolloutSample | None) -> None:
        raise OSError("disk full")

    backend = LocalBackend(workflow=EchoWorkflow, grader=ExactMatchGrader)
    with driving(backend, artifact_root=tmp_path, on_sample=on_sample) as driver:
        outcome = await driver.run(request())
    assert outcome.grader is not None
    assert str(outcome.grader.no_result).startswith("the backend failed: OSError: disk full (test_")


async def test_the_trajectory_is_the_conversation_before_it_was_graded(tmp_path: Path) -> None:
    class Scribbles(Grader):
        async def grade(self, ctx: GraderContext) -> None:
            assert ctx.sample is not None
            message: Any = ctx.sample.messages[0]
            message["content"] = "scribble"
            ctx.set_reward(0.25)

    with driving(
        LocalBackend(workflow=EchoWorkflow, grader=Scribbles), artifact_root=tmp_path
    ) as driver:
        await driver.run(request())
    trajectory = (tmp_path / "r1/trajectory.json").read_text()
    assert "scribble" not in trajectory
    assert "0.25" in trajectory


async def test_diagnostics_of_a_backend_are_kept(tmp_path: Path) -> None:
    async def play(on_workflow: ResultCallback, on_grader: ResultCallback) -> None:
        await on_workflow(succeeded().model_copy(update={"extra_fields": {"node": 7}}))
        await on_grader(succeeded(0.5))

    with driving(PlayingBackend(play), artifact_root=tmp_path) as driver:
        await driver.run(request())
    assert json.loads((tmp_path / "r1/diagnostics.json").read_text())["node"] == 7


# Backends that fail


async def test_a_backend_that_fails_is_no_result(caplog: pytest.LogCaptureFixture) -> None:
    async def play(on_workflow: ResultCallback, on_grader: ResultCallback) -> None:
        raise RuntimeError("node lost")

    with driving(PlayingBackend(play)) as driver:
        outcome = await driver.run(request())
    reason = str(outcome.workflow.no_result)
    assert reason.startswith("the backend failed: RuntimeError: node lost (test_in_process.py:")
    assert outcome.workflow.err_category is RolloutErrorCategory.INTERNAL_ERROR
    assert outcome.grader is not None
    assert not outcome.grader.succeeded
    assert "rollout r1: the backend failed" in caplog.text


async def test_leaving_a_debugger_is_no_outcome() -> None:
    """The person wants out: that is nothing to record of a rollout."""

    class Debugged(EchoWorkflow):
        async def run(self, ctx: Any) -> Any:
            raise BdbQuit

    with driving(LocalBackend(workflow=Debugged)) as driver, pytest.raises(BdbQuit):
        await driver.run(request())


async def test_a_backend_that_fails_while_it_grades_keeps_the_workflows_result() -> None:
    async def play(on_workflow: ResultCallback, on_grader: ResultCallback) -> None:
        await on_workflow(succeeded())
        raise RuntimeError("node lost")

    with driving(PlayingBackend(play)) as driver:
        outcome = await driver.run(request())
    assert outcome.workflow.succeeded
    assert outcome.grader is not None
    assert "the backend failed: RuntimeError: node lost" in str(outcome.grader.no_result)
    assert outcome.grader.sample is not None


async def test_a_backend_that_says_nothing_is_no_result() -> None:
    async def play(on_workflow: ResultCallback, on_grader: ResultCallback) -> None:
        return None

    with driving(PlayingBackend(play)) as driver:
        outcome = await driver.run(request())
    assert outcome.workflow.no_result == "the backend ended the rollout without an answer"


async def test_a_failed_workflow_needs_no_grade() -> None:
    async def play(on_workflow: ResultCallback, on_grader: ResultCallback) -> None:
        await on_workflow(succeeded().model_copy(update={"status": RolloutStatus.FAILURE}))

    with driving(PlayingBackend(play)) as driver:
        outcome = await driver.run(request())
    assert outcome.grader is not None
    assert (outcome.grader.succeeded, outcome.grader.no_result) == (False, None)


async def test_answers_that_came_count_whatever_the_backend_does_then() -> None:
    async def play(on_workflow: ResultCallback, on_grader: ResultCallback) -> None:
        await on_workflow(succeeded())
        await on_grader(succeeded(0.5))
        raise RuntimeError("while cleaning up")

    with driving(PlayingBackend(play)) as driver:
        outcome = await driver.run(request())
    assert reward_of(outcome) == 0.5


async def test_an_id_twice_at_once_is_refused_and_costs_no_slot(tmp_path: Path) -> None:
    workflow = waiting_workflow()
    with driving(LocalBackend(workflow=workflow), artifact_root=tmp_path) as driver:
        first = asyncio.create_task(driver.run(request()))
        await workflow.running.wait()
        for _ in range(5):
            with pytest.raises(ValueError, match="'r1' is open already"):
                await driver.run(request())
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)


# Deadlines


async def test_blocking_code_that_returns_late_is_a_timeout(tmp_path: Path) -> None:
    """The deadline rang while the loop was blocked, and is remembered; nothing is graded."""
    backend = LocalBackend(workflow=BlocksUntilItsDeadline, grader=NeverGraded)
    with driving(backend, artifact_root=tmp_path, deadline=after(0.05)) as driver:
        outcome = await driver.run(request())
    assert outcome.workflow.err_category is RolloutErrorCategory.TIMEOUT
    assert outcome.workflow.err_message == (
        "the rollout exceeded its 0.05s deadline during its workflow"
    )
    assert outcome.workflow.no_result is None
    assert outcome.grader is not None
    assert outcome.grader.err_message is None


async def test_a_grader_that_blocks_past_the_deadline_is_a_timeout(tmp_path: Path) -> None:
    backend = LocalBackend(workflow=EchoWorkflow, grader=GraderBlocksUntilItsDeadline)
    with driving(backend, artifact_root=tmp_path, deadline=after(0.05)) as driver:
        outcome = await driver.run(request())
    assert outcome.workflow.succeeded
    assert outcome.grader is not None
    assert outcome.grader.err_category is RolloutErrorCategory.TIMEOUT
    assert outcome.grader.sample is not None


async def test_past_its_deadline_a_rollout_is_cancelled_and_waited_for(tmp_path: Path) -> None:
    workflow = waiting_workflow()
    backend = LocalBackend(workflow=workflow)
    with driving(backend, artifact_root=tmp_path, deadline=after(0.05)) as driver:
        outcome = await driver.run(request())
    assert workflow.ended.is_set
    assert outcome.workflow.err_category is RolloutErrorCategory.TIMEOUT
    assert backend.capacity().running == 0


async def test_a_rollout_that_does_not_stop_keeps_its_slot(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """ "I stopped waiting" is not "it stopped": the outcome comes, the room does not."""
    workflow = stubborn_workflow()
    backend = PlayingBackend(plays(workflow), limit=1)
    with driving(backend, deadline=after(0.05), stop_patience_sec=0.05) as driver:
        outcome = await driver.run(request("r1"))
        assert outcome.workflow.err_category is RolloutErrorCategory.TIMEOUT
        assert "rollout r1 was told to stop and goes on: its slot stays taken" in caplog.text
        with pytest.raises(BackendError, match="all 1 slots are held by rollouts"):
            await driver.run(request("r2"))
        workflow.let_go.set()
        await driver.close()
        outcome = await driver.run(request("r3"))
    assert outcome.workflow.no_result == "the backend ended the rollout without an answer"


def test_a_deadline_that_rings_after_the_callers_loop_has_ended_does_no_harm(
    tmp_path: Path,
) -> None:
    backend = LocalBackend(workflow=stubborn_workflow())
    with driving(backend, artifact_root=tmp_path) as driver:
        flight = asyncio.run(a_flight(driver))
        flight.ring()


async def a_flight(driver: InProcessDriver) -> Flight:
    return Flight(
        request(), NO_ITEM, driver._controller.open_rollout("r1"), limit_sec=1, asked_at=0
    )


async def test_a_deadline_may_ring_twice_and_late() -> None:
    """The listener's thread and the end of a rollout cross."""
    with driving(PlayingBackend(plays(EchoWorkflow))) as driver:
        flight = await a_flight(driver)
        flight.task = asyncio.create_task(asyncio.sleep(3600))
        flight.ring()
        flight.ring()
        await flight.wait()
        await asyncio.sleep(0)
        flight.task.cancel()


# Cancelling


async def test_a_cancelled_run_waits_for_the_rollout_to_end(tmp_path: Path) -> None:
    workflow = waiting_workflow()
    with driving(LocalBackend(workflow=workflow), artifact_root=tmp_path) as driver:
        running = asyncio.create_task(driver.run(request()))
        await workflow.running.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert workflow.ended.is_set
        assert not driver._flights


async def test_a_run_cancelled_twice_leaves_at_once() -> None:
    """Ctrl-C, and again: whoever asks twice does not want to wait; `close` cancels the rest."""
    workflow = stubborn_workflow()
    backend = ClaimingBackend(plays(workflow))
    with driving(backend, stop_patience_sec=3600) as driver:
        running = asyncio.create_task(driver.run(request()))
        await workflow.running.wait()
        running.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not running.done()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        [left] = driver._flights
        closing = asyncio.create_task(driver.close())
        await workflow.ended.wait()
        workflow.let_go.set()
        await closing
        assert left.done()


@pytest.mark.parametrize("kind", [PlayingBackend, ClaimingBackend])
async def test_a_backend_without_a_cancel_is_cancelled_by_its_task(
    kind: type[PlayingBackend],
) -> None:
    """One that claims to have cancelled is believed, until patience ends."""
    workflow = waiting_workflow()
    backend = kind(plays(workflow))
    with driving(backend, deadline=after(0.05), stop_patience_sec=0.05) as driver:
        outcome = await driver.run(request())
        assert workflow.ended.is_set is (kind is PlayingBackend)
        assert outcome.workflow.err_category is RolloutErrorCategory.TIMEOUT
        await driver.close()


async def test_a_workflow_that_somebody_else_cancelled_is_no_result(tmp_path: Path) -> None:
    workflow = waiting_workflow()
    backend = LocalBackend(workflow=workflow)
    with driving(backend, artifact_root=tmp_path) as driver:
        running = asyncio.create_task(driver.run(request()))
        await workflow.running.wait()
        await backend.cancel_rollouts(all=True)
        outcome = await running
    assert outcome.workflow.status is RolloutStatus.CANCELLED
    assert outcome.workflow.no_result == "the rollout was cancelled"


async def test_a_grade_that_somebody_else_cancelled_is_no_result(tmp_path: Path) -> None:
    grading = asyncio.Event()

    class WaitingGrader(Grader):
        async def grade(self, ctx: GraderContext) -> None:
            grading.set()
            await asyncio.Event().wait()

    backend = LocalBackend(workflow=EchoWorkflow, grader=WaitingGrader)
    with driving(backend, artifact_root=tmp_path) as driver:
        running = asyncio.create_task(driver.run(request()))
        await grading.wait()
        await backend.cancel_rollouts(all=True)
        outcome = await running
    assert outcome.workflow.succeeded
    assert outcome.grader is not None
    assert outcome.grader.no_result == "the rollout was cancelled"


async def test_what_was_never_to_be_graded_is_not_a_cancelled_grade(tmp_path: Path) -> None:
    with driving(LocalBackend(workflow=EchoWorkflow), artifact_root=tmp_path) as driver:
        outcome = await driver.run(request(label=None))
    assert outcome.grader is not None
    assert (outcome.grader.succeeded, outcome.grader.no_result) == (False, None)


# Room


async def test_an_unlimited_backend_is_given_all_at_once() -> None:
    async def play(on_workflow: ResultCallback, on_grader: ResultCallback) -> None:
        return None

    with driving(PlayingBackend(play)) as driver:
        assert driver.max_in_flight is None
        assert driver.description == "in-process, PlayingBackend"
        await asyncio.gather(*(driver.run(request(f"r{n}")) for n in range(100)))
