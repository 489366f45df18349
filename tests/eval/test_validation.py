"""Every rule of the data set format, and where a file breaks it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.errors import DatasetError
from osmosis_ai.eval.validation import MAX_BYTES, validate_dataset

GOOD = {"user_prompt": "q", "ground_truth": "a"}


def write(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def jsonl(tmp_path: Path) -> Path:
    return tmp_path / "data.jsonl"


def fault(path: Path) -> str:
    with pytest.raises(DatasetError) as caught:
        validate_dataset(path)
    return str(caught.value)


def test_a_good_file_says_what_it_holds(jsonl: Path) -> None:
    found = validate_dataset(write(jsonl, *[GOOD] * 4))
    assert (found.rows, found.columns, found.mode) == (4, ("user_prompt", "ground_truth"), "prompt")
    rows = [{"metadata": {"a": 1, "b": [{"c": "x"}, None]}}, {"metadata": '{"a": 0.5, "b": null}'}]
    assert validate_dataset(write(jsonl, *rows, *rows)).mode == "metadata"


@pytest.mark.parametrize(
    ("count", "message"), [(0, "has no rows"), (1, "has 1 row:"), (3, "has 3 rows: a hosted")]
)
def test_a_hosted_data_set_has_four_rows(jsonl: Path, count: int, message: str) -> None:
    assert message in fault(write(jsonl, *[GOOD] * count))


HERE = "\n`osmosis eval run` takes the file as it is; --local checks for that alone."


def test_what_a_run_here_takes_is_told(jsonl: Path) -> None:
    """Only what hosted runs alone object to; a fault is one for both."""
    assert fault(write(jsonl, GOOD)).endswith(f"needs at least 4{HERE}")
    other = {**GOOD, "id": 1}
    assert fault(write(jsonl, GOOD, other, other, GOOD)).endswith(f"does not have{HERE}")
    assert HERE not in fault(write(jsonl, GOOD, other, {"user_prompt": "q"}, GOOD))
    assert HERE not in fault(write(jsonl))


def test_a_hosted_data_set_has_at_most_5_gb(jsonl: Path) -> None:
    jsonl.touch()
    os.truncate(jsonl, MAX_BYTES + 1)
    assert "has 5,368,709,121 bytes: a hosted data set has at most 5 GB" in fault(jsonl)


def test_a_file_that_is_not_there_is_named(jsonl: Path) -> None:
    assert fault(jsonl) == f"cannot read {jsonl}: No such file or directory"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({**GOOD, "id": 1}, "id: is a column that row 0 does not have"),
        ({"user_prompt": "q", "label": "a"}, "ground_truth: is missing, and row 0 has it"),
        ({"user_prompt": "q"}, "ground_truth: is missing; the row has user_prompt"),
    ],
)
def test_each_row_has_the_columns_of_the_first(jsonl: Path, row: Any, message: str) -> None:
    text = fault(write(jsonl, GOOD, row, GOOD, GOOD))
    assert text.removesuffix(HERE) == (
        f"{jsonl}: 1 row cannot be used:\n  - row 1 (line 2), {message}"
    )


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({}, "metadata: must be an object with members"),
        ({"a": 1, "b": {}}, "metadata.b: is an empty object"),
        ({"a": 2**63}, "metadata.a: is a whole number beyond 64 bits"),
        ({"a": "1"}, "metadata.a: is text, and before it was a number"),
        ({"a": True}, "metadata.a: is true or false, and before it was a number"),
        ({"c": [[1], ["x"]]}, "metadata.c[][]: is a number, and before it was text"),
        ({"c": {"d": 1}}, "metadata.c: is an object, and before it was a list"),
    ],
)
def test_metadata_has_the_same_shape_in_every_row(
    jsonl: Path, metadata: dict[str, Any], message: str
) -> None:
    """Training reads it as the columns of one table."""
    first = {**GOOD, "metadata": {"a": 1.5, "c": [["x"]], "n": None}}
    text = fault(write(jsonl, first, {**GOOD, "metadata": metadata}, first, first))
    assert f"row 1 (line 2), {message}" in text


def test_five_faults_are_shown_and_all_are_counted(jsonl: Path) -> None:
    lines = fault(write(jsonl, GOOD, *[{**GOOD, "x": 1}] * 9)).removesuffix(HERE).splitlines()
    assert lines[0].endswith("9 rows cannot be used:")
    assert (len(lines), lines[-1]) == (7, "  ... (showing first 5 errors)")
