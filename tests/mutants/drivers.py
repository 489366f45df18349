"""Mutants of the driver contract: an in-process driver, wrapped and broken in one place."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import orjson

from osmosis_ai.errors import RolloutError
from osmosis_ai.rollout.context import RolloutContext, get_rollout_context
from osmosis_ai.rollout.controller.model.base import ModelCall
from osmosis_ai.rollout.driver import choose
from osmosis_ai.rollout.driver.base import Deadline, ModelSpec, RolloutDriver, RolloutItem
from osmosis_ai.rollout.driver.in_process import InProcessDriver
from osmosis_ai.rollout.types import (
    ExecutionOutcome,
    ExecutionRequest,
    ExecutionResult,
    RolloutErrorCategory,
    RolloutSample,
    RolloutStatus,
)

TIMEOUT = RolloutErrorCategory.TIMEOUT


class WrappedDriver(RolloutDriver):
    """A whole driver: it does what the one inside does."""

    def __init__(self, inner: RolloutDriver, given: dict[str, Any]) -> None:
        self.inner = inner
        self.root: Path = given["artifact_root"]
        self.deadline: Deadline = given["deadline"]

    @classmethod
    def arrange(cls, given: dict[str, Any]) -> dict[str, Any]:
        """What the driver inside is opened with."""
        return given

    @classmethod
    @asynccontextmanager
    async def open(cls, **given: Any) -> AsyncIterator[RolloutDriver]:
        async with choose.open_driver(**cls.arrange(dict(given))) as inner:
            yield cls(inner, given)

    async def run(
        self, request: ExecutionRequest, *, item: RolloutItem | None = None
    ) -> ExecutionOutcome:
        return self.changed(await self.inner.run(request, item=item), request)

    def changed(self, outcome: ExecutionOutcome, request: ExecutionRequest) -> ExecutionOutcome:
        return outcome

    @property
    def max_in_flight(self) -> int | None:
        return self.inner.max_in_flight

    @property
    def description(self) -> str:
        return self.inner.description


D = TypeVar("D", bound=type[WrappedDriver])


@dataclass(frozen=True)
class DriverMutant:
    """One broken driver, the tests that must notice, and how long they wait for it."""

    driver: type[WrappedDriver]
    tests: tuple[str, ...]
    patience_sec: float


DRIVER_MUTANTS: list[DriverMutant] = []


def breaks(*sentences: str, hangs: bool = False) -> Callable[[D], D]:
    """Register a mutant; `sentences` are the names of the tests that must notice."""

    def register(driver: D) -> D:
        tests = tuple("test_" + sentence.replace(" ", "_") for sentence in sentences)
        DRIVER_MUTANTS.append(DriverMutant(driver, tests, 0.6 if hangs else 20.0))
        return driver

    return register


def with_usage(outcome: ExecutionOutcome, **fields: Any) -> ExecutionOutcome:
    assert outcome.usage is not None
    return outcome.model_copy(update={"usage": outcome.usage.model_copy(update=fields)})


# What comes out


@breaks("a graded rollout has both results")
class LosesTheGrade(WrappedDriver):
    def changed(self, outcome: ExecutionOutcome, request: ExecutionRequest) -> ExecutionOutcome:
        return outcome.model_copy(update={"grader": None})


@breaks("a graded rollout has both results")
class DoesNotMeasure(WrappedDriver):
    def changed(self, outcome: ExecutionOutcome, request: ExecutionRequest) -> ExecutionOutcome:
        return outcome.model_copy(update={"duration_sec": None})


@breaks("a rollout without reference is not graded")
class GivesZeroWhereNobodyGraded(WrappedDriver):
    def changed(self, outcome: ExecutionOutcome, request: ExecutionRequest) -> ExecutionOutcome:
        if request.label is None and outcome.workflow.sample is not None:
            outcome.workflow.sample.reward = 0.0
        return outcome


@breaks("a failed workflow is a value")
class RaisesAFailedRollout(WrappedDriver):
    def changed(self, outcome: ExecutionOutcome, request: ExecutionRequest) -> ExecutionOutcome:
        if not outcome.workflow.succeeded:
            raise RolloutError(outcome.workflow.err_message or "failed")
        return outcome


@breaks("a strange sample comes with its reward")
class WantsPlainJson(WrappedDriver):
    def changed(self, outcome: ExecutionOutcome, request: ExecutionRequest) -> ExecutionOutcome:
        if outcome.workflow.sample is not None:
            orjson.dumps(outcome.workflow.sample.messages)
        return outcome


@breaks("the sample is shown before it is graded")
class ShowsTheSampleAtTheEnd(WrappedDriver):
    show: Callable[[ExecutionRequest, RolloutSample | None], None]

    def __init__(self, inner: RolloutDriver, given: dict[str, Any]) -> None:
        super().__init__(inner, given)
        self.show = given["on_sample"]

    @classmethod
    def arrange(cls, given: dict[str, Any]) -> dict[str, Any]:
        return {**given, "on_sample": None}

    def changed(self, outcome: ExecutionOutcome, request: ExecutionRequest) -> ExecutionOutcome:
        self.show(request, outcome.result.sample)
        return outcome


@breaks("the description is one line")
class TellsAStory(WrappedDriver):
    @property
    def description(self) -> str:
        return "once upon a time\nthere was a driver"


# The model


@breaks("the policy answers for the rollouts item")
class ForgetsTheItem(WrappedDriver):
    async def run(
        self, request: ExecutionRequest, *, item: RolloutItem | None = None
    ) -> ExecutionOutcome:
        return await super().run(request)


@breaks("model calls and tokens are counted")
class CountsForAllTogether(WrappedDriver):
    calls = 0

    def changed(self, outcome: ExecutionOutcome, request: ExecutionRequest) -> ExecutionOutcome:
        assert outcome.usage is not None
        self.calls += outcome.usage.calls
        return with_usage(outcome, calls=self.calls)


@breaks("model calls and tokens are counted")
class CountsNoTokens(WrappedDriver):
    def changed(self, outcome: ExecutionOutcome, request: ExecutionRequest) -> ExecutionOutcome:
        return with_usage(outcome, total_tokens=0)


@breaks("a model that is down is told from a failed agent")
class BlamesTheAgent(WrappedDriver):
    def changed(self, outcome: ExecutionOutcome, request: ExecutionRequest) -> ExecutionOutcome:
        return with_usage(outcome, last_error=None)


@breaks("a workflow that survives a failed call is graded")
class NeverForgivesAFailedCall(WrappedDriver):
    def changed(self, outcome: ExecutionOutcome, request: ExecutionRequest) -> ExecutionOutcome:
        assert outcome.usage is not None
        return (
            with_usage(outcome, last_error="it failed") if outcome.usage.failed_calls else outcome
        )


@breaks("synchronous clients finish", hangs=True)
class AnswersInTheCallersLoop(WrappedDriver):
    """As a bridge without a thread of its own does."""

    loop: asyncio.AbstractEventLoop

    @classmethod
    def arrange(cls, given: dict[str, Any]) -> dict[str, Any]:
        cls.loop = asyncio.get_running_loop()
        return {**given, "model": ModelSpec(f"scripted:{__name__}:answer_there")}


async def answer_there(request: dict[str, Any], call: ModelCall) -> str:
    work = asyncio.sleep(0, "an answer")
    there = asyncio.run_coroutine_threadsafe(work, AnswersInTheCallersLoop.loop)
    return await asyncio.wrap_future(there)


# What a rollout is given, and what it leaves


class ContextMutant(WrappedDriver):
    """Base of mutants whose rollouts run in another context than their own."""

    def replaced(self, context: RolloutContext) -> RolloutContext:
        raise NotImplementedError

    @classmethod
    @asynccontextmanager
    async def open(cls, **given: Any) -> AsyncIterator[RolloutDriver]:
        async with super().open(**given) as driver:
            assert isinstance(driver, cls)
            assert isinstance(driver.inner, InProcessDriver)
            backend: Any = driver.inner._backend
            execute = backend.execute

            async def elsewhere(*arguments: Any) -> None:
                context = get_rollout_context()
                assert context is not None
                with driver.replaced(context):
                    await execute(*arguments)

            backend.execute = elsewhere
            yield driver


@breaks("a rollout cannot use anothers endpoint")
class LendsTheFirstEndpointToAll(ContextMutant):
    first: RolloutContext | None = None

    def replaced(self, context: RolloutContext) -> RolloutContext:
        self.first = self.first or context
        return self.first


@breaks("the rollout knows its project and its folder")
class DoesNotTellTheProject(WrappedDriver):
    @classmethod
    def arrange(cls, given: dict[str, Any]) -> dict[str, Any]:
        return {**given, "project_path": Path("/elsewhere")}


@breaks("an endpoint ends with its rollout")
class AnswersBeforeTheEndpointIsClosed(WrappedDriver):
    """Its outcome comes while the rollout's URL still stands."""

    async def run(
        self, request: ExecutionRequest, *, item: RolloutItem | None = None
    ) -> ExecutionOutcome:
        assert isinstance(self.inner, InProcessDriver)
        controller: Any = self.inner._controller
        open_rollout = controller.open_rollout

        def left_open(*arguments: Any, **options: Any) -> Any:
            endpoint = open_rollout(*arguments, **options)
            endpoint.close = lambda: None
            return endpoint

        controller.open_rollout = left_open
        return await super().run(request, item=item)


@breaks("artifacts and trajectory lie in the rollouts folder")
class LeavesNoTrajectory(WrappedDriver):
    def changed(self, outcome: ExecutionOutcome, request: ExecutionRequest) -> ExecutionOutcome:
        (self.root / request.id / "trajectory.json").unlink()
        return outcome


# Deadlines, capacity, cancelling


@breaks(
    "a deadline ends the workflow as a timeout",
    "a deadline ends the grader as a timeout",
    hangs=True,
)
class KnowsNoDeadline(WrappedDriver):
    @classmethod
    def arrange(cls, given: dict[str, Any]) -> dict[str, Any]:
        return {**given, "deadline": lambda request: 3600.0}


@breaks("a deadline ends the workflow as a timeout")
class CallsADeadlineNoResult(WrappedDriver):
    def changed(self, outcome: ExecutionOutcome, request: ExecutionRequest) -> ExecutionOutcome:
        if outcome.workflow.err_category is TIMEOUT:
            outcome.workflow.no_result = "passed its deadline"
        return outcome


class GatedDriver(WrappedDriver):
    """Base of mutants with a gate of their own before the driver."""

    limit: int | None = None

    def __init__(self, inner: RolloutDriver, given: dict[str, Any]) -> None:
        super().__init__(inner, given)
        self.gate = asyncio.Semaphore(self.limit or inner.max_in_flight or 1000)


@breaks("a deadline frees the slot", hangs=True)
class KeepsTheSlotOfALateRollout(GatedDriver):
    async def run(
        self, request: ExecutionRequest, *, item: RolloutItem | None = None
    ) -> ExecutionOutcome:
        await self.gate.acquire()
        outcome = await super().run(request, item=item)
        if outcome.workflow.err_category is not TIMEOUT:
            self.gate.release()
        return outcome


@breaks("as many rollouts are in flight as the backend runs")
class DoesNotSayHowMany(WrappedDriver):
    @property
    def max_in_flight(self) -> int | None:
        return None


@breaks("a backend without a limit is sent all", hangs=True)
class SendsFourAtMost(GatedDriver):
    limit = 4

    async def run(
        self, request: ExecutionRequest, *, item: RolloutItem | None = None
    ) -> ExecutionOutcome:
        async with self.gate:
            return await super().run(request, item=item)


@breaks("a deadline starts with the execution")
class CountsTheWaitForRoom(WrappedDriver):
    async def run(
        self, request: ExecutionRequest, *, item: RolloutItem | None = None
    ) -> ExecutionOutcome:
        try:
            async with asyncio.timeout(self.deadline(request)):
                return await super().run(request, item=item)
        except TimeoutError:
            late = ExecutionResult(status=RolloutStatus.FAILURE, err_category=TIMEOUT)
            return ExecutionOutcome(workflow=late)


@breaks("cancelling the task cancels the rollout", hangs=True)
class LetsACancelledRolloutGoOn(WrappedDriver):
    async def run(
        self, request: ExecutionRequest, *, item: RolloutItem | None = None
    ) -> ExecutionOutcome:
        going_on = asyncio.ensure_future(super().run(request, item=item))
        return await asyncio.shield(going_on)


@breaks("cancelling one that waits for room leaves the others alone", hangs=True)
class LeaksTheRoomOfOneThatWaited(GatedDriver):
    async def run(
        self, request: ExecutionRequest, *, item: RolloutItem | None = None
    ) -> ExecutionOutcome:
        await asyncio.shield(asyncio.ensure_future(self.gate.acquire()))
        try:
            return await super().run(request, item=item)
        finally:
            self.gate.release()
