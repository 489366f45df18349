"""Habits of this code that no linter knows."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = sorted((ROOT / "osmosis_ai").rglob("*.py"))
BROAD = {"BaseException", "Exception", ""}


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_module_says_its_idea_first(module: Path) -> None:
    assert ast.get_docstring(ast.parse(module.read_text()))


def test_a_broad_except_says_whose_failure_it_stops() -> None:
    """On its own line or the next: without it, nobody dares to narrow it."""
    silent = [
        f"{module.relative_to(ROOT)}:{line}"
        for module in MODULES
        for line in _silent_broad_excepts(module.read_text())
    ]
    assert silent == []


def test_a_silent_broad_except_is_found() -> None:
    code = "try:\n    pass\nexcept (OSError, Exception):\n    pass\n"
    assert _silent_broad_excepts(code) == [3]
    assert _silent_broad_excepts(code.replace("n):\n", "n):  # the user's\n")) == []
    assert _silent_broad_excepts(code.replace("Exception", "ValueError")) == []
    assert _silent_broad_excepts("try:\n    pass\nexcept:\n    pass\n") == [3]


def _silent_broad_excepts(source: str) -> list[int]:
    lines = source.splitlines()
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ExceptHandler)
        and BROAD & _caught(node)
        and not any("#" in line for line in lines[node.lineno - 1 : node.lineno + 1])
    ]


def _caught(handler: ast.ExceptHandler) -> set[str]:
    if handler.type is None:
        return {""}
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return {ast.unparse(kind) for kind in kinds}
