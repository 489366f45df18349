"""A dry run shows what would run, and runs nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from osmosis_ai.cli.main import main
from tests.eval.demo import make_demo

Capture = pytest.CaptureFixture[str]
DRY = ("eval", "run", "configs/eval/demo.toml", "-n", "3", "--limit", "2", "--dry-run")


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    make_demo(tmp_path, "one", "two", "three")
    (tmp_path / "rollouts/demo/main.py").write_text("raise AssertionError('it was run')\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_dry_run_shows_config_and_counts_and_runs_nothing(
    workspace: Path, capsys: Capture
) -> None:
    assert main([*DRY, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)["data"]
    assert (data["items"], data["selected_rows"], data["total_rows"]) == (6, "0-1", 3)
    assert data["config"]["evaluation"]["n"] == 3
    assert data["config"]["model"]["max_retries"] == 3
    assert not (workspace / ".osmosis").exists()


def test_a_dry_run_is_lines_for_a_person(workspace: Path, capsys: Capture) -> None:
    assert main([*DRY, "--plain"]) == 0
    out = capsys.readouterr().out
    assert 'env.DEMO_GREETING: "hello"\n' in out
    assert "evaluation.limit: 2\n" in out
    assert "batch_size" not in out
    assert "Rollouts: 6 (2 of 3 rows, 3 times each)\n" in out
