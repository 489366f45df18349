"""Mutants of clause 3.10: a backend that cannot be asked, or not be stopped."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from osmosis_ai.rollout.backend.base import CancelDisposition, Capacity, RolloutState
from osmosis_ai.rollout.types import RolloutStatus
from tests.mutants.mutant import breaks
from tests.mutants.plain import PlainBackend


@breaks("3.10", "status follows the rollout")
class SaysGradingIsRunning(PlainBackend):
    def rollout_status(self, rollout_id: str) -> RolloutState | None:
        state = super().rollout_status(rollout_id)
        if state is not None and state.status is RolloutStatus.GRADING:
            return replace(state, status=RolloutStatus.RUNNING)
        return state


@breaks("3.10", "status follows the rollout")
class SaysQueuedIsRunning(PlainBackend):
    def rollout_status(self, rollout_id: str) -> RolloutState | None:
        state = super().rollout_status(rollout_id)
        if state is not None and state.status is RolloutStatus.QUEUED:
            return replace(state, status=RolloutStatus.RUNNING)
        return state


@breaks("3.10", "status follows the rollout")
class RemembersWhatHasEnded(PlainBackend):
    last: RolloutState | None = None

    def rollout_status(self, rollout_id: str) -> RolloutState | None:
        self.last = super().rollout_status(rollout_id) or self.last
        return self.last


@breaks("3.10", "an unknown rollout has no status", "status follows the rollout")
class GivesUnknownRolloutsAStatus(PlainBackend):
    def rollout_status(self, rollout_id: str) -> RolloutState | None:
        return super().rollout_status(rollout_id) or RolloutState(RolloutStatus.UNKNOWN)


@breaks("3.10", "a running rollout is not stopping")
class SaysThatAllAreStopping(PlainBackend):
    def rollout_status(self, rollout_id: str) -> RolloutState | None:
        state = super().rollout_status(rollout_id)
        return None if state is None else replace(state, stopping=True)


@breaks("3.10", "capacity counts what runs and what waits")
class DoesNotCount(PlainBackend):
    def capacity(self) -> Capacity | None:
        return None


@breaks("3.10", "capacity counts what runs and what waits")
class DoesNotCountItsQueue(PlainBackend):
    def capacity(self) -> Capacity | None:
        return Capacity(self.limit, self.taken, 0)


@breaks("3.10", "capacity counts what runs and what waits")
class IsAlwaysFull(PlainBackend):
    def has_capacity(self) -> bool:
        return False


class CancelMutant(PlainBackend):
    """Base of mutants that read selectors in their own way."""

    async def cancel_rollouts(
        self, *, ids: Iterable[str] | None = None, prefix: str | None = None, all: bool = False
    ) -> dict[str, CancelDisposition]:
        self.check_selectors(ids, prefix, all)
        return await self.read(ids, prefix, all)

    async def read(
        self, ids: Iterable[str] | None, prefix: str | None, all: bool
    ) -> dict[str, CancelDisposition]:
        return await super().cancel_rollouts(ids=ids, prefix=prefix, all=all)


@breaks("3.10", "cancel by ids takes those")
class CancelsTheFirstIdOnly(CancelMutant):
    async def read(
        self, ids: Iterable[str] | None, prefix: str | None, all: bool
    ) -> dict[str, CancelDisposition]:
        return await super().read(None if ids is None else list(ids)[:1], prefix, all)


@breaks("3.10", "cancel by prefix takes what begins with it")
class DoesNotKnowPrefixes(CancelMutant):
    def has_prefix(self, name: str, prefix: str | None) -> bool:
        return False


@breaks("3.10", "cancel by prefix takes what begins with it")
class TakesAnyPrefixForAll(CancelMutant):
    def has_prefix(self, name: str, prefix: str | None) -> bool:
        return prefix is not None


@breaks("3.10", "cancel all takes every rollout")
class SparesTheNewest(CancelMutant):
    async def read(
        self, ids: Iterable[str] | None, prefix: str | None, all: bool
    ) -> dict[str, CancelDisposition]:
        if not all:
            return await super().read(ids, prefix, all)
        return await super().read([one.request.id for one in self.live[:-1]], None, False)


@breaks("3.10", "cancel with nothing to stop says so")
class RaisesWhenNothingIsFound(CancelMutant):
    async def read(
        self, ids: Iterable[str] | None, prefix: str | None, all: bool
    ) -> dict[str, CancelDisposition]:
        said = await super().read(ids, prefix, all)
        assert said, "no such rollout"
        return said


@breaks("3.10", "cancel takes exactly one selector")
class TakesAnySelectors(PlainBackend):
    def check_selectors(self, ids: Iterable[str] | None, prefix: str | None, all: bool) -> None:
        pass


@breaks("3.10", "cancel with nothing to stop says so")
class TakesEmptySelectorsForNone(PlainBackend):
    def check_selectors(self, ids: Iterable[str] | None, prefix: str | None, all: bool) -> None:
        super().check_selectors(list(ids or ()) or None, prefix or None, all)
