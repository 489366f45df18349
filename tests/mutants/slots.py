"""Mutants of clause 3.9: the wrong limit, and slots that are free too early or never."""

from __future__ import annotations

import asyncio
from typing import Any

from osmosis_ai.rollout.backend.base import ResultCallback
from osmosis_ai.rollout.types import ExecutionResult, RolloutStatus
from tests.mutants.mutant import breaks
from tests.mutants.plain import PlainBackend, Rollout


@breaks("3.9", "no more run at once than the limit")
class RunsOneTooMany(PlainBackend):
    def find_limit(self) -> int | None:
        limit = super().find_limit()
        return None if limit is None else limit + 1


@breaks("3.9", "no more run at once than the limit", hangs=True)
class RunsOneTooFew(PlainBackend):
    def find_limit(self) -> int | None:
        limit = super().find_limit()
        return None if limit is None else max(1, limit - 1)


@breaks("3.9", "no more run at once than the limit")
class IsUnlimitedWithoutAConfig(PlainBackend):
    def find_limit(self) -> int | None:
        return None if self.workflow_config is None else super().find_limit()


@breaks("3.9", "a config without a limit is unlimited", hangs=True)
class TakesNoLimitForTheDefault(PlainBackend):
    def find_limit(self) -> int | None:
        return super().find_limit() or 4


@breaks("3.9", "the grader config limits nothing", hangs=True)
class ObeysTheGraderConfig(PlainBackend):
    grading: asyncio.Semaphore | None = None

    async def run_grader(self, rollout: Rollout, result: ExecutionResult) -> ExecutionResult:
        limit = self.grader_config.concurrency.max_concurrent
        self.grading = self.grading or asyncio.Semaphore(limit or 1000)
        async with self.grading:
            return await super().run_grader(rollout, result)


@breaks("3.9", "the slot covers user code")
class FreesTheSlotBeforeGrading(PlainBackend):
    async def run_grader(self, rollout: Rollout, result: ExecutionResult) -> ExecutionResult:
        await self.free_slot(rollout)
        return await super().run_grader(rollout, result)


@breaks("3.9", "the slot covers the callbacks")
class FreesTheSlotBeforeItAnswers(PlainBackend):
    async def answer(
        self, rollout: Rollout, callback: ResultCallback, result: ExecutionResult
    ) -> None:
        await self.free_slot(rollout)
        await super().answer(rollout, callback, result)


@breaks("3.9", "the slot covers the callbacks")
class DoesNotWaitForItsLastCallback(PlainBackend):
    async def answer(
        self, rollout: Rollout, callback: ResultCallback, result: ExecutionResult
    ) -> None:
        if rollout.status is RolloutStatus.GRADING:
            self.delivery = asyncio.ensure_future(super().answer(rollout, callback, result))
        else:
            await super().answer(rollout, callback, result)


@breaks("3.9", "a callback that fails frees the slot", hangs=True)
class LeaksTheSlotOfAFailedCallback(PlainBackend):
    async def answer(
        self, rollout: Rollout, callback: ResultCallback, result: ExecutionResult
    ) -> None:
        held, rollout.has_slot = rollout.has_slot, False
        await super().answer(rollout, callback, result)
        rollout.has_slot = held


@breaks("3.9", "a callback that fails frees the slot")
class SwallowsTheErrorOfACallback(PlainBackend):
    async def answer(
        self, rollout: Rollout, callback: ResultCallback, result: ExecutionResult
    ) -> None:
        try:
            await super().answer(rollout, callback, result)
        except ConnectionError:
            return


@breaks("3.9", "health reports limit queued and running", "health says unlimited as null")
class KeepsItsHealthToItself(PlainBackend):
    def health(self) -> dict[str, Any]:
        return {"status": "ok"}


@breaks("3.9", "health reports limit queued and running")
class CountsTheQueueAsRunning(PlainBackend):
    def health(self) -> dict[str, Any]:
        health = super().health()
        health["concurrency"]["running"] = len(self.live)
        return health


@breaks("3.9", "health says unlimited as null")
class SaysZeroForUnlimited(PlainBackend):
    def health(self) -> dict[str, Any]:
        health = super().health()
        health["concurrency"]["max_concurrent"] = self.limit or 0
        return health
