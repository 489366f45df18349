"""The recipe for smolagents."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("smolagents", reason="runs in the environment of smolagents")

from tests.frameworks.recipe import said_of, solve


async def test_its_calls_become_samples(tmp_path: Path) -> None:
    samples = await solve("multiply-smolagents", tmp_path)
    assert said_of(samples) == {("re-tokenised", "the text was changed when it was sent back")}
