"""Clause 3.14: synchronous user code is refused when the backend is built."""

from __future__ import annotations

import pytest

from osmosis_ai.testing.contract.base import BackendClauses
from osmosis_ai.testing.contract_workflows import Player, SyncJudge, SyncPlayer


class BuildingClauses(BackendClauses):
    """A mistake that every rollout would meet is told once, before the first."""

    async def test_3_14_a_synchronous_run_is_refused(self) -> None:
        """The error names the class and the method, and says what to write."""
        with pytest.raises(ValueError, match=r"SyncPlayer\.run .*async def"):
            self.make_backend(workflow=SyncPlayer)

    async def test_3_14_a_synchronous_grade_is_refused(self) -> None:
        """So does the grader's."""
        with pytest.raises(ValueError, match=r"SyncJudge\.grade .*async def"):
            self.make_backend(workflow=Player, grader=SyncJudge)
