"""Files to rows: what a rollout gets, and where a file that cannot be used is wrong."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from csv import DictWriter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.errors import ConfigError, DatasetError, MissingExtraError
from osmosis_ai.eval.dataset import find_dataset, load_dataset, load_rows
from osmosis_ai.eval.row import Row, RowFault, digest_content
from osmosis_ai.eval.selection import Selection, parse_selection, select_rows
from osmosis_ai.eval.tabular import CELL_LIMIT_BYTES
from tests.eval.workspace import Workspace

GOOD = {"user_prompt": "q", "ground_truth": "a"}


def write(path: Path, *rows: Any) -> Path:
    """Rows as lines of JSON; text goes in as it is."""
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def read(path: Path, rows: str | None = None) -> list[Row]:
    dataset = load_dataset(path)
    selection = select_rows(rows, limit=None, total=dataset.total_rows)
    return list(load_rows(dataset, selection))


def only(path: Path) -> Row:
    (row,) = read(path)
    return row


def fault(path: Path) -> str:
    with pytest.raises(DatasetError) as caught:
        load_dataset(path)
    return str(caught.value)


@pytest.fixture
def jsonl(tmp_path: Path) -> Path:
    return tmp_path / "data.jsonl"


def test_system_then_user_become_the_prompt(jsonl: Path) -> None:
    row = only(write(jsonl, {"user_prompt": "u", "system_prompt": "s", "ground_truth": "g"}))
    assert row.prompt == [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "u"},
    ]
    assert (row.index, row.label, row.metadata) == (0, "g", None)


@pytest.mark.parametrize(
    ("columns", "label"),
    [
        ({"ground_truth": "g", "label": "l"}, "g"),
        ({"ground_truth": "", "label": "l"}, "l"),
        ({"label": 5}, "5"),
        ({"label": 0.5}, "0.5"),
        ({"label": [1, "ä"]}, '[1, "ä"]'),
    ],
)
def test_the_label_is_ground_truth_then_label_as_text(
    jsonl: Path, columns: dict[str, Any], label: str
) -> None:
    assert only(write(jsonl, {"user_prompt": "u", **columns})).label == label


@pytest.mark.parametrize(
    ("value", "metadata"),
    [
        ({"a": 1}, {"a": 1}),
        ('{"a": [1, null]}', {"a": [1, None]}),
        ({}, None),
        ("{}", None),
        ("  ", None),
        (None, None),
    ],
)
def test_metadata_is_an_object_or_its_text(
    jsonl: Path, value: Any, metadata: dict[str, Any] | None
) -> None:
    assert only(write(jsonl, {"user_prompt": "u", "metadata": value})).metadata == metadata


def test_metadata_alone_is_a_row(jsonl: Path) -> None:
    row = only(write(jsonl, {"metadata": {"task": 1}}))
    assert (row.prompt, row.label, row.metadata) == ([], None, {"task": 1})


def test_empty_text_is_absent(jsonl: Path) -> None:
    row = only(write(jsonl, {**GOOD, "system_prompt": ""}))
    assert [message["role"] for message in row.prompt] == ["user"]


def test_blank_lines_and_a_byte_order_mark_are_skipped(jsonl: Path) -> None:
    jsonl.write_bytes(b"\xef\xbb\xbf" + json.dumps(GOOD).encode() + b"\n\n \n")
    assert len(read(jsonl)) == 1


def test_csv_rows_are_the_same_rows(tmp_path: Path) -> None:
    """Each format is read into the same items, so a file can be converted."""
    rows = [
        {"user_prompt": 'two\nlines, "quoted"', "ground_truth": "ä", "metadata": '{"a": 1}'},
        {"user_prompt": "q", "ground_truth": "7", "metadata": ""},
    ]
    jsonl = write(tmp_path / "a.jsonl", *rows)
    csv = tmp_path / "a.csv"
    csv.write_text(
        "\ufeffuser_prompt,ground_truth,metadata\r\n"
        '"two\nlines, ""quoted""",ä,"{""a"": 1}"\r\n'
        "\r\n"
        "q,7,\r\n"
    )
    assert read(csv) == read(jsonl)


MIXED = [
    {"user_prompt": "q", "ground_truth": 7, "metadata": {"level": 1, "task": {"kind": "x"}}},
    {"user_prompt": "ä\n", "ground_truth": 12, "metadata": {"level": 2, "tags": ["a", None]}},
    {"user_prompt": "q", "ground_truth": 7, "metadata": {"level": 1, "task": {"kind": "x"}}},
]


def test_csv_jsonl_and_parquet_give_the_same_items(tmp_path: Path) -> None:
    """A table's objects all have the same members: what a row lacks is null there, and left out."""
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    jsonl = read(write(tmp_path / "a.jsonl", *MIXED))
    parquet.write_table(pyarrow.Table.from_pylist(MIXED), tmp_path / "a.parquet")
    as_text = [{**row, "metadata": json.dumps(row["metadata"])} for row in MIXED]
    parquet.write_table(pyarrow.Table.from_pylist(as_text), tmp_path / "b.parquet")
    with (tmp_path / "a.csv").open("w", newline="") as file:
        writer = DictWriter(file, list(MIXED[0]))
        writer.writeheader()
        writer.writerows(as_text)
    assert jsonl == read(tmp_path / "a.csv") == read(tmp_path / "a.parquet")
    assert jsonl == read(tmp_path / "b.parquet")
    assert [row.key.rpartition("-")[2] for row in jsonl] == ["0", "0", "1"]


def test_a_null_member_does_not_name_the_row(tmp_path: Path) -> None:
    """Else an item would change its name when its file is converted."""
    one = only(write(tmp_path / "a.jsonl", {"metadata": {"a": 1, "b": [{"c": None}]}}))
    two = only(write(tmp_path / "b.jsonl", {"metadata": {"a": 1, "b": [{}], "d": None}}))
    assert one.key == two.key
    assert one.metadata == {"a": 1, "b": [{"c": None}]}


def test_bytes_in_a_parquet_file_are_text_or_a_fault(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    rows = [{"user_prompt": "ä".encode(), "ground_truth": (b"a",)}]
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    row = only(path)
    assert (row.prompt[0]["content"], row.label) == ("ä", '["a"]')
    parquet.write_table(pyarrow.Table.from_pylist([{**GOOD, "user_prompt": b"\xff"}]), path)
    assert "row 0: has bytes that are no UTF-8 text: invalid start byte" in fault(path)


def test_a_parquet_file_with_a_column_twice_is_refused(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table([["a"], ["b"]], names=["user_prompt", "user_prompt"])
    parquet.write_table(table, tmp_path / "a.parquet")
    assert "has the column 'user_prompt' twice" in fault(tmp_path / "a.parquet")


def test_a_parquet_file_is_streamed(tmp_path: Path) -> None:
    """Rows of 100 KB are read some at a time, though a thousand would be taken of small ones."""
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path, large = tmp_path / "a.parquet", 100_000
    with parquet.ParquetWriter(path, pyarrow.schema(dict.fromkeys(GOOD, pyarrow.string()))) as file:
        for index in range(600):
            row = {"user_prompt": f"{index:06}" * (large // 6), "ground_truth": "a"}
            file.write_table(pyarrow.Table.from_pylist([row]))
    before = pyarrow.total_allocated_bytes()
    peak = 0
    tracemalloc.start()
    for _ in load_rows(load_dataset(path), Selection(((0, 599),))):
        peak = max(peak, pyarrow.total_allocated_bytes() - before)
    _, python_peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak + python_peak < 600 * large * 0.7


def test_a_cell_of_20_mb_is_a_cell(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    row = {"user_prompt": "ab" * 10_000_000, "ground_truth": "a"}
    parquet.write_table(pyarrow.Table.from_pylist([row]), tmp_path / "a.parquet")
    jsonl = only(write(tmp_path / "a.jsonl", row))
    assert jsonl == only(tmp_path / "a.parquet")
    assert jsonl.prompt[0]["content"] == row["user_prompt"]


def test_a_damaged_parquet_file_is_one_sentence(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / "a.parquet"
    path.write_bytes(b"PAR1 no PAR1")
    assert "is not a readable parquet file" in fault(path)


def test_a_row_without_its_columns_says_what_it_has(jsonl: Path) -> None:
    write(jsonl, GOOD, {"question": "q", "answer": "a"}, {"user_prompt": "q"}, {})
    assert fault(jsonl) == (
        f"{jsonl}: 3 rows cannot be used:\n"
        "  - row 1 (line 2), user_prompt: is missing; the row has question, answer\n"
        "  - row 2 (line 3), ground_truth: is missing; the row has user_prompt\n"
        "  - row 3 (line 4), user_prompt: is missing; the row has no columns"
    )


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"user_prompt": "", "ground_truth": "a"}, "user_prompt: is empty"),
        ({"user_prompt": "q", "ground_truth": None}, "ground_truth: is empty"),
        ({"metadata": {}}, "metadata: is empty, and there is no prompt"),
        ({"metadata": []}, "metadata: must be an object, got list"),
        ({"metadata": "3"}, "metadata: must be an object, got int"),
        ({"metadata": "nope"}, "metadata: is not a JSON object: Expecting value"),
        ("[1]", "must be an object, got list"),
        ("{", "is not JSON: "),
        ('{"a": ' + "[" * 100_000, "is not JSON: "),
        ('{"a": ' + "1" * 5000 + "}", "is not JSON: Exceeds the limit"),
    ],
)
def test_each_fault_names_row_and_column(jsonl: Path, row: Any, message: str) -> None:
    write(jsonl, GOOD, row)
    assert "1 row cannot be used:\n  - row 1 (line 2)" in fault(jsonl)
    assert message in fault(jsonl)


def test_a_value_too_deep_to_be_written_is_a_fault() -> None:
    """A parquet file can hold what no JSON text could have brought."""
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(RowFault, match="is nested too deeply"):
        digest_content(Row(0, [], metadata={"a": deep}))


def test_five_faults_are_shown_and_all_are_counted(jsonl: Path) -> None:
    write(jsonl, *[{"user_prompt": "q"}] * 12)
    lines = fault(jsonl).splitlines()
    assert lines[0].endswith("12 rows cannot be used:")
    assert len(lines) == 7
    assert lines[-1] == "  ... (showing first 5 errors)"


def test_bytes_that_are_no_utf8_are_named(tmp_path: Path) -> None:
    jsonl, csv = tmp_path / "a.jsonl", tmp_path / "a.csv"
    jsonl.write_bytes(b'{"user_prompt": "\xff"}\n')
    csv.write_bytes(b"user_prompt,ground_truth\nq,\xff\n")
    assert "row 0 (line 1): is not UTF-8 text: invalid start byte at byte 17" in fault(jsonl)
    assert "is not UTF-8 text near line 1: save it as UTF-8" in fault(csv)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("user_prompt,user_prompt\n", "the header names the column 'user_prompt' twice"),
        ("user_prompt,ground_truth\nq\n", "row 0 (line 2): has 1 cells, the header 2"),
        ('user_prompt,ground_truth\n"q,a\n', "line 2: unexpected end of data"),
        ('user_prompt,ground_truth\n"q"x,a\n', "line 2: ',' expected after '\"'"),
        ("user_prompt,ground_truth\n", "has no rows"),
        ("", "has no rows"),
    ],
)
def test_a_csv_file_that_is_torn_is_refused(tmp_path: Path, text: str, message: str) -> None:
    """Read leniently, an open quote swallows the rest of the file."""
    path = tmp_path / "a.csv"
    path.write_text(text)
    assert message in fault(path)


def test_a_csv_cell_beyond_the_limit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("user_prompt,ground_truth\nq," + "x" * (CELL_LIMIT_BYTES + 1) + "\n")
    assert "line 2: field larger than field limit" in fault(path)


def test_lone_surrogates_and_nan_in_a_row_are_its_data(jsonl: Path) -> None:
    """Python writes both into JSON; a rollout gets them, and every exit marks them."""
    write(jsonl, r'{"user_prompt": "\ud800", "ground_truth": "a", "metadata": {"x": NaN}}')
    row = only(jsonl)
    assert row.prompt[0]["content"] == "\ud800"
    assert row.metadata is not None
    assert row.metadata["x"] != row.metadata["x"]


def test_a_large_integer_keeps_every_digit(jsonl: Path) -> None:
    row = only(write(jsonl, '{"user_prompt": "q", "ground_truth": 123456789012345678901234567890}'))
    assert row.label == "123456789012345678901234567890"


def test_a_key_names_content_and_which_of_the_equal_rows(jsonl: Path) -> None:
    """So each of them is an item of its own, and none changes when the file is reordered."""
    a, b = {**GOOD, "ground_truth": "x"}, GOOD
    keys = [row.key for row in read(write(jsonl, a, b, a, a))]
    assert len(set(keys)) == 4
    assert [key.rpartition("-")[2] for key in keys] == ["0", "0", "1", "2"]
    assert len({keys[0].rpartition("-")[0], keys[2].rpartition("-")[0]}) == 1
    assert {row.key for row in read(write(jsonl, b, a, a, a))} == set(keys)


def test_a_selection_gives_rows_the_keys_they_have_in_the_whole(jsonl: Path) -> None:
    write(jsonl, GOOD, GOOD, {**GOOD, "ground_truth": "z"}, GOOD)
    whole = {row.index: row.key for row in read(jsonl)}
    assert {row.index: row.key for row in read(jsonl, "1,3")} == {1: whole[1], 3: whole[3]}


def test_columns_that_are_not_used_do_not_name_the_row(tmp_path: Path) -> None:
    one = only(write(tmp_path / "a.jsonl", {**GOOD, "id": 1}))
    two = only(write(tmp_path / "b.jsonl", {**GOOD, "note": "x", "system_prompt": ""}))
    assert one.key == two.key


def test_a_file_that_changes_while_it_is_read_stops_the_reading(jsonl: Path) -> None:
    """Half the records would be of other rows than the run says."""
    dataset = load_dataset(write(jsonl, GOOD, GOOD))
    rows = load_rows(dataset, Selection(((0, 1),)))
    next(rows)
    write(jsonl, GOOD, GOOD, GOOD)
    with pytest.raises(DatasetError, match="changed while it was being read"):
        next(rows)


def test_a_file_that_vanishes_stops_the_reading(jsonl: Path) -> None:
    dataset = load_dataset(write(jsonl, GOOD))
    jsonl.unlink()
    with pytest.raises(DatasetError, match=r"cannot read .*No such file"):
        list(load_rows(dataset, Selection(((0, 0),))))
    assert fault(jsonl) == f"cannot read {jsonl}: No such file or directory"


def test_a_file_is_streamed(jsonl: Path) -> None:
    """Two passes over 20 MB hold a fraction of it, and no row of the past."""
    with jsonl.open("w") as file:
        for index in range(2000):
            file.write(json.dumps({"user_prompt": f"{index}" * 2500, "ground_truth": "a"}) + "\n")
    tracemalloc.start()
    dataset = load_dataset(jsonl)
    count = sum(1 for _ in load_rows(dataset, Selection(((0, 1999),))))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 2000
    assert peak < jsonl.stat().st_size / 8


def test_a_dataset_is_a_path_or_a_name_in_data(workspace: Workspace) -> None:
    data = workspace.root / "data"
    for name in ("data/hello.jsonl", "hello", "hello.jsonl", str(data / "hello.jsonl")):
        assert find_dataset(name, workspace=workspace.root) == data / "hello.jsonl"


def test_a_dataset_that_is_not_there_gets_the_nearest_name(workspace: Workspace) -> None:
    with pytest.raises(DatasetError, match=r"helo.csv\|.jsonl\|.parquet in .*mean 'hello'"):
        find_dataset("helo", workspace=workspace.root)
    with pytest.raises(DatasetError, match=r"'zzz' is neither a file from .*/data$"):
        find_dataset("zzz", workspace=workspace.root)


def test_a_name_of_two_files_is_refused(workspace: Workspace) -> None:
    (workspace.root / "data" / "hello.csv").write_text("")
    with pytest.raises(DatasetError, match=r"is both hello.csv and hello.jsonl"):
        find_dataset("hello", workspace=workspace.root)


def test_other_files_are_refused_by_their_ending(tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    path.write_text("[]")
    assert "is none of .csv, .jsonl, .parquet" in fault(path)


@pytest.mark.skipif(find_spec("datasets") is not None, reason="the package is installed")
def test_without_the_package_datasets_its_data_says_what_to_install(tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    folder.mkdir()
    (folder / "state.json").write_text("{}")
    (folder / "data-00000-of-00001.arrow").write_bytes(b"")
    assert find_dataset("saved", workspace=tmp_path) == folder
    with pytest.raises(MissingExtraError, match=r"osmosis-ai\[datasets\]"):
        load_dataset(folder)
    with pytest.raises(MissingExtraError, match=r"osmosis-ai\[datasets\]"):
        find_dataset("datasets:a:train", workspace=tmp_path)


def test_a_directory_is_no_data_set(tmp_path: Path) -> None:
    directory = tmp_path / "a.jsonl"
    directory.mkdir()
    assert fault(directory) == f"cannot read {directory}: Is a directory"


@pytest.mark.parametrize(
    ("text", "ranges"),
    [
        ("3", ((3, 3),)),
        ("0-9,12", ((0, 9), (12, 12))),
        ("5,3,4,3-3", ((3, 5),)),
        ("8-9,0-4,2-6", ((0, 6), (8, 9))),
    ],
)
def test_a_selection_is_merged_and_sorted(text: str, ranges: tuple[tuple[int, int], ...]) -> None:
    assert parse_selection(text).ranges == ranges


@pytest.mark.parametrize("text", ["", "a", "1-", "-1", "1,,2", "1 ,2", "1-2-3", "\uff11", "5\n"])
def test_other_text_is_no_selection(text: str) -> None:
    with pytest.raises(ConfigError, match="such as 0-9,12"):
        parse_selection(text)


def test_a_range_that_ends_before_it_starts_is_refused() -> None:
    with pytest.raises(ConfigError, match="the range 4-2, which ends before it starts"):
        parse_selection("1,4-2")


def test_a_selection_knows_its_rows() -> None:
    selection = parse_selection("0-2,5,8-9")
    assert [index for index in range(12) if index in selection] == [0, 1, 2, 5, 8, 9]
    assert (len(selection), selection.last, str(selection)) == (6, 9, "0-2,5,8-9")
    assert (len(Selection(())), Selection(()).last, 0 in Selection(())) == (0, -1, False)


@pytest.mark.parametrize(
    ("wide", "narrow", "covers"),
    [
        ("0-9", "2-3,9", True),
        ("0-9", "0-9", True),
        ("0-4,6-9", "5", False),
        ("0-4", "4-5", False),
    ],
)
def test_one_selection_covers_another(wide: str, narrow: str, covers: bool) -> None:
    assert parse_selection(wide).covers(parse_selection(narrow)) is covers


@pytest.mark.parametrize(
    ("rows", "limit", "selected"),
    [
        (None, None, "0-9"),
        (None, 0, "0-9"),
        (None, -1, "0-9"),
        (None, 3, "0-2"),
        (None, 99, "0-9"),
        ("4,2", 1, "2,4"),
    ],
)
def test_rows_win_over_the_limit(rows: str | None, limit: int | None, selected: str) -> None:
    assert str(select_rows(rows, limit=limit, total=10)) == selected


def test_rows_beyond_the_data_set_are_refused() -> None:
    with pytest.raises(ConfigError, match="asks for row 10, but the data set has rows 0-9"):
        select_rows("3,10", limit=None, total=10)


def test_reading_stops_after_the_last_selected_row(jsonl: Path) -> None:
    dataset = load_dataset(write(jsonl, *[GOOD] * 5))
    rows: Iterator[Row] = load_rows(dataset, Selection(((1, 2),)))
    assert [row.index for row in rows] == [1, 2]
