"""What a rollout declares in its `pyproject.toml`, and what can be told of it with no resolver."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from itertools import zip_longest
from operator import eq, ge, gt, le, lt, ne
from pathlib import Path
from typing import Any

from osmosis_ai.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Declaration:
    """What a rollout needs, as its file says it."""

    requirements: tuple[str, ...] = ()
    """`[project] dependencies`."""
    python: str = ""
    """`[project] requires-python`; empty where any will do."""


def read_declaration(rollout_dir: Path) -> Declaration:
    """What a rollout declares; nothing where it has no such file.

    Raises ConfigError where the file cannot be read.
    """
    path = rollout_dir / "pyproject.toml"
    try:
        project: Any = tomllib.loads(path.read_text("utf-8")).get("project", {})
    except FileNotFoundError:
        return Declaration()
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if not isinstance(project, dict):
        return Declaration()
    declared, python = project.get("dependencies", []), project.get("requires-python", "")
    listed = declared if isinstance(declared, list) else []
    return Declaration(
        tuple(one for one in listed if isinstance(one, str)),
        python if isinstance(python, str) else "",
    )


def meets(version: str, clauses: str) -> bool:
    """Whether a release meets clauses such as `>=2,<3`; what cannot be told is taken to be met.

    That is a version that is no plain release number, and a clause that is no plain comparison.
    """
    if _RELEASE.fullmatch(version) is None:
        return True
    return all(_holds(version, clause.strip()) for clause in clauses.split(","))


_CLAUSE = re.compile(r"(>=|<=|==|!=|<|>)\s*(\d+(?:\.\d+)*)")
_RELEASE = re.compile(r"\d+(?:\.\d+)*")
_COMPARE = {">=": ge, "<=": le, "==": eq, "!=": ne, "<": lt, ">": gt}


def _holds(version: str, clause: str) -> bool:
    found = _CLAUSE.fullmatch(clause)
    if found is None:
        return True
    operator, bound = found.groups()
    pairs = zip_longest(_numbers(version), _numbers(bound), fillvalue=0)
    ours, theirs = zip(*pairs, strict=True)
    return bool(_COMPARE[operator](ours, theirs))


def _numbers(release: str) -> list[int]:
    return [int(part) for part in release.split(".")]
