"""What a misspelt name was meant to be."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

LIKENESS = 0.65
"""From 0 to 1: names that are less alike than this are different names."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` where one of the known names is near, else nothing."""
    for close in get_close_matches(name, list(known), n=1, cutoff=LIKENESS):
        return f"; did you mean {close!r}?"
    return ""
