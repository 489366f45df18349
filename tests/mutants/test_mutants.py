"""The contract suite rejects every broken backend, and leaves nothing unwatched."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.testing.backend_contract import BackendContract, clauses
from tests.mutants.mutant import MUTANTS, Mutant
from tests.mutants.plain import PlainBackend
from tests.mutants.play import play, suite_tests

for part in (
    "deadlines",
    "failures",
    "cancelling",
    "grading",
    "surroundings",
    "copies",
    "slots",
    "control",
    "exits",
):
    import_module(f"tests.mutants.{part}")

CLAUSES = [f"3.{number}" for number in range(1, 15)]


class TestPlainBackend(BackendContract):
    """What the mutants are made from is whole: else they would prove nothing."""

    can_enforce_timeouts = True

    def make_backend(self, **wiring: Any) -> PlainBackend:
        return PlainBackend(**wiring)


def suite_for(mutant: Mutant) -> BackendContract:
    class Suite(BackendContract):
        can_enforce_timeouts = True
        patience_sec = mutant.patience_sec

        def make_backend(self, **wiring: Any) -> PlainBackend:
            return mutant.backend(**wiring)

    return Suite()


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_the_suite_rejects_the_mutant(mutant: Mutant, tmp_path: Path) -> None:
    """Each test that is named for it objects."""
    suite = suite_for(mutant)
    spared = [name for name in mutant.tests if not play(suite, name, tmp_path)]
    assert spared == [], "these tests let the mutant pass"


def test_every_clause_has_tests_and_mutants() -> None:
    """The table is complete: no clause without tests, no test without a clause, all mutated."""
    mutants = [mutant.clause for mutant in MUTANTS]
    table = {clause: (len(tests), mutants.count(clause)) for clause, tests in clauses().items()}
    assert list(table) == CLAUSES
    assert [clause for clause, counts in table.items() if 0 in counts] == []


def test_every_test_of_the_suite_rejects_some_mutant() -> None:
    """A test that never fails holds nobody to anything."""
    rejecting = {name for mutant in MUTANTS for name in mutant.tests}
    assert sorted(rejecting) == suite_tests(BackendContract)


def test_a_mutants_tests_are_of_its_clause() -> None:
    table = clauses()
    assert [one.name for one in MUTANTS if not set(one.tests) <= set(table[one.clause])] == []


def test_the_page_for_backend_authors_names_every_clause() -> None:
    page = (Path(__file__).parents[2] / "docs" / "backend-authors.md").read_text()
    assert re.findall(r"^\| (3\.\d+) \|", page, re.MULTILINE) == CLAUSES
