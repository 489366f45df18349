"""Rows of the package `datasets`: the same items as those of a file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
datasets: Any = pytest.importorskip(
    "datasets", reason="the extra `datasets` is optional and large: install it to run these"
)

from osmosis_ai.errors import DatasetError  # noqa: E402 - nothing reaches the network before
from osmosis_ai.eval.dataset import find_dataset, load_dataset, load_rows  # noqa: E402
from osmosis_ai.eval.row import Row  # noqa: E402
from osmosis_ai.eval.selection import select_rows  # noqa: E402

ROWS = [
    {"user_prompt": "q", "ground_truth": "7", "metadata": {"level": 1, "kind": None}},
    {"user_prompt": "ä", "ground_truth": "8", "metadata": {"level": 2, "kind": "x"}},
    {"user_prompt": "q", "ground_truth": "7", "metadata": {"level": 1, "kind": None}},
]


def read(path: Path) -> list[Row]:
    dataset = load_dataset(path)
    return list(load_rows(dataset, select_rows(None, limit=None, total=dataset.total_rows)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    datasets.Dataset.from_list(ROWS).save_to_disk(str(tmp_path / "data" / "saved"))
    return tmp_path / "data" / "saved"


def test_a_folder_gives_the_items_of_a_file(folder: Path, tmp_path: Path) -> None:
    datasets.Dataset.from_list(ROWS).to_parquet(str(tmp_path / "a.parquet"))
    assert read(folder) == read(tmp_path / "a.parquet")
    assert read(folder)[0].metadata == {"level": 1}


def test_a_folder_is_found_by_path_and_by_name(folder: Path, tmp_path: Path) -> None:
    for name in ("saved", "data/saved", str(folder)):
        assert find_dataset(name, workspace=tmp_path) == folder


def test_the_same_rows_written_again_are_the_same_data_set(folder: Path, tmp_path: Path) -> None:
    datasets.Dataset.from_list(ROWS).save_to_disk(str(tmp_path / "again"))
    datasets.Dataset.from_list(ROWS[:2]).save_to_disk(str(tmp_path / "other"))
    assert load_dataset(folder).sha256 == load_dataset(tmp_path / "again").sha256
    assert load_dataset(folder).sha256 != load_dataset(tmp_path / "other").sha256


def test_a_folder_of_several_data_sets_names_them(tmp_path: Path) -> None:
    several = datasets.DatasetDict({"test": datasets.Dataset.from_list(ROWS)})
    several.save_to_disk(str(tmp_path / "many"))
    with pytest.raises(DatasetError, match=r"several data sets: name one of .*many/test"):
        load_dataset(tmp_path / "many")
    assert len(read(tmp_path / "many" / "test")) == 3


def test_a_damaged_folder_is_one_sentence(folder: Path) -> None:
    (folder / "state.json").write_text("{")
    with pytest.raises(DatasetError, match="is not a readable `datasets` folder"):
        load_dataset(folder)


def test_a_name_is_loaded_and_written_to_a_file(folder: Path, tmp_path: Path) -> None:
    """A directory of files stands in for the hub."""
    hub = tmp_path / "hub"
    hub.mkdir()
    datasets.Dataset.from_list(ROWS).to_json(str(hub / "train.jsonl"))
    path = find_dataset(f"datasets:{hub}:train", workspace=tmp_path)
    assert path.parent == tmp_path / ".osmosis" / "rows"
    assert [row.key for row in read(path)] == [row.key for row in read(folder)]
    assert find_dataset(f"datasets:{hub}:default:train", workspace=tmp_path) == path


def test_a_named_row_that_is_no_text_is_named(tmp_path: Path) -> None:
    hub = tmp_path / "hub"
    hub.mkdir()
    rows = [{"user_prompt": prompt, "ground_truth": "7"} for prompt in (b"q", b"\xff")]
    datasets.Dataset.from_list(rows).to_parquet(str(hub / "train.parquet"))
    with pytest.raises(DatasetError, match=r"row 1 of '.*hub:train' has bytes that are no UTF-8"):
        find_dataset(f"datasets:{hub}:train", workspace=tmp_path)


@pytest.mark.parametrize("name", ["x", "x:", ":train", "a:b:c:d"])
def test_a_name_without_a_split_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="give datasets:NAME:SPLIT"):
        find_dataset(f"datasets:{name}", workspace=tmp_path)


def test_a_name_that_cannot_be_had_says_so(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"`datasets` cannot load '.*nowhere:train'"):
        find_dataset(f"datasets:{tmp_path}/nowhere:train", workspace=tmp_path)
