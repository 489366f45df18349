"""A missing optional package is one sentence with the install line; other errors pass."""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from osmosis_ai._extras import _PACKAGES, requires_extra
from osmosis_ai.errors import MissingExtraError

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

ALIASES = {"eval", "eval-run", "full"}
"""Extras made of other extras alone: their packages are named by those."""

PLACES = {
    "agents": {"osmosis_ai/rollout/integrations/agents/openai_agents"},
    "fastapi": {
        "osmosis_ai/rollout/server/",
        "osmosis_ai/rollout/controller/",
        "osmosis_ai/testing/",
        "osmosis_ai/viewer/",
    },
    "harbor": {"osmosis_ai/rollout/backend/harbor/"},
    "ray": {"osmosis_ai/rollout/backend/ray.py"},
    "strands": {"osmosis_ai/rollout/integrations/agents/strands"},
}
"""Where an optional package may be imported; every other place goes through it."""


@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of an optional package that the import system will not find."""
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.delitem(sys.modules, "math_verify", raising=False)
    return "math_verify"


def test_an_absent_package_names_the_feature_and_the_install_line(absent: str) -> None:
    with (
        pytest.raises(MissingExtraError) as caught,
        requires_extra("graders", "MathGrader"),
    ):
        import_module(absent)
    assert str(caught.value) == (
        "MathGrader needs the package math_verify, which is not installed: "
        'pip install "osmosis-ai[graders]"'
    )
    assert (caught.value.extra, caught.value.name) == ("graders", absent)
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


def test_another_extras_package_is_not_blamed_on_this_one(absent: str) -> None:
    """An install line for the wrong extra would send its reader in a circle."""
    with pytest.raises(ModuleNotFoundError) as caught, requires_extra("ray", "RayBackend"):
        import_module(absent)
    assert not isinstance(caught.value, MissingExtraError)


def test_a_missing_part_of_an_installed_package_is_not_a_missing_extra() -> None:
    """`pip install` would answer that all is there, and the reader would look in vain."""
    with (
        pytest.raises(ModuleNotFoundError, match="no_such_part") as caught,
        requires_extra("server", "create_rollout_server"),
    ):
        import_module("aiohttp.no_such_part")
    assert not isinstance(caught.value, MissingExtraError)


def test_an_error_inside_the_guarded_import_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "math_verify.py").write_text("raise RuntimeError('broken installation')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "math_verify", raising=False)
    with (
        pytest.raises(RuntimeError, match="broken installation"),
        requires_extra("graders", "MathGrader"),
    ):
        import_module("math_verify")


def test_every_declared_extra_has_its_packages() -> None:
    assert set(PROJECT["optional-dependencies"]) - ALIASES == set(_PACKAGES)


def test_the_extras_are_those_of_the_contract() -> None:
    assert list(PROJECT["optional-dependencies"]) == [
        "server", "eval", "eval-run", "view", "strands", "openai-agents", "openai", "litellm",
        "harbor", "ray", "rubric", "graders", "parquet", "datasets", "telemetry", "train", "full",
    ]  # fmt: skip


def test_full_holds_every_extra_that_is_not_gigabytes() -> None:
    full = " ".join(PROJECT["optional-dependencies"]["full"])
    named = {name for part in full.split("[")[1:] for name in part.split("]")[0].split(",")}
    assert named == set(PROJECT["optional-dependencies"]) - {"full", "eval-run", "train"}


def test_an_optional_package_is_imported_in_its_place_alone() -> None:
    """One place per package keeps the rest importable without it."""
    strays = [
        f"{path} imports {package}"
        for path, package in _imports(ROOT / "osmosis_ai")
        if package in PLACES and not path.startswith(tuple(PLACES[package]))
    ]
    assert strays == []


def _imports(package: Path) -> Iterator[tuple[str, str]]:
    for file in sorted(package.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            for name in _imported_names(node):
                yield file.relative_to(package.parent).as_posix(), name.split(".")[0]


def _imported_names(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.level == 0:
        return [node.module or ""]
    return []
