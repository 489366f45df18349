"""BackendContract: the tests that every execution backend passes.

Inherit it, and say how your backend is built:

    class TestMyBackend(BackendContract):
        def make_backend(self, **wiring):
            return MyBackend(**wiring)

It wants pytest and pytest-asyncio. Each test bears the number of the clause it holds a backend
to, `test_3_3_…` for clause 3.3, and its docstring says what is promised there.
"""

from __future__ import annotations

from osmosis_ai.testing.contract.ambience import AmbientClauses
from osmosis_ai.testing.contract.building import BuildingClauses
from osmosis_ai.testing.contract.cancelling import CancelClauses
from osmosis_ai.testing.contract.control import ControlClauses
from osmosis_ai.testing.contract.copies import CopyClauses
from osmosis_ai.testing.contract.deadlines import DeadlineClauses
from osmosis_ai.testing.contract.failures import FailureClauses
from osmosis_ai.testing.contract.folders import FolderClauses
from osmosis_ai.testing.contract.grading import GradingClauses
from osmosis_ai.testing.contract.rewards import RewardClauses
from osmosis_ai.testing.contract.safety import SafetyClauses
from osmosis_ai.testing.contract.samples import SampleClauses
from osmosis_ai.testing.contract.slots import SlotClauses


class BackendContract(
    DeadlineClauses,
    FailureClauses,
    CancelClauses,
    GradingClauses,
    RewardClauses,
    AmbientClauses,
    SampleClauses,
    CopyClauses,
    SlotClauses,
    ControlClauses,
    FolderClauses,
    SafetyClauses,
    BuildingClauses,
):
    """What a backend promises, clause by clause; see `docs/backend-authors.md`."""


def clauses() -> dict[str, list[str]]:
    """The suite as a table: each clause, and the names of the tests that hold a backend to it."""
    table: dict[str, list[str]] = {}
    for name in dir(BackendContract):
        if name.startswith("test_"):
            _, chapter, number, _ = name.split("_", 3)
            table.setdefault(f"{chapter}.{number}", []).append(name)
    return {clause: table[clause] for clause in sorted(table, key=_place)}


def _place(clause: str) -> list[int]:
    return [int(part) for part in clause.split(".")]
