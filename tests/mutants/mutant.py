"""A mutant: a backend that breaks one promise, and the tests that must notice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from tests.mutants.plain import PlainBackend

B = TypeVar("B", bound=type[PlainBackend])

HANGS_SEC = 0.5
"""The patience of the suite with a mutant that never does what is waited for."""


@dataclass(frozen=True)
class Mutant:
    """One broken backend."""

    backend: type[PlainBackend]
    clause: str
    tests: tuple[str, ...]
    patience_sec: float

    @property
    def name(self) -> str:
        return self.backend.__name__


MUTANTS: list[Mutant] = []


def breaks(clause: str, *sentences: str, hangs: bool = False) -> Callable[[B], B]:
    """Register a mutant of a clause; `sentences` are the names of its tests without the clause.

    `hangs`: what the tests wait for never happens, and they need not wait long to know.
    """
    prefix = f"test_{clause.replace('.', '_')}_"

    def register(backend: B) -> B:
        tests = tuple(prefix + sentence.replace(" ", "_") for sentence in sentences)
        patience_sec = HANGS_SEC if hangs else 10.0
        MUTANTS.append(Mutant(backend, clause, tests, patience_sec))
        return backend

    return register
