"""`osmosis dataset validate` and `preview`, as a person or a program meets them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.cli.dataset import CELL_CHARS
from osmosis_ai.cli.main import main
from tests.eval.demo import make_demo

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workspace of five rows, and the current directory."""
    make_demo(tmp_path, "one", "two", "three", "four", "five")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def answer(capsys: Capture) -> dict[str, Any]:
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("name", ["demo", "data/demo.jsonl"])
def test_a_good_file_is_said_to_be_good(workspace: Path, capsys: Capture, name: str) -> None:
    assert main(["dataset", "validate", name, "--json"]) == 0
    data = answer(capsys)["data"]
    assert (data["rows"], data["mode"]) == (5, "prompt")
    assert data["columns"] == ["user_prompt", "ground_truth"]
    assert main(["dataset", "validate", name, "--plain"]) == 0
    assert capsys.readouterr().out == (
        "Rows: 5\nColumns: user_prompt, ground_truth\nMode: prompt\n"
    )


@pytest.mark.parametrize("name", ["demo", "data/demo.jsonl"])
def test_a_file_is_named_from_here(workspace: Path, capsys: Capture, name: str) -> None:
    assert main(["dataset", "validate", name]) == 0
    assert capsys.readouterr().out.startswith("data/demo.jsonl can be used\n")


def test_a_small_file_is_enough_for_this_machine(workspace: Path, capsys: Capture) -> None:
    row = '{"user_prompt": "q", "ground_truth": "a"}\n'
    (workspace / "data/small.jsonl").write_text(row * 2)
    assert main(["dataset", "validate", "small", "--plain"]) == 1
    assert capsys.readouterr().err == (
        "Error: data/small.jsonl has 2 rows: a hosted data set needs at least 4\n"
        "`osmosis eval run` takes the file as it is; --local checks for that alone.\n"
    )
    assert main(["dataset", "validate", "small", "--local", "--json"]) == 0
    assert answer(capsys)["data"] == {"path": "data/small.jsonl", "rows": 2}


@pytest.mark.parametrize(
    ("text", "named"),
    [("user_prompt;ground_truth\n1;2\n", "semicolons"), ("label\tuser_prompt\n", "tabs")],
)
def test_another_delimiter_is_recognised(
    workspace: Path, capsys: Capture, text: str, named: str
) -> None:
    (workspace / "data/other.csv").write_text(text)
    assert main(["dataset", "validate", "other", "--plain"]) == 1
    assert capsys.readouterr().err == (
        f"Error: data/other.csv: its cells seem to have {named} between them: save it with commas\n"
    )


def test_one_column_is_no_other_delimiter(workspace: Path, capsys: Capture) -> None:
    (workspace / "data/one.csv").write_text("metadata\n" + '"{""a"": 1}"\n' * 4)
    assert main(["dataset", "validate", "one"]) == 0


def test_a_bad_file_names_file_row_and_column(workspace: Path, capsys: Capture) -> None:
    (workspace / "data/bad.jsonl").write_text('{"user_prompt": "q"}\n')
    assert main(["dataset", "validate", "data/bad.jsonl", "--plain"]) == 1
    assert capsys.readouterr().err == (
        "Error: data/bad.jsonl: 1 row cannot be used:\n"
        "  - row 0 (line 1), ground_truth: is missing; the row has user_prompt\n"
    )


def test_a_preview_shows_rows_as_rollouts_get_them(workspace: Path, capsys: Capture) -> None:
    assert main(["dataset", "preview", "demo", "--rows", "2", "--json"]) == 0
    document = answer(capsys)
    assert (document["total_count"], document["has_more"]) == (5, True)
    assert document["items"][1]["prompt"] == [{"role": "user", "content": "two"}]
    assert (document["items"][1]["label"], document["items"][1]["metadata"]) == ("two", None)
    assert main(["dataset", "preview", "demo", "--rows", "1", "--plain"]) == 0
    assert capsys.readouterr().out == "0\tuser: one\tone\t\n"
    assert main(["dataset", "preview", "demo", "--rows", "9"]) == 0
    assert "of 5" not in capsys.readouterr().out
    assert main(["dataset", "preview", "demo"]) == 0
    assert main(["dataset", "preview", "demo", "--rows", "3"]) == 0
    assert capsys.readouterr().out.rstrip().endswith("3 of 5; --rows N shows more")


def test_a_preview_of_what_no_terminal_can_show(workspace: Path, capsys: Capture) -> None:
    """A large cell is cut, and a lone surrogate does not end the command."""
    row = {"user_prompt": "\ud800" + "x" * 10_000, "ground_truth": "a", "metadata": {"k": 1}}
    (workspace / "data/demo.jsonl").write_text(json.dumps(row) + "\n")
    assert main(["dataset", "preview", "demo", "--plain"]) == 0
    _, prompt, _, metadata = capsys.readouterr().out.rstrip("\n").split("\t")
    assert len(prompt) < CELL_CHARS + 30
    assert prompt.endswith("... (10,007 characters)")
    assert metadata == '{"k":1}'


def test_outside_of_a_workspace_a_name_is_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["dataset", "preview", "nothing.csv"]) == 1
    assert "cannot read nothing.csv: No such file" in capsys.readouterr().err
