"""The recipe for Google ADK."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("google.adk", reason="runs in the environment of Google ADK")

from tests.frameworks.recipe import said_of, solve

# LiteLLM warns of itself, and the ADK of what is experimental in it.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")


async def test_its_calls_become_samples(tmp_path: Path) -> None:
    samples = await solve("multiply-google-adk", tmp_path)
    assert said_of(samples) == {("re-tokenised", "the arguments of a tool call were written anew")}
