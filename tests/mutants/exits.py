"""Mutants of clauses 3.11 to 3.13: folders in the wrong place, and results that do not get out."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import orjson

from osmosis_ai.rollout.artifacts import artifact_root, make_artifacts_dir
from osmosis_ai.rollout.context import RolloutContext
from osmosis_ai.rollout.safe_json import make_safe
from osmosis_ai.rollout.types import ExecutionRequest, ExecutionResult, RolloutSample
from tests.mutants.mutant import breaks
from tests.mutants.plain import PlainBackend, Rollout
from tests.mutants.surroundings import SampleMutant


@breaks("3.11", "files lie in the rollouts artifacts directory")
class UsesOneDirectoryForAll(PlainBackend):
    def artifacts_dir(self, request: ExecutionRequest, context: RolloutContext) -> Path | None:
        return make_artifacts_dir("all", context=context)


@breaks("3.11", "workflow and grader share the directory")
class GivesTheGraderADirectoryOfItsOwn(PlainBackend):
    def artifacts_dir_of_grader(
        self, request: ExecutionRequest, context: RolloutContext
    ) -> Path | None:
        return make_artifacts_dir(f"{request.id}-grader", context=context)


@breaks(
    "3.11",
    "the root is resolved for each execution",
    "without a contexts root the environment names it",
)
class CachesTheRoot(PlainBackend):
    root: Path | None = None

    def artifacts_dir(self, request: ExecutionRequest, context: RolloutContext) -> Path | None:
        self.root = self.root or Path(artifact_root(context))
        return make_artifacts_dir(request.id, context=replace(context, artifact_root=self.root))


@breaks("3.11", "the root is resolved for each execution")
class IgnoresTheContextsRoot(PlainBackend):
    def artifacts_dir(self, request: ExecutionRequest, context: RolloutContext) -> Path | None:
        return make_artifacts_dir(request.id)


@breaks("3.11", "without a contexts root the environment names it")
class IgnoresTheEnvironment(PlainBackend):
    def artifacts_dir(self, request: ExecutionRequest, context: RolloutContext) -> Path | None:
        root = context.artifact_root or Path.home() / ".osmosis"
        return make_artifacts_dir(request.id, context=replace(context, artifact_root=root))


@breaks("3.11", "an unusable root fails no rollout")
class FailsWithoutADirectory(PlainBackend):
    def artifacts_dir(self, request: ExecutionRequest, context: RolloutContext) -> Path | None:
        made = super().artifacts_dir(request, context)
        if made is None:
            raise OSError("no artifacts directory")
        return made


@breaks("3.11", "an unusable root fails no rollout")
class WarnsForEachRollout(PlainBackend):
    def artifacts_dir(self, request: ExecutionRequest, context: RolloutContext) -> Path | None:
        made = super().artifacts_dir(request, context)
        if made is None:
            logging.getLogger(__name__).warning("no directory under %s", artifact_root(context))
        return made


@breaks("3.11", "an unusable root fails no rollout")
class GoesOnWithoutAWord(PlainBackend):
    def artifacts_dir(self, request: ExecutionRequest, context: RolloutContext) -> Path | None:
        usable = not Path(artifact_root(context)).is_file()
        return super().artifacts_dir(request, context) if usable else None


@breaks("3.12", "a backend writes no trajectory")
class WritesATrajectory(PlainBackend):
    async def run_grader(self, rollout: Rollout, result: ExecutionResult) -> ExecutionResult:
        graded = await super().run_grader(rollout, result)
        folder = Path(artifact_root(self.context_for(rollout.request))) / rollout.request.id
        (folder / "trajectory.json").write_text("{}")
        return graded


@breaks("3.13", "a strange sample arrives with its reward")
class WantsSamplesThatJsonTakes(SampleMutant):
    def changed(self, sample: RolloutSample, request: ExecutionRequest) -> RolloutSample:
        orjson.dumps(sample.messages)
        return sample


@breaks("3.13", "a strange sample arrives with its reward")
class ChangesWithoutAMark(SampleMutant):
    def changed(self, sample: RolloutSample, request: ExecutionRequest) -> RolloutSample:
        return sample.model_copy(update={"messages": make_safe(sample.messages).value})


@breaks("3.13", "an errors text is made safe")
class PassesOnTheTextOfAnErrorAsItIs(PlainBackend):
    def failure(
        self, error: BaseException, request: ExecutionRequest, sample: RolloutSample | None
    ) -> ExecutionResult:
        result = super().failure(error, request, sample)
        return result.model_copy(update={"err_message": str(error)})
