"""Plays tests of a contract suite without a test runner, so that hundreds take seconds."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

Rejection = (AssertionError, pytest.fail.Exception, SystemExit)
"""How a test says no; SystemExit is the mutant's that lets it escape."""


def suite_tests(suite: type[Any]) -> list[str]:
    """The names of a suite's tests, sorted."""
    return [name for name in dir(suite) if name.startswith("test_")]


def play(suite: Any, name: str, root: Path) -> list[str]:
    """Run one test of the suite with all its parameters; what it objected to."""
    test = getattr(suite, name)
    objections: list[str] = []
    for index, parameters in enumerate(_parameters(test)):
        folder = root / f"{name}-{index}"
        folder.mkdir(parents=True)
        wants_folder = "tmp_path" in test.__code__.co_varnames
        given = {**parameters, **({"tmp_path": folder} if wants_folder else {})}
        try:
            _run(test(**given))
        except Rejection as objection:
            objections.append(f"{type(objection).__name__}: {objection}"[:300])
    return objections


def _run(test: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner() as runner:
        # Mutants leave tasks behind; complaints about them belong in no later test.
        runner.get_loop().set_exception_handler(lambda loop, context: None)
        runner.run(test)


def _parameters(test: Any) -> Iterator[dict[str, Any]]:
    """Every combination of the parameters that `pytest.mark.parametrize` gives a test."""
    marks = [mark for mark in getattr(test, "pytestmark", ()) if mark.name == "parametrize"]
    choices = [list(_choices(*mark.args[:2])) for mark in marks]
    for combination in itertools.product(*choices):
        yield {name: value for choice in combination for name, value in choice.items()}


def _choices(names: str | tuple[str, ...], values: Any) -> Iterator[dict[str, Any]]:
    for value in values:
        yield {names: value} if isinstance(names, str) else dict(zip(names, value, strict=True))
