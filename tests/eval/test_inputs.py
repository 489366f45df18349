"""What a run was made from: all of it, and nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from osmosis_ai.errors import ConfigError
from osmosis_ai.eval.inputs import Inputs, changed_inputs, describe_inputs
from tests.eval.workspace import MINIMAL, Workspace


def inputs(workspace: Workspace) -> Inputs:
    return describe_inputs(workspace.config(), workspace.dataset())


@pytest.fixture
def code(workspace: Workspace) -> Path:
    return workspace.root / "rollouts" / "hello"


def test_the_same_inputs_are_the_same(workspace: Workspace) -> None:
    assert inputs(workspace) == inputs(workspace)
    assert changed_inputs(inputs(workspace), inputs(workspace)) == []


@pytest.mark.parametrize(
    "name",
    [
        "__pycache__/main.pyc",
        "x.pyc",
        ".git/HEAD",
        ".venv/bin/python",
        "hello.egg-info/PKG-INFO",
        ".mypy_cache/x",
        ".main.py.swp",
    ],
)
def test_caches_are_no_code(workspace: Workspace, code: Path, name: str) -> None:
    """Running a rollout must not change what it is."""
    before = inputs(workspace)
    (code / name).parent.mkdir(parents=True, exist_ok=True)
    (code / name).write_text("x")
    assert inputs(workspace) == before


def test_each_changed_file_is_named(workspace: Workspace, code: Path) -> None:
    (code / "old.txt").write_text("x")
    before = inputs(workspace)
    (code / "old.txt").unlink()
    (code / "main.py").write_text("changed")
    (code / "prompts").mkdir()
    (code / "prompts" / "new.md").write_text("x")
    assert changed_inputs(before, inputs(workspace)) == [
        "code: main.py changed",
        "code: old.txt is gone",
        "code: prompts/new.md is new",
    ]


def test_many_changed_files_are_counted(workspace: Workspace, code: Path) -> None:
    before = inputs(workspace)
    for index in range(8):
        (code / f"{index}.py").write_text("x")
    lines = changed_inputs(before, inputs(workspace))
    assert lines[4:] == ["code: 4.py is new", "code: and 3 more files"]


def test_links_and_odd_files_are_code_too(workspace: Workspace, code: Path) -> None:
    (code / "linked.py").symlink_to("main.py")
    (code / "dangling").symlink_to("nowhere")
    (code / "directory").symlink_to("..")
    os.mkfifo(code / "pipe")
    (code / os.fsdecode(b"\xff.txt")).write_text("x")
    before = inputs(workspace)
    assert changed_inputs(before, inputs(workspace)) == []
    (code / "directory").unlink()
    (code / "directory").symlink_to("../..")
    assert changed_inputs(before, inputs(workspace)) == ["code: directory changed"]


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs a file no one can read")
def test_code_that_cannot_be_read_is_one_sentence(workspace: Workspace, code: Path) -> None:
    (code / "memory").symlink_to("/proc/self/mem")
    with pytest.raises(ConfigError, match=r"cannot read .*/memory: Input/output error"):
        inputs(workspace)


def test_a_changed_data_set_is_named_with_its_size(workspace: Workspace) -> None:
    before = inputs(workspace)
    workspace.write_rows([{"user_prompt": "q", "ground_truth": "a"}])
    assert changed_inputs(before, inputs(workspace)) == [
        "the data set changed (it had 4 rows, and has 1)"
    ]
    workspace.write_rows({"user_prompt": "q", "ground_truth": "b"} for _ in range(4))
    assert changed_inputs(before, inputs(workspace)) == ["the data set changed"]


def test_a_moved_data_set_is_the_same(workspace: Workspace) -> None:
    before = inputs(workspace)
    data = workspace.root / "data"
    (data / "hello.jsonl").rename(data / "other.jsonl")
    (data / "hello.jsonl").symlink_to("other.jsonl")
    assert inputs(workspace) == before


def test_changed_settings_are_named_with_both_values(workspace: Workspace) -> None:
    before = inputs(workspace)
    workspace.write_config(
        MINIMAL.replace("policy:reply", "policy:other")
        + "[evaluation]\nagent_workflow_timeout_s = 5\n[model]\nparams = { t = 1 }\n"
    )
    assert changed_inputs(before, inputs(workspace)) == [
        "evaluation.agent_workflow_timeout_s was None, is now 5.0",
        "experiment.model_path was 'scripted:policy:reply', is now 'scripted:policy:other'",
        "model.params was {}, is now {'t': 1}",
    ]


def test_what_only_reads_results_or_sets_the_pace_may_change(workspace: Workspace) -> None:
    before = inputs(workspace)
    workspace.write_config(
        MINIMAL
        + "[evaluation]\nn = 3\nlimit = 2\nbatch_size = 9\npass_threshold = 0.5\n"
        + "workflow_failed_reward = 0\n[model]\nmax_retries = 9\n[advanced]\nx = 1\n"
    )
    assert changed_inputs(before, inputs(workspace)) == []


def test_values_that_json_lacks_are_compared_as_they_are_kept(workspace: Workspace) -> None:
    """TOML has dates and NaN; a run with them must still resume."""
    workspace.write_config(MINIMAL + "[model]\nparams = { day = 2026-01-01, x = nan }\n")
    assert changed_inputs(inputs(workspace), inputs(workspace)) == []
