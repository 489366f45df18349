"""Mutants of clauses 3.6 and 3.7: the wrong surroundings, the wrong sample."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import fields, replace
from typing import Any

from osmosis_ai.rollout.agent_workflow import AgentWorkflowOutput
from osmosis_ai.rollout.backend.base import ResultCallback
from osmosis_ai.rollout.context import RolloutContext, SampleSource, get_rollout_context
from osmosis_ai.rollout.types import ExecutionRequest, ExecutionResult, RolloutSample
from tests.mutants.mutant import breaks
from tests.mutants.plain import PlainBackend


@breaks(
    "3.6",
    "workflow and grader see the callers context",
    "a thread sees the context of its rollout",
    "the grader is given the contexts project path",
)
class IgnoresTheCallersContext(PlainBackend):
    def context_for(self, request: ExecutionRequest) -> RolloutContext:
        return RolloutContext(rollout_id=request.id)


@breaks("3.6", "workflow and grader see the callers context")
class GivesTheGraderAnEmptyContext(PlainBackend):
    @asynccontextmanager
    async def ambient_of_grader(self, request: ExecutionRequest) -> AsyncIterator[RolloutContext]:
        supplied = self.context_for(request)
        with RolloutContext(rollout_id=request.id, project_path=supplied.project_path) as context:
            yield context


@breaks("3.6", "the grader is given the contexts project path")
class DoesNotKnowTheProjectPath(PlainBackend):
    async def call_grader(
        self, request: ExecutionRequest, result: ExecutionResult, context: RolloutContext
    ) -> ExecutionResult:
        return await super().call_grader(request, result, replace(context, project_path=None))


@breaks("3.6", "a context without an id becomes the rollouts own")
class LeavesTheContextWithoutAnId(PlainBackend):
    def context_for(self, request: ExecutionRequest) -> RolloutContext:
        return get_rollout_context() or RolloutContext()


@breaks("3.6", "concurrent rollouts never see each others context")
class SharesOneContext(PlainBackend):
    shared: RolloutContext | None = None

    def context_for(self, request: ExecutionRequest) -> RolloutContext:
        self.shared = self.shared or super().context_for(request)
        return self.shared


@breaks("3.6", "the callers context is restored")
class LeavesItsContextBehind(PlainBackend):
    async def execute(
        self,
        request: ExecutionRequest,
        on_workflow_complete: ResultCallback,
        on_grader_complete: ResultCallback | None = None,
    ) -> None:
        replace(self.context_for(request)).__enter__()
        await super().execute(request, on_workflow_complete, on_grader_complete)


@breaks("3.6", "the callers context is restored")
class ResetsTheContextToNone(PlainBackend):
    async def execute(
        self,
        request: ExecutionRequest,
        on_workflow_complete: ResultCallback,
        on_grader_complete: ResultCallback | None = None,
    ) -> None:
        await super().execute(request, on_workflow_complete, on_grader_complete)
        while context := get_rollout_context():
            context.__exit__(None, None, None)


class SampleMutant(PlainBackend):
    """Base of mutants that change a sample when it is made."""

    async def sample_from(
        self, returned: Any, request: ExecutionRequest, context: RolloutContext
    ) -> RolloutSample | None:
        sample = await super().sample_from(returned, request, context)
        return None if sample is None else self.changed(sample, request)

    def changed(self, sample: RolloutSample, request: ExecutionRequest) -> RolloutSample:
        raise NotImplementedError


@breaks("3.7", "what run returns is the sample")
class ForgetsTheLabel(SampleMutant):
    def changed(self, sample: RolloutSample, request: ExecutionRequest) -> RolloutSample:
        return sample.model_copy(update={"label": None})


@breaks("3.7", "a registered source is asked when run has returned")
class OverwritesTheSourcesLabel(SampleMutant):
    def changed(self, sample: RolloutSample, request: ExecutionRequest) -> RolloutSample:
        return sample.model_copy(update={"label": request.label})


@breaks("3.7", "the outputs metrics reach the sample")
class DropsTheMetrics(SampleMutant):
    def changed(self, sample: RolloutSample, request: ExecutionRequest) -> RolloutSample:
        return sample.model_copy(update={"metrics": {}})


@breaks("3.7", "the archives messages are the users choice")
class ArchivesWhatWasDisabled(SampleMutant):
    def changed(self, sample: RolloutSample, request: ExecutionRequest) -> RolloutSample:
        given = {name: value for name, value in dict(sample).items() if value is not None}
        return RolloutSample(**given)


@breaks("3.7", "the archives messages are the users choice")
class DropsTheMessagesForTheArchive(SampleMutant):
    def changed(self, sample: RolloutSample, request: ExecutionRequest) -> RolloutSample:
        return RolloutSample(messages=sample.messages, label=sample.label)


@breaks("3.7", "an explicit output beats a source")
class PrefersTheSource(PlainBackend):
    async def sample_from(
        self, returned: Any, request: ExecutionRequest, context: RolloutContext
    ) -> RolloutSample | None:
        return await context.get_sample() or await super().sample_from(returned, request, context)


@breaks("3.7", "an output without messages is a success without sample")
class AsksTheSourceBehindAnOutputWithoutMessages(PlainBackend):
    async def sample_from(
        self, returned: Any, request: ExecutionRequest, context: RolloutContext
    ) -> RolloutSample | None:
        return await super().sample_from(returned, request, context) or await context.get_sample()


@breaks(
    "3.7",
    "an output without messages is a success without sample",
    "nothing at all is a success without sample",
)
class MakesAnEmptySampleOfNone(PlainBackend):
    async def sample_from(
        self, returned: Any, request: ExecutionRequest, context: RolloutContext
    ) -> RolloutSample | None:
        sample = await super().sample_from(returned, request, context)
        return sample or RolloutSample(label=request.label)


@breaks("3.7", "nothing at all is a success without sample")
class WantsASample(PlainBackend):
    async def sample_from(
        self, returned: Any, request: ExecutionRequest, context: RolloutContext
    ) -> RolloutSample | None:
        sample = await super().sample_from(returned, request, context)
        if sample is None:
            raise ValueError("run() gave no sample")
        return sample


@breaks("3.7", "a broken source fails the workflow")
class TakesABrokenSourceForNone(PlainBackend):
    async def sample_from(
        self, returned: Any, request: ExecutionRequest, context: RolloutContext
    ) -> RolloutSample | None:
        try:
            return await super().sample_from(returned, request, context)
        except ValueError:
            return None


@breaks("3.7", "a return that is no output fails the workflow")
class TakesAnyReturn(PlainBackend):
    async def sample_from(
        self, returned: Any, request: ExecutionRequest, context: RolloutContext
    ) -> RolloutSample | None:
        if isinstance(returned, str):
            returned = [{"role": "assistant", "content": returned}]
        return await super().sample_from(returned, request, context)


@breaks("3.7", "a return that is no output fails the workflow")
class DoesNotLookAtAnOutputAgain(PlainBackend):
    async def sample_from(
        self, returned: Any, request: ExecutionRequest, context: RolloutContext
    ) -> RolloutSample | None:
        if isinstance(returned, AgentWorkflowOutput) and returned.messages is not None:
            return RolloutSample(messages=returned.messages, metrics=returned.metrics)
        return await super().sample_from(returned, request, context)


class HastyContext(RolloutContext):
    """Takes the sample when the source registers."""

    hasty: RolloutSample | None = None

    def set_sample_source(self, source: SampleSource) -> None:
        super().set_sample_source(source)
        try:
            source.get_sample().send(None)
        except StopIteration as answered:
            self.hasty = answered.value.model_copy(deep=True)

    async def get_sample(self) -> RolloutSample | None:
        return self.hasty


class LenientContext(RolloutContext):
    """Takes a second source for the first."""

    def set_sample_source(self, source: SampleSource) -> None:
        self.sample_source = source


class ContextMutant(PlainBackend):
    """Base of mutants with a context class of their own."""

    context_class: type[RolloutContext] = RolloutContext

    def context_for(self, request: ExecutionRequest) -> RolloutContext:
        context = super().context_for(request)
        given = {one.name: getattr(context, one.name) for one in fields(context)}
        return self.context_class(**given)


@breaks("3.7", "a registered source is asked when run has returned")
class AsksTheSourceTooEarly(ContextMutant):
    context_class = HastyContext


@breaks("3.7", "a second source is refused")
class AcceptsASecondSource(ContextMutant):
    context_class = LenientContext
