"""What is wired wrongly is refused when the backend is built, with advice."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.errors import ConfigError
from osmosis_ai.rollout.agent_workflow import AgentWorkflow
from osmosis_ai.rollout.backend.local import LocalBackend
from osmosis_ai.rollout.context import AgentWorkflowContext, GraderContext
from osmosis_ai.rollout.grader import Grader
from osmosis_ai.rollout.integrations.recorder import EndpointSampleSource
from osmosis_ai.rollout.program import Program, load_program
from osmosis_ai.rollout.types import AgentWorkflowConfig, ConcurrencyConfig, GraderConfig
from tests.rollout.programs import Answering, RewardOne

MODULE = """
from osmosis_ai.rollout import (
    AgentWorkflow, AgentWorkflowConfig, Grader, GraderConfig,
)

class MyWorkflow(AgentWorkflow):
    async def run(self, ctx): ...

class MyGrader(Grader):
    async def grade(self, ctx): ...

workflow_config = AgentWorkflowConfig(name="mine")
grader_config = GraderConfig(name="mine")
nothing = None
empty = {}
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of an importable module with one of everything."""
    name = "wired_by_path"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, name, raising=False)
    return name


def test_objects_are_taken_as_they_are() -> None:
    workflow_config, grader_config = AgentWorkflowConfig(name="w"), GraderConfig(name="g")
    program = load_program(
        workflow=Answering,
        workflow_config=workflow_config,
        grader=RewardOne,
        grader_config=grader_config,
    )
    assert program == Program(Answering, workflow_config, RewardOne, grader_config)


def test_each_argument_may_be_an_import_path(module: str) -> None:
    program = load_program(
        workflow=f"{module}:MyWorkflow",
        workflow_config=f"{module}:workflow_config",
        grader=f"{module}:MyGrader",
        grader_config=f"{module}:grader_config",
    )
    imported = sys.modules[module]
    assert program == Program(
        imported.MyWorkflow,
        imported.workflow_config,
        imported.MyGrader,
        imported.grader_config,
    )


@pytest.mark.parametrize("nothing", [None, ""])
def test_what_is_empty_was_not_given(nothing: Any) -> None:
    program = load_program(
        workflow=Answering, workflow_config=nothing, grader=nothing, grader_config=nothing
    )
    assert program == Program(Answering)


@pytest.mark.parametrize("path", ["module", "module.Class", ":Class", "module:", ":", ".m:Class"])
def test_a_malformed_import_path_says_what_one_looks_like(path: str) -> None:
    with pytest.raises(ConfigError, match="expected 'module:attr' format") as caught:
        load_program(workflow=path)
    assert repr(path) in str(caught.value)


def test_a_module_that_is_not_there_is_not_found() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        load_program(workflow="no_such_module:MyWorkflow")


def test_the_module_ends_at_the_last_colon() -> None:
    with pytest.raises(ModuleNotFoundError, match="a:b"):
        load_program(workflow="a:b:MyWorkflow")


@pytest.mark.parametrize("attribute", ["Missing", "nothing"])
def test_an_attribute_that_is_not_there_is_an_import_error(module: str, attribute: str) -> None:
    with pytest.raises(ImportError, match=f"{module} does not export '{attribute}'") as caught:
        load_program(workflow=f"{module}:{attribute}")
    assert caught.value.name == module


def test_what_a_module_raises_passes_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "raises_on_import.py").write_text("raise RuntimeError('no weights')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RuntimeError, match="no weights"):
        load_program(workflow="raises_on_import:MyWorkflow")


@pytest.mark.parametrize("workflow", [None, "", Answering(), lambda ctx: None, 7])
def test_a_workflow_is_a_class(workflow: Any) -> None:
    with pytest.raises(ConfigError, match="workflow must be a class") as caught:
        load_program(workflow=workflow)
    assert caught.value.key == "workflow"


def test_a_grader_is_a_class() -> None:
    """An instance would be shared by all rollouts."""
    grader: Any = RewardOne()
    with pytest.raises(ConfigError, match="grader must be a class") as caught:
        load_program(workflow=Answering, grader=grader)
    assert caught.value.key == "grader"


class SyncRun(AgentWorkflow[AgentWorkflowConfig]):
    def run(self, ctx: AgentWorkflowContext) -> Any: ...


class GeneratorRun(AgentWorkflow[AgentWorkflowConfig]):
    async def run(self, ctx: AgentWorkflowContext) -> Any:
        yield


class SyncGrade(Grader):
    def grade(self, ctx: GraderContext) -> Any: ...


class NotCallable:
    run = "fast"


@pytest.mark.parametrize("workflow", [SyncRun, GeneratorRun, NotCallable])
def test_a_run_that_is_no_coroutine_is_refused_with_advice(workflow: Any) -> None:
    with pytest.raises(ConfigError, match=r"write `async def run`.*asyncio\.to_thread"):
        load_program(workflow=workflow)


def test_a_grade_that_is_no_coroutine_is_refused_with_advice() -> None:
    with pytest.raises(ConfigError, match=r"SyncGrade\.grade is not a coroutine"):
        load_program(workflow=Answering, grader=SyncGrade)


class Misspelt(AgentWorkflow[AgentWorkflowConfig]):
    async def rum(self, ctx: AgentWorkflowContext) -> Any: ...


class NoRun:
    pass


@pytest.mark.parametrize("workflow", [Misspelt, NoRun, AgentWorkflow])
def test_a_class_without_its_run_is_refused(workflow: Any) -> None:
    """Each rollout would fail with "Can't instantiate abstract class"."""
    with pytest.raises(ConfigError, match=r"does not define run\(\)"):
        load_program(workflow=workflow)


def test_every_abstract_method_that_is_missing_is_named() -> None:
    with pytest.raises(ConfigError, match=r"grader Grader does not define grade\(\)"):
        load_program(workflow=Answering, grader=Grader)


def logged(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any) -> Any:
        return function(*args)

    return wrapper


def awaiting(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def wrapper(*args: Any) -> Any:
        return function(*args)

    return wrapper


class Wrapped(AgentWorkflow[AgentWorkflowConfig]):
    @logged
    async def run(self, ctx: AgentWorkflowContext) -> Any: ...


class MadeAsync(AgentWorkflow[AgentWorkflowConfig]):
    @awaiting
    def run(self, ctx: AgentWorkflowContext) -> Any: ...


class DuckTyped:
    """No subclass, and works all the same."""

    def __init__(self, config: Any) -> None: ...

    async def run(self, ctx: AgentWorkflowContext) -> Any: ...


class Static(AgentWorkflow[AgentWorkflowConfig]):
    @staticmethod
    async def run(ctx: AgentWorkflowContext) -> Any: ...


@pytest.mark.parametrize("workflow", [Wrapped, MadeAsync, DuckTyped, Static])
def test_whatever_gives_a_coroutine_is_a_run(workflow: Any) -> None:
    assert load_program(workflow=workflow).workflow is workflow


class NoCopy:
    def __deepcopy__(self, memo: object) -> NoCopy:
        raise RuntimeError


@pytest.mark.parametrize(
    ("value", "reason"), [(threading.Lock(), "cannot pickle"), (NoCopy(), "RuntimeError")]
)
def test_a_config_that_cannot_be_copied_is_refused(value: object, reason: str) -> None:
    config = AgentWorkflowConfig.model_validate({"name": "mine", "client": value})
    with pytest.raises(ConfigError, match=f"'mine' cannot be copied.*{reason}") as caught:
        load_program(workflow=Answering, workflow_config=config)
    assert caught.value.key == "workflow_config"


@pytest.mark.parametrize("config", [{"name": "x"}, GraderConfig(name="x"), object()])
def test_a_workflow_config_is_one(config: Any) -> None:
    with pytest.raises(ConfigError, match="must be an AgentWorkflowConfig"):
        load_program(workflow=Answering, workflow_config=config)


def test_an_import_path_to_something_empty_is_no_config(module: str) -> None:
    with pytest.raises(ConfigError, match="must be an AgentWorkflowConfig, got dict"):
        load_program(workflow=Answering, workflow_config=f"{module}:empty")


def test_a_grader_config_is_passed_as_it_is() -> None:
    config = GraderConfig.model_validate({"name": "x", "lock": threading.Lock()})
    assert load_program(workflow=Answering, grader_config=config).grader_config is config


@pytest.mark.parametrize(
    ("config", "limit"),
    [
        (None, 4),
        (AgentWorkflowConfig(name="x"), None),
        (AgentWorkflowConfig(name="x", concurrency=ConcurrencyConfig(max_concurrent=7)), 7),
    ],
)
def test_the_config_says_how_many_run_at_once(
    config: AgentWorkflowConfig | None, limit: int | None
) -> None:
    assert Program(Answering, config).max_concurrent == limit
    backend = LocalBackend(workflow=Answering, workflow_config=config)
    assert backend.capacity().max == limit


def test_a_capture_is_found_by_its_name() -> None:
    config = AgentWorkflowConfig(name="x", capture="endpoint")
    assert load_program(workflow=Answering).capture is None
    program = load_program(workflow=Answering, workflow_config=config)
    assert program.capture is EndpointSampleSource


def test_a_backend_takes_keywords_alone_and_needs_a_workflow() -> None:
    backend: Any = LocalBackend
    with pytest.raises(TypeError):
        backend(Answering)
    with pytest.raises(TypeError, match="workflow"):
        backend()
