"""Mutants of clauses 3.4 and 3.5: graders run when they must not, and rewards made up."""

from __future__ import annotations

from typing import Any

from osmosis_ai.rollout.backend.base import ResultCallback
from osmosis_ai.rollout.types import (
    ExecutionRequest,
    ExecutionResult,
    RolloutSample,
    RolloutStatus,
)
from tests.mutants.mutant import breaks
from tests.mutants.plain import PlainBackend, Rollout


@breaks("3.4", "a label or metadata is graded")
class TakesAnEmptyLabelForNone(PlainBackend):
    def is_gradable(self, request: ExecutionRequest, result: ExecutionResult) -> bool:
        return super().is_gradable(request, result) and bool(request.label or request.metadata)


@breaks("3.4", "a label or metadata is graded")
class WantsALabel(PlainBackend):
    def is_gradable(self, request: ExecutionRequest, result: ExecutionResult) -> bool:
        return super().is_gradable(request, result) and request.label is not None


@breaks("3.4", "neither label nor metadata is a bare failure")
class GradesWithoutLabelAndMetadata(PlainBackend):
    def is_gradable(self, request: ExecutionRequest, result: ExecutionResult) -> bool:
        return self.grader is not None and result.succeeded


@breaks("3.4", "a failed workflow is not graded")
class GradesAFailedWorkflow(PlainBackend):
    def is_gradable(self, request: ExecutionRequest, result: ExecutionResult) -> bool:
        return self.grader is not None


@breaks(
    "3.4",
    "neither label nor metadata is a bare failure",
    "without a grader the answer is a bare failure",
)
class AnswersAnUngradedRolloutWithItsSample(PlainBackend):
    async def run(
        self, rollout: Rollout, on_workflow: ResultCallback, on_grader: ResultCallback | None
    ) -> None:
        async def remember(result: ExecutionResult) -> None:
            self.last = result
            await on_workflow(result)

        await super().run(rollout, remember, on_grader)

    def bare_failure(self) -> ExecutionResult:
        return ExecutionResult(status=RolloutStatus.FAILURE, sample=self.last.sample)


@breaks("3.4", "without a grader the answer is a bare failure")
class CallsAnUngradedRolloutASuccess(PlainBackend):
    def bare_failure(self) -> ExecutionResult:
        return ExecutionResult(status=RolloutStatus.SUCCESS)


@breaks("3.4", "no grader runs unless its answer was asked for")
class GradesUnasked(PlainBackend):
    async def run(
        self, rollout: Rollout, on_workflow: ResultCallback, on_grader: ResultCallback | None
    ) -> None:
        async def to_nobody(result: ExecutionResult) -> None:
            pass

        await super().run(rollout, on_workflow, on_grader or to_nobody)


@breaks("3.4", "both answers come once and in order")
class AnswersForTheWorkflowTwice(PlainBackend):
    async def answer(
        self, rollout: Rollout, callback: ResultCallback, result: ExecutionResult
    ) -> None:
        await super().answer(rollout, callback, result)
        if rollout.status is RolloutStatus.RUNNING and rollout.answered == 1:
            await callback(result)


@breaks("3.4", "both answers come once and in order", hangs=True)
class AnswersForTheWorkflowWhenTheGradeIsKnown(PlainBackend):
    async def run(
        self, rollout: Rollout, on_workflow: ResultCallback, on_grader: ResultCallback | None
    ) -> None:
        late: list[ExecutionResult] = []

        async def keep(result: ExecutionResult) -> None:
            late.append(result)
            if on_grader is None:
                await on_workflow(result)

        async def both(result: ExecutionResult) -> None:
            assert on_grader is not None
            await on_workflow(late[0])
            await on_grader(result)

        await super().run(rollout, keep, None if on_grader is None else both)


@breaks("3.4", "the grader is given what it judges")
class HidesTheMetadataFromTheGrader(PlainBackend):
    async def run_grader(self, rollout: Rollout, result: ExecutionResult) -> ExecutionResult:
        rollout.request = rollout.request.model_copy(update={"metadata": None})
        return await super().run_grader(rollout, result)


@breaks("3.4", "the grader is given what it judges")
class GradesTheSampleOfAnotherRollout(PlainBackend):
    stale = RolloutSample(messages=[{"role": "assistant", "content": "of yesterday"}])

    async def run_grader(self, rollout: Rollout, result: ExecutionResult) -> ExecutionResult:
        return await super().run_grader(rollout, result.model_copy(update={"sample": self.stale}))


@breaks("3.4", "the grader is built anew for each execution")
class SharesOneGrader(PlainBackend):
    shared: Any = None

    def build_grader(self) -> Any:
        self.shared = self.shared or super().build_grader()
        return self.shared


@breaks("3.4", "a missing reward fails the grade")
class AcceptsAMissingReward(PlainBackend):
    def check_graded(self, sample: RolloutSample | None, returned: Any) -> None:
        if sample is None:
            super().check_graded(sample, returned)


@breaks("3.4", "a removed sample needs no reward")
class WantsARewardForARemovedSample(PlainBackend):
    def check_graded(self, sample: RolloutSample | None, returned: Any) -> None:
        if sample is None or sample.reward is None:
            raise ValueError("Sample has no reward after grading")


@breaks("3.4", "a returned number is no reward and the error says so")
class TakesTheReturnedNumberForTheReward(PlainBackend):
    def check_graded(self, sample: RolloutSample | None, returned: Any) -> None:
        if sample is not None and isinstance(returned, float):
            sample.reward = returned
        super().check_graded(sample, returned)


@breaks("3.4", "a returned number is no reward and the error says so")
class DoesNotSayHowARewardIsGiven(PlainBackend):
    def check_graded(self, sample: RolloutSample | None, returned: Any) -> None:
        super().check_graded(sample, None)


@breaks("3.4", "a rollout without sample cannot be graded")
class CallsAGradeWithoutSampleASuccess(PlainBackend):
    def check_graded(self, sample: RolloutSample | None, returned: Any) -> None:
        if sample is not None:
            super().check_graded(sample, returned)


@breaks("3.5", "a missing reward is never zero")
class MakesAMissingRewardZero(PlainBackend):
    def check_graded(self, sample: RolloutSample | None, returned: Any) -> None:
        if sample is not None and sample.reward is None:
            sample.reward = 0.0


@breaks("3.5", "a missing reward is never zero")
class BeginsWithARewardOfZero(PlainBackend):
    async def sample_from(self, *given: Any) -> RolloutSample | None:
        sample = await super().sample_from(*given)
        if sample is not None:
            sample.reward = 0.0
        return sample


class UncheckedSample(RolloutSample):
    """A sample that takes any reward."""

    def __setattr__(self, name: str, value: Any) -> None:
        self.__dict__[name] = value


@breaks(
    "3.5",
    "a number becomes a float",
    "a numpy scalar becomes a float",
    "what is no finite number fails the grade",
)
class DoesNotCheckRewards(PlainBackend):
    async def sample_from(self, *given: Any) -> RolloutSample | None:
        sample = await super().sample_from(*given)
        return None if sample is None else UncheckedSample.model_construct(**dict(sample))


@breaks("3.5", "the answer keeps the reward the grader gave")
class NullsTheRewardThatDoesNotCount(PlainBackend):
    async def run_grader(self, rollout: Rollout, result: ExecutionResult) -> ExecutionResult:
        graded = await super().run_grader(rollout, result)
        sample = graded.sample
        if sample is not None and (sample.remove_sample or not graded.succeeded):
            sample.reward = None
        return graded
