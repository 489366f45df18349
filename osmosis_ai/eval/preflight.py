"""Preflight: what a rollout lacks is said before anything runs, or costs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import metadata
from itertools import zip_longest
from operator import eq, ge, gt, le, lt, ne
from pathlib import Path

from osmosis_ai.environment import declared_dependencies


def find_unmet(rollout_dir: Path) -> Iterator[str]:
    """A sentence for each dependency in a rollout's `pyproject.toml` that is not met here.

    Only what can be told for certain: a requirement with a marker or a URL is not judged, nor is a
    version that is no plain release number. A rollout without the file declares nothing.
    """
    path = rollout_dir / "pyproject.toml"
    for requirement in declared_dependencies(rollout_dir):
        problem = _problem(requirement)
        if problem is not None:
            yield f"{path} asks for {requirement!r}: {problem}"


_REQUIREMENT = re.compile(
    r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[[^\]]*\])?\s*\(?([^;@()]*)\)?\s*"
)
_CLAUSE = re.compile(r"(>=|<=|==|!=|<|>)\s*(\d+(?:\.\d+)*)")
_RELEASE = re.compile(r"\d+(?:\.\d+)*")
_COMPARE = {">=": ge, "<=": le, "==": eq, "!=": ne, "<": lt, ">": gt}


def _problem(requirement: str) -> str | None:
    found = _REQUIREMENT.fullmatch(requirement)
    if found is None:
        return None
    name, clauses = found.groups()
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return "it is not installed"
    if _RELEASE.fullmatch(version) is None:
        return None
    if all(_holds(version, clause.strip()) for clause in clauses.split(",")):
        return None
    return f"{version} is installed"


def _holds(version: str, clause: str) -> bool:
    """Whether a release meets a clause; one that is no plain comparison is taken to hold."""
    found = _CLAUSE.fullmatch(clause)
    if found is None:
        return True
    operator, bound = found.groups()
    pairs = zip_longest(_numbers(version), _numbers(bound), fillvalue=0)
    ours, theirs = zip(*pairs, strict=True)
    return bool(_COMPARE[operator](ours, theirs))


def _numbers(release: str) -> list[int]:
    return [int(part) for part in release.split(".")]
