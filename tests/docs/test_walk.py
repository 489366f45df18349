"""docs/walk.md tells the truth: its files and functions exist, and a run passes them in order."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
WALK = REPOSITORY / "docs/walk.md"
STOP = re.compile(r"`([\w/]+\.py)(?:: ([\w, ]+))?`")


def named(text: str) -> list[tuple[str, str | None]]:
    """Every file a text names, with each of its functions."""
    return [
        (file, function.strip() or None)
        for file, functions in STOP.findall(text)
        for function in functions.split(",")
    ]


def stops() -> list[str]:
    """The functions of the numbered table, top to bottom."""
    rows = re.findall(r"^\| \d \|.*$", WALK.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(rows) == 8, "the walk has eight stops"
    return [f"{file}: {function}" for row in rows for file, function in named(row)]


@pytest.mark.parametrize(("file", "function"), named(WALK.read_text(encoding="utf-8")))
def test_what_the_walk_names_exists(file: str, function: str | None):
    tree = ast.parse((REPOSITORY / "osmosis_ai" / file).read_text(encoding="utf-8"))
    defined = {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert function is None or function in defined, f"{file} defines no {function}"


def test_an_evaluation_passes_the_stops_in_this_order(tmp_path: Path):
    workspace = shutil.copytree(
        REPOSITORY / "examples/multiply",
        tmp_path / "workspace",
        ignore=shutil.ignore_patterns(".osmosis", "__pycache__"),
    )
    tracer = Path(__file__).with_name("walk_tracer.py")
    command = ["eval", "run", "configs/eval/multiply.toml", "--limit", "2"]
    done = subprocess.run(
        [sys.executable, str(tracer), *command],
        cwd=workspace,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    called = json.loads(done.stdout.splitlines()[-1])
    missing = [stop for stop in stops() if stop not in called]
    assert not missing, f"the run never came by {missing}"
    assert sorted(stops(), key=called.index) == stops()
