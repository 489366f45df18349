"""Mutants of clauses 3.8 and 3.14: what is shared that must not be, and what is not refused."""

from __future__ import annotations

import copy
from typing import Any

from tests.mutants.mutant import breaks
from tests.mutants.plain import PlainBackend


@breaks("3.8", "each execution has its own copy of the workflow config")
class DoesNotCopyTheConfig(PlainBackend):
    def config_for_execution(self) -> Any:
        return self.workflow_config


@breaks("3.8", "each execution has its own copy of the workflow config")
class CopiesTheConfigShallowly(PlainBackend):
    def config_for_execution(self) -> Any:
        return copy.copy(self.workflow_config)


@breaks("3.8", "constructor and context are given the same copy")
class CopiesTheConfigTwice(PlainBackend):
    def config_for_constructor(self, config: Any) -> Any:
        return copy.deepcopy(config)


@breaks("3.8", "a workflow config that cannot be copied is refused")
class AcceptsAConfigThatCannotBeCopied(PlainBackend):
    def check_config(self) -> None:
        pass


@breaks("3.8", "the grader config is passed as it is")
class CopiesTheGraderConfig(PlainBackend):
    def build_grader(self) -> Any:
        return self.grader(copy.deepcopy(self.grader_config))


@breaks("3.8", "the prompt handed to a rollout is its own")
class SharesThePrompt(PlainBackend):
    def own(self, value: Any) -> Any:
        return value if isinstance(value, list) else super().own(value)


@breaks("3.8", "the metadata handed to a rollout is its own")
class SharesTheMetadata(PlainBackend):
    def own(self, value: Any) -> Any:
        return value if isinstance(value, dict) else super().own(value)


@breaks(
    "3.8",
    "the prompt handed to a rollout is its own",
    "the metadata handed to a rollout is its own",
)
class CopiesWhatItHandsOverShallowly(PlainBackend):
    def own(self, value: Any) -> Any:
        return copy.copy(value)


@breaks("3.14", "a synchronous run is refused")
class AcceptsASynchronousRun(PlainBackend):
    def check_is_async(self, target: Any, method: str) -> None:
        if method != "run":
            super().check_is_async(target, method)


@breaks("3.14", "a synchronous grade is refused")
class AcceptsASynchronousGrade(PlainBackend):
    def check_is_async(self, target: Any, method: str) -> None:
        if method != "grade":
            super().check_is_async(target, method)
