"""What a user wired together: a workflow, a grader and their configs, resolved and checked once."""

from __future__ import annotations

import copy
import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from osmosis_ai.errors import ConfigError
from osmosis_ai.rollout.agent_workflow import AgentWorkflow
from osmosis_ai.rollout.context import RolloutContext, SampleSource
from osmosis_ai.rollout.grader import Grader
from osmosis_ai.rollout.types import AgentWorkflowConfig, GraderConfig


@dataclass(frozen=True, slots=True)
class Program:
    """The classes and configs one backend runs."""

    workflow: type[AgentWorkflow[Any]]
    workflow_config: AgentWorkflowConfig | None = None
    grader: type[Grader] | None = None
    grader_config: GraderConfig | None = None
    capture: Callable[[RolloutContext], SampleSource] | None = None
    """Makes the sample source that each rollout begins with."""

    @property
    def max_concurrent(self) -> int | None:
        """How many executions may run at once: 4 without a config, else what the config says."""
        if self.workflow_config is None:
            return DEFAULT_MAX_CONCURRENT
        return self.workflow_config.concurrency.max_concurrent


DEFAULT_MAX_CONCURRENT = 4


def load_program(
    *,
    workflow: type[AgentWorkflow[Any]] | str,
    workflow_config: AgentWorkflowConfig | str | None = None,
    grader: type[Grader] | str | None = None,
    grader_config: GraderConfig | str | None = None,
) -> Program:
    """Resolve `"module:attr"` strings and refuse what could only fail later.

    Raises ConfigError (a ValueError) for what cannot be used and ImportError for an attribute that
    is not there; what importing a module raises passes through.
    """
    program = Program(
        workflow=_resolve(workflow),
        workflow_config=_resolve(workflow_config),
        grader=_resolve(grader),
        grader_config=_resolve(grader_config),
    )
    _check_class(program.workflow, role="workflow", method="run")
    if program.grader is not None:
        _check_class(program.grader, role="grader", method="grade")
    if program.workflow_config is None:
        return program
    _check_config(program.workflow_config)
    if program.workflow_config.capture is None:
        return program
    return replace(program, capture=_resolve(_CAPTURES[program.workflow_config.capture]))


# By name: what makes samples of other programs' calls knows this core, and not the reverse.
_CAPTURES = {"endpoint": "osmosis_ai.rollout.integrations.recorder:EndpointSampleSource"}


def _resolve(value: Any) -> Any:
    if not isinstance(value, str):
        return value or None
    if not value:
        return None
    module_name, colon, attribute = value.rpartition(":")
    if not colon or not attribute or not module_name or module_name.startswith("."):
        raise ConfigError(f"Invalid import path {value!r}, expected 'module:attr' format")
    found = getattr(importlib.import_module(module_name), attribute, None)
    if found is None:
        raise ImportError(f"{module_name} does not export {attribute!r}", name=module_name)
    return found


def _check_class(target: Any, *, role: str, method: str) -> None:
    if not isinstance(target, type):
        raise ConfigError(
            f"{role} must be a class, got {target!r}: pass the class itself", key=role
        )
    function = getattr(target, method, None)
    abstract = sorted(getattr(target, "__abstractmethods__", ()))
    if function is None or abstract:
        missing = ", ".join(f"{name}()" for name in abstract or [method])
        raise ConfigError(f"{role} {target.__name__} does not define {missing}", key=role)
    if not _is_coroutine_function(function):
        raise ConfigError(
            f"{role} {target.__name__}.{method} is not a coroutine: write `async def {method}`, "
            "and put blocking code into `await asyncio.to_thread(...)`",
            key=role,
        )


def _is_coroutine_function(function: Any) -> bool:
    """Whether it is one itself, or a decorator's wrapper round one."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        inspect.unwrap(function)
    )


def _check_config(config: Any) -> None:
    if not isinstance(config, AgentWorkflowConfig):
        raise ConfigError(
            f"workflow_config must be an AgentWorkflowConfig, got {type(config).__name__}",
            key="workflow_config",
        )
    try:
        copy.deepcopy(config)
    except Exception as exc:  # a copy runs whatever the config's values define
        raise ConfigError(
            f"workflow_config {config.name!r} cannot be copied, and each execution gets a copy: "
            f"{str(exc) or type(exc).__name__}. Build what cannot be copied inside run().",
            key="workflow_config",
        ) from exc
