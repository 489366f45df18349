"""Errors are for people, travel between processes, and are caught by the family they belong to."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest

from osmosis_ai import errors
from osmosis_ai.errors import (
    BackendError,
    BudgetError,
    ConfigError,
    DatasetError,
    GraderError,
    MissingExtraError,
    ModelError,
    OsmosisError,
    ProtocolError,
    RolloutError,
    RunError,
    WorkflowError,
)

EXAMPLES: list[OsmosisError] = [
    ConfigError("evaluation.n is 0", key="evaluation.n"),
    DatasetError("data.csv, row 3: no user_prompt"),
    MissingExtraError("install it", extra="ray", name="ray.remote", path="/somewhere"),
    RolloutError("failed", phase="grader", category="timeout"),
    ModelError("failed", phase="workflow"),
    WorkflowError("failed", category="agent_error"),
    GraderError("failed"),
    BackendError("failed"),
    BudgetError("used up"),
    ProtocolError("no such route", status_code=404),
    RunError("locked"),
]


def test_every_error_has_an_example_here() -> None:
    tree = {one for one in vars(errors).values() if _is_error(one)}
    assert tree == {type(example) for example in EXAMPLES} | {OsmosisError}


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("travel", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))])
def test_an_error_keeps_what_it_says_between_processes(
    error: OsmosisError, travel: Callable[[OsmosisError], OsmosisError]
) -> None:
    """A worker's error that cannot be unpickled would hide what went wrong there."""
    arrived = travel(error)
    assert type(arrived) is type(error)
    assert (str(arrived), vars(arrived)) == (str(error), vars(error))
    assert getattr(arrived, "name", None) == getattr(error, "name", None)


@pytest.mark.parametrize("error", [ModelError, WorkflowError, GraderError, BackendError])
def test_a_failed_rollout_is_one_family(error: type[RolloutError]) -> None:
    with pytest.raises(RolloutError):
        raise error("failed")


def test_a_config_error_is_a_value_error_and_names_its_key() -> None:
    """The documented behaviour of a wrong import path is a ValueError."""
    with pytest.raises(ValueError, match="n is 0") as caught:
        raise ConfigError("n is 0", key="evaluation.n")
    assert isinstance(caught.value, ConfigError)
    assert caught.value.key == "evaluation.n"


def test_a_missing_extra_is_a_module_not_found_error() -> None:
    with pytest.raises(ModuleNotFoundError, match="install it") as caught:
        raise MissingExtraError("install it", extra="ray", name="ray", path="/somewhere")
    assert (caught.value.name, caught.value.path) == ("ray", "/somewhere")


def _is_error(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, OsmosisError)
