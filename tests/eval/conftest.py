"""A workspace for each test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.eval.workspace import Workspace, make_workspace


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """Four rows, one rollout, one config."""
    return make_workspace(tmp_path / "ws")
