"""The recipe for Pydantic AI."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pydantic_ai", reason="runs in the environment of Pydantic AI")

from tests.frameworks.recipe import said_of, solve


async def test_its_calls_become_samples(tmp_path: Path) -> None:
    samples = await solve("multiply-pydantic-ai", tmp_path)
    assert said_of(samples) == {("clean", "")}
