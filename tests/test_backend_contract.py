"""LocalBackend keeps every clause of the backend contract, and so does the documented backend."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from osmosis_ai.rollout.backend.local import LocalBackend
from osmosis_ai.testing.backend_contract import BackendContract
from tests.isolated import run_python

PAGE = Path(__file__).parents[1] / "docs" / "backend-authors.md"
PYTHON_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class TestLocalBackend(BackendContract):
    can_enforce_timeouts = True

    def make_backend(self, **wiring: Any) -> LocalBackend:
        return LocalBackend(**wiring)


def test_the_documented_backend_passes_the_suite_in_a_project_of_its_own(tmp_path: Path) -> None:
    """Its two blocks are a whole test file: no configuration of ours, asserts as they come."""
    backend, suite, *_ = PYTHON_BLOCK.findall(PAGE.read_text())
    (tmp_path / "test_timed_backend.py").write_text(backend + suite)
    options = ["-q", "-p", "no:cacheprovider", "-c", os.devnull]
    printed = run_python("-m", "pytest", *options, "--rootdir", ".", cwd=tmp_path)
    assert re.search(r"\d{3} passed, \d skipped", printed), printed
