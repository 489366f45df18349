"""Rows from Python: written once, named by what they are."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from osmosis_ai.errors import DatasetError, RunError
from osmosis_ai.eval.config import load_config
from osmosis_ai.eval.dataset import load_dataset, load_rows
from osmosis_ai.eval.evaluation import evaluate
from osmosis_ai.eval.selection import Selection
from osmosis_ai.eval.spool import SPOOL_DIR, spool_rows
from tests.eval.demo import make_demo


def questions(*words: str) -> Iterator[dict[str, Any]]:
    return ({"user_prompt": word, "ground_truth": word} for word in words)


def read_back(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_same_rows_are_the_same_file(tmp_path: Path) -> None:
    """So a run that is started again with the same rows goes on."""
    first = spool_rows(questions("a", "b"), workspace=tmp_path)
    before = first.stat().st_mtime_ns
    assert spool_rows(questions("a", "b"), workspace=tmp_path) == first
    assert first.stat().st_mtime_ns == before
    assert spool_rows(questions("b", "a"), workspace=tmp_path) != first
    assert len(list((tmp_path / SPOOL_DIR).iterdir())) == 2


def test_foreign_values_are_what_they_hold(tmp_path: Path) -> None:
    row = {
        "user_prompt": "\ud800",
        "ground_truth": np.int64(3),
        "metadata": {"a": np.array([1.5, 2]), "b": {7}, "c": date(2026, 1, 2), "d": float("nan")},
    }
    path = spool_rows([row], workspace=tmp_path)
    (found,) = load_rows(load_dataset(path), Selection(((0, 0),)))
    assert (found.prompt[0]["content"], found.label) == ("\ud800", "3")
    assert found.metadata is not None
    assert found.metadata["d"] != found.metadata.pop("d")
    assert found.metadata == {"a": [1.5, 2.0], "b": [7], "c": "2026-01-02"}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (["q", "a"], "row 1 is a list: give mappings"),
        ({"metadata": {(1, 2): 3}}, "row 1 has no JSON form: keys must be"),
    ],
)
def test_a_row_that_cannot_be_written_is_named_and_leaves_nothing(
    tmp_path: Path, row: Any, message: str
) -> None:
    with pytest.raises(DatasetError, match=message):
        spool_rows([{"user_prompt": "q"}, row], workspace=tmp_path)
    assert list((tmp_path / SPOOL_DIR).iterdir()) == []


def test_a_disk_that_takes_no_rows_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / ".osmosis").write_text("a file in the way")
    with pytest.raises(DatasetError, match=r"rows cannot be written to .*rows: "):
        spool_rows(questions("a"), workspace=tmp_path)


def test_rows_are_taken_one_at_a_time(tmp_path: Path) -> None:
    rows = ({"user_prompt": f"{i}" * 5000, "ground_truth": "a"} for i in range(1000))
    tracemalloc.start()
    path = spool_rows(rows, workspace=tmp_path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < path.stat().st_size / 20


async def test_an_evaluation_of_rows_is_resumed_with_the_same_and_refuses_others(
    tmp_path: Path,
) -> None:
    config = load_config(make_demo(tmp_path, "unused"))
    result = await evaluate(config, rows=questions("one", "two"))
    assert (result.summary.mean.value, result.summary.rows) == (1.0, 2)
    again = await evaluate(config, rows=questions("one", "two"))
    assert again.summary == result.summary
    with pytest.raises(RunError, match="the data set changed"):
        await evaluate(config, rows=questions("one", "three"))
