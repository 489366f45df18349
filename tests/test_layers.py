"""Every module has its floor in the house, and the check of the floors can fail."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
LAYERS = next(c["layers"] for c in CONTRACTS["contracts"] if c["id"] == "layers")
FLOORS = [name.strip(" ()") for layer in LAYERS for name in layer.replace("|", ":").split(":")]


def test_every_module_has_its_layer() -> None:
    """A module without one would be checked by nothing."""
    modules = {
        ".".join(file.relative_to(ROOT).with_suffix("").parts)
        for file in (ROOT / "osmosis_ai").rglob("*.py")
        if file.name != "__init__.py"
    }
    homeless = {m for m in modules if not any(f"{m}.".startswith(f"{f}.") for f in FLOORS)}
    assert homeless == set()


def test_an_import_that_points_upward_is_found(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "osmosis_ai", tmp_path / "osmosis_ai")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    assert _lint_imports(tmp_path).returncode == 0
    with (tmp_path / "osmosis_ai/errors.py").open("a") as errors:
        errors.write("\nfrom osmosis_ai.rollout.types import Messages\n")
    broken = _lint_imports(tmp_path)
    assert broken.returncode == 1
    assert "osmosis_ai.errors is not allowed to import osmosis_ai.rollout.types" in broken.stdout


def _lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-cache"],
        cwd=folder,
        capture_output=True,
        check=False,
        text=True,
        env={"PYTHONPATH": str(folder)},
    )
