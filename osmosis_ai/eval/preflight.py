"""Preflight: what a rollout lacks is said before anything runs, or costs."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from osmosis_ai.declaration import meets, read_declaration


def find_unmet(rollout_dir: Path) -> Iterator[str]:
    """A sentence for each thing a rollout's `pyproject.toml` asks for that is not met here.

    Only what can be told for certain: a requirement with a marker or a URL is not judged, nor is a
    version that is no plain release number. A rollout without the file declares nothing.
    """
    path, declared = rollout_dir / "pyproject.toml", read_declaration(rollout_dir)
    if not meets(platform.python_version(), declared.python):
        yield f"{path} asks for Python {declared.python}: this is {platform.python_version()}"
    for requirement in declared.requirements:
        problem = _problem(requirement)
        if problem is not None:
            yield f"{path} asks for {requirement!r}: {problem}"


_REQUIREMENT = re.compile(
    r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[[^\]]*\])?\s*\(?([^;@()]*)\)?\s*"
)


def _problem(requirement: str) -> str | None:
    found = _REQUIREMENT.fullmatch(requirement)
    if found is None:
        return None
    name, clauses = found.groups()
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return "it is not installed"
    return None if meets(version, clauses) else f"{version} is installed"
