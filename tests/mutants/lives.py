"""Mutants of the life-cycle: places that say or do one thing wrong, whoever they reach."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeAlias, TypeVar

from osmosis_ai.rollout.backend.base import Capacity
from osmosis_ai.rollout.types import ExecutionOutcome, ExecutionRequest, RolloutStatus
from osmosis_ai.testing.lifecycle.place import Place, Refused
from osmosis_ai.testing.lifecycle_contract import Reach
from tests.mutants.mutant import HANGS_SEC

Mistake: TypeAlias = Mapping[RolloutStatus, RolloutStatus]
P = TypeVar("P", bound="type[WrappedPlace]")


class WrappedPlace(Place):
    """Another place, told on: a mutant changes one word of it."""

    def __init__(self, inner: Place) -> None:
        super().__init__(patience_sec=inner._patience_sec)
        self.inner = inner
        self.started: list[ExecutionRequest] = []

    async def start(self, request: ExecutionRequest) -> None:
        self.started.append(request)
        await self.inner.start(request)

    async def status(self, rollout_id: str) -> RolloutStatus:
        return await self.inner.status(rollout_id)

    async def cancel(self, **selector: Any) -> dict[str, str]:
        return await self.inner.cancel(**selector)

    async def capacity(self) -> Capacity:
        return await self.inner.capacity()

    async def drain(self) -> None:
        await self.inner.drain()

    async def outcome(self, rollout_id: str) -> ExecutionOutcome:
        return await self.inner.outcome(rollout_id)


@dataclass(frozen=True)
class LifeMutant:
    """One broken place, how its backend is reached, and the tests that must notice."""

    place: type[WrappedPlace]
    reach: Reach
    tests: tuple[str, ...]
    patience_sec: float

    @property
    def name(self) -> str:
        return f"{self.place.__name__}, {self.reach}"


LIFE_MUTANTS: list[LifeMutant] = []


def lives_wrongly(
    *sentences: str, reach: Reach = "directly", hangs: bool = False
) -> Callable[[P], P]:
    """Register a mutant; `hangs`: what the tests wait for never happens."""

    def register(place: P) -> P:
        tests = tuple("test_" + sentence.replace(" ", "_") for sentence in sentences)
        LIFE_MUTANTS.append(LifeMutant(place, reach, tests, HANGS_SEC if hangs else 10.0))
        return place

    return register


LIFE = "a rollout is queued runs is graded and ends"


class Renames(WrappedPlace):
    """Base of those that mistake one status for another."""

    wrong: ClassVar[Mistake]

    async def status(self, rollout_id: str) -> RolloutStatus:
        status = await super().status(rollout_id)
        return self.wrong.get(status, status)


@lives_wrongly(LIFE)
class SaysQueuedIsRunning(Renames):
    wrong: ClassVar[Mistake] = {RolloutStatus.QUEUED: RolloutStatus.RUNNING}


@lives_wrongly(LIFE)
class SaysRunningIsQueued(Renames):
    wrong: ClassVar[Mistake] = {RolloutStatus.RUNNING: RolloutStatus.QUEUED}


@lives_wrongly(LIFE)
class SaysGradingIsRunning(Renames):
    wrong: ClassVar[Mistake] = {RolloutStatus.GRADING: RolloutStatus.RUNNING}


@lives_wrongly(LIFE, "a failed rollout ends too", "cancelling again changes nothing", hangs=True)
class NeverForgets(Renames):
    wrong: ClassVar[Mistake] = {RolloutStatus.UNKNOWN: RolloutStatus.RUNNING}


@lives_wrongly("an unknown rollout is unknown")
class TakesTheUnknownForFailed(Renames):
    wrong: ClassVar[Mistake] = {RolloutStatus.UNKNOWN: RolloutStatus.FAILURE}


@lives_wrongly(
    LIFE,
    "a failed rollout ends too",
    "how a rollout ended is told for so long",
    "an id that is known is not run again",
    reach="callback",
    hangs=True,
)
class ForgetsAtOnce(Renames):
    wrong: ClassVar[Mistake] = dict.fromkeys(
        (RolloutStatus.SUCCESS, RolloutStatus.FAILURE), RolloutStatus.UNKNOWN
    )


@lives_wrongly("how a rollout ended is told for so long", reach="poll", hangs=True)
class RemembersForEver(WrappedPlace):
    last = RolloutStatus.UNKNOWN

    async def status(self, rollout_id: str) -> RolloutStatus:
        status = await super().status(rollout_id)
        if status is not RolloutStatus.UNKNOWN:
            self.last = status
        return self.last


@lives_wrongly("a failed rollout ends too")
class TakesAFailureForASuccess(WrappedPlace):
    async def outcome(self, rollout_id: str) -> ExecutionOutcome:
        outcome = await super().outcome(rollout_id)
        workflow = outcome.workflow.model_copy(update={"status": RolloutStatus.SUCCESS})
        return outcome.model_copy(update={"workflow": workflow})


@lives_wrongly(LIFE)
class LosesTheGrade(WrappedPlace):
    async def outcome(self, rollout_id: str) -> ExecutionOutcome:
        outcome = await super().outcome(rollout_id)
        return outcome.model_copy(update={"grader": None})


@lives_wrongly("a cancelled rollout is not graded")
class GradesTheCancelled(WrappedPlace):
    async def outcome(self, rollout_id: str) -> ExecutionOutcome:
        outcome = await super().outcome(rollout_id)
        assert outcome.grader is not None
        graded = outcome.grader.model_copy(update={"status": RolloutStatus.SUCCESS})
        return outcome.model_copy(update={"grader": graded})


class Miscounts(WrappedPlace):
    """Base of those that count wrongly."""

    def count(self, capacity: Capacity) -> Capacity:
        raise NotImplementedError

    async def capacity(self) -> Capacity:
        return self.count(await super().capacity())


@lives_wrongly("capacity counts what runs and what waits")
class DoesNotCountItsQueue(Miscounts):
    def count(self, capacity: Capacity) -> Capacity:
        return replace(capacity, queued=0)


@lives_wrongly("capacity counts what runs and what waits")
class SaysThatItHasNoLimit(Miscounts):
    def count(self, capacity: Capacity) -> Capacity:
        return replace(capacity, max=None)


@lives_wrongly("a cancelled rollout is stopping until its code ends")
class TakesTheStoppingForGone(Miscounts):
    def count(self, capacity: Capacity) -> Capacity:
        return replace(capacity, running=capacity.running - capacity.stopping)


@lives_wrongly("a cancelled rollout is stopping until its code ends")
class KnowsNoStopping(Miscounts):
    def count(self, capacity: Capacity) -> Capacity:
        return replace(capacity, stopping=0)


CANCEL = "cancel takes what it names queued or running"


@lives_wrongly(CANCEL)
class CancelsAll(WrappedPlace):
    async def cancel(self, **selector: Any) -> dict[str, str]:
        return await super().cancel(all=True)


@lives_wrongly(CANCEL)
class SaysThatAllWereRunning(WrappedPlace):
    async def cancel(self, **selector: Any) -> dict[str, str]:
        return dict.fromkeys(await super().cancel(**selector), "cancelled_running")


@lives_wrongly(
    CANCEL,
    "a cancelled rollout is not graded",
    "cancelling again changes nothing",
    "a cancelled rollout is stopping until its code ends",
    hangs=True,
)
class PretendsToCancel(WrappedPlace):
    async def cancel(self, **selector: Any) -> dict[str, str]:
        return dict.fromkeys(selector.get("ids", ()), "cancelled_running")


@lives_wrongly("cancelling again changes nothing")
class CancelsOnlyOnce(WrappedPlace):
    told: frozenset[str] = frozenset()

    async def cancel(self, **selector: Any) -> dict[str, str]:
        said = await super().cancel(**selector)
        before, self.told = self.told, self.told | set(said)
        return {name: "not_found" if name in before else what for name, what in said.items()}


@lives_wrongly("an id that is known is not run again", reach="callback")
class TakesOtherContentForTheSame(WrappedPlace):
    async def start(self, request: ExecutionRequest) -> None:
        await super().start(request.model_copy(update={"metadata": None}))


@lives_wrongly("an id that is known is not run again", reach="poll")
class RunsAgain(WrappedPlace):
    async def start(self, request: ExecutionRequest) -> None:
        try:
            await super().start(request)
        finally:
            if len(self.started) == 2:
                again = request.model_copy(update={"id": request.id + "-again"})
                await self.inner.start(again)
                await asyncio.sleep(0.1)


@lives_wrongly("a full queue takes no more", reach="callback", hangs=True)
class IsNeverFull(WrappedPlace):
    async def start(self, request: ExecutionRequest) -> None:
        try:
            await super().start(request)
        except Refused:
            pass


@lives_wrongly("a full queue takes no more", reach="poll")
class DoesNotSayWhenToCome(WrappedPlace):
    async def start(self, request: ExecutionRequest) -> None:
        try:
            await super().start(request)
        except Refused as refused:
            raise Refused(refused.status) from refused


@lives_wrongly(
    "a server that ends finishes what runs and takes no more", reach="callback", hangs=True
)
class TakesRolloutsToTheEnd(IsNeverFull):
    pass


@lives_wrongly("a server that ends finishes what runs and takes no more", reach="poll")
class EndsWithWhatRuns(WrappedPlace):
    async def drain(self) -> None:
        await self.inner.cancel(all=True)
        await super().drain()
