"""The recipe for LangGraph."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("langgraph", reason="runs in the environment of LangGraph")

from tests.frameworks.recipe import said_of, solve


async def test_its_calls_become_samples(tmp_path: Path) -> None:
    samples = await solve("multiply-langgraph", tmp_path)
    assert said_of(samples) == {("re-tokenised", "the arguments of a tool call were written anew")}
