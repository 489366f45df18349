"""A name that is nearly another was meant to be that one; one that is far from all was not."""

from __future__ import annotations

import pytest

from osmosis_ai.hint import did_you_mean


@pytest.mark.parametrize(
    ("name", "known", "hint"),
    [
        ("shpo", ["shop", "multiply"], "; did you mean 'shop'?"),
        ("polcy", ["main", "policy"], "; did you mean 'policy'?"),
        ("nope", ["openai"], ""),
        ("nope", [], ""),
    ],
)
def test_only_what_is_near_is_offered(name: str, known: list[str], hint: str) -> None:
    assert did_you_mean(name, known) == hint
