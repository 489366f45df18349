"""Each rollout gets a directory where one can be made, and goes on where none can."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

import pytest

from osmosis_ai.rollout.artifacts import (
    ARTIFACT_ROOT_VARIABLE,
    artifact_root,
    make_artifacts_dir,
)
from osmosis_ai.rollout.context import RolloutContext


def context_of(root: Path | str) -> RolloutContext:
    return RolloutContext(artifact_root=Path(root))


def test_the_root_is_in_the_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert artifact_root() == str(tmp_path / ".osmosis")
    assert artifact_root(RolloutContext()) == str(tmp_path / ".osmosis")
    assert make_artifacts_dir("r") == tmp_path / ".osmosis" / "r" / "artifacts"


def test_the_environment_beats_the_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is read anew each time: a server may be told where to write after it started."""
    for name in ("one", "two"):
        monkeypatch.setenv(ARTIFACT_ROOT_VARIABLE, str(tmp_path / name))
        assert make_artifacts_dir("r") == tmp_path / name / "r" / "artifacts"


def test_an_empty_variable_is_none_at_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv(ARTIFACT_ROOT_VARIABLE, "")
    assert artifact_root() == str(tmp_path / ".osmosis")


def test_the_context_beats_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(ARTIFACT_ROOT_VARIABLE, str(tmp_path / "environment"))
    made = make_artifacts_dir("r", context=context_of(tmp_path / "context"))
    assert made == tmp_path / "context" / "r" / "artifacts"


def test_a_relative_root_does_not_move_with_the_working_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A workflow may change directory; its grader must still find what it wrote."""
    monkeypatch.chdir(tmp_path)
    made = make_artifacts_dir("r", context=context_of("runs"))
    assert made == tmp_path / "runs" / "r" / "artifacts"
    monkeypatch.setenv(ARTIFACT_ROOT_VARIABLE, "elsewhere")
    assert artifact_root() == str(tmp_path / "elsewhere")


def test_the_directory_exists_and_is_the_same_the_second_time(tmp_path: Path) -> None:
    """Workflow and grader share it, and so does a second try at the rollout."""
    made = make_artifacts_dir("r", context=context_of(tmp_path / "deep" / "root"))
    assert made is not None
    (made / "kept.txt").write_text("kept")
    assert make_artifacts_dir("r", context=context_of(tmp_path / "deep" / "root")) == made
    assert (made / "kept.txt").read_text() == "kept"


def test_a_root_is_probed_once(tmp_path: Path) -> None:
    """A file written for each rollout would cost more than the rollout."""
    root = tmp_path / "root"
    make_artifacts_dir("a", context=context_of(root))
    assert [path.name for path in root.iterdir()] == ["a"]
    (root / ".osmosis-health-check").mkdir()
    assert make_artifacts_dir("b", context=context_of(root)) is not None


def test_a_root_removed_under_a_running_server_is_made_again(tmp_path: Path) -> None:
    root = tmp_path / "root"
    make_artifacts_dir("a", context=context_of(root))
    shutil.rmtree(root)
    made = make_artifacts_dir("a", context=context_of(root))
    assert made is not None
    assert made.is_dir()


@pytest.mark.parametrize(
    "root",
    [
        "{tmp}/file",
        "{tmp}/file/root",
        "{tmp}/loop",
        "{tmp}/a\0b",
        "{tmp}/\ud800",
        "{tmp}/" + "x" * 300,
        "/dev/null{tmp}",
        "/proc{tmp}",
    ],
    ids=ascii,
)
def test_an_unusable_root_is_no_directory_and_one_warning(
    root: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Not even the superuser can write to these."""
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    context = context_of(root.format(tmp=tmp_path))
    with caplog.at_level(logging.WARNING, "osmosis_ai"):
        assert [make_artifacts_dir(name, context=context) for name in "abc"] == [None] * 3
    (record,) = caplog.records
    assert "rollouts go on without one" in record.getMessage()


def test_a_root_that_becomes_usable_is_used(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.write_text("in the way")
    assert make_artifacts_dir("a", context=context_of(root)) is None
    root.unlink()
    assert make_artifacts_dir("a", context=context_of(root)) == root / "a" / "artifacts"


def test_a_root_that_stops_being_usable_costs_no_rollout(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "root"
    make_artifacts_dir("a", context=context_of(root))
    shutil.rmtree(root)
    root.write_text("in the way")
    assert make_artifacts_dir("a", context=context_of(root)) is None
    assert len(caplog.records) == 1


@pytest.mark.parametrize("in_the_way", ["r", "r/artifacts"])
def test_a_file_in_the_way_of_one_rollout_costs_only_that_ones_directory(
    in_the_way: str, tmp_path: Path
) -> None:
    place = tmp_path / in_the_way
    place.parent.mkdir(exist_ok=True)
    place.write_text("in the way")
    assert make_artifacts_dir("r", context=context_of(tmp_path)) is None
    assert make_artifacts_dir("other", context=context_of(tmp_path)) is not None


def test_an_id_no_file_system_takes_has_no_directory(tmp_path: Path) -> None:
    assert make_artifacts_dir("x" * 300, context=context_of(tmp_path)) is None


def test_a_home_that_cannot_be_written_costs_no_rollout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", os.devnull)
    assert make_artifacts_dir("r") is None


@pytest.mark.parametrize("linked", ["r", "r/artifacts"])
def test_a_link_in_the_place_of_a_directory_is_not_followed_out(
    linked: str, tmp_path: Path
) -> None:
    """A rollout could else write, under its own id, wherever an earlier one had pointed."""
    elsewhere, root = tmp_path / "elsewhere", tmp_path / "root"
    (elsewhere / "artifacts").mkdir(parents=True)
    (root / linked).parent.mkdir(parents=True, exist_ok=True)
    (root / linked).symlink_to(elsewhere)
    context = RolloutContext(artifact_root=str(root))
    assert make_artifacts_dir("r", context=context) is None
    assert [path.name for path in elsewhere.iterdir()] == ["artifacts"]
