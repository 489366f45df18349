"""Token ids and log probabilities: found in what servers answer, kept as arrays, read again."""

from __future__ import annotations

import json
import struct
from array import array
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from osmosis_ai.rollout.trajectory.tokens import (
    FILE_NAME,
    CallTokens,
    encode_tokens,
    find_tokens,
    join_tokens,
    load_tokens,
)


def logprobs(*pairs: tuple[Any, Any]) -> dict[str, Any]:
    return {"content": [{"token": token, "logprob": logprob} for token, logprob in pairs]}


FULL = CallTokens(array("i", [1, 2]), array("i", [3]), array("f", [-0.5]))


@pytest.mark.parametrize(
    ("body", "choice", "found"),
    [
        ({}, {"message": {}}, None),
        ({}, {"logprobs": None}, None),
        ({"prompt_token_ids": [1, 2]}, {"token_ids": [3], "logprobs": logprobs(("a", -0.5))}, FULL),
        ({}, {"prompt_token_ids": [1]}, CallTokens(array("i", [1]))),
        ({}, {"logprobs": logprobs(("a", -1))}, CallTokens(logprobs=array("f", [-1.0]))),
        (
            {},
            {"logprobs": logprobs(("token_id:17", -1), ("token_id:4", -2))},
            CallTokens(None, array("i", [17, 4]), array("f", [-1.0, -2.0])),
        ),
        (
            {},
            {"provider_specific_fields": {"token_ids": [5]}},
            CallTokens(completion_token_ids=array("i", [5])),
        ),
    ],
)
def test_tokens_are_found_where_servers_put_them(
    body: Any, choice: Any, found: CallTokens | None
) -> None:
    assert find_tokens(body, choice) == found


@pytest.mark.parametrize(
    "ids", [[], "many", 3, {"0": 1}, [None], ["1"], [1.5], [2**31], [-1], [[1]]]
)
def test_what_is_no_list_of_ids_is_left_out(ids: Any) -> None:
    """A strange answer costs its tokens, never the call."""
    assert find_tokens({"prompt_token_ids": ids}, {"token_ids": ids}) is None


@pytest.mark.parametrize(
    "content", [[], "many", [None], [{"token": "a"}], [{"token": "token_id:x"}]]
)
def test_what_is_no_list_of_log_probabilities_is_left_out(content: Any) -> None:
    assert find_tokens({}, {"logprobs": {"content": content}}) is None


def test_some_spelled_ids_among_words_are_words() -> None:
    found = find_tokens({}, {"logprobs": logprobs(("token_id:17", -1), ("word", -2))})
    assert found == CallTokens(logprobs=array("f", [-1, -2]))


def test_the_parts_of_a_stream_are_joined() -> None:
    parts = [
        CallTokens(prompt_token_ids=array("i", [1])),
        CallTokens(completion_token_ids=array("i", [2]), logprobs=array("f", [-1])),
        CallTokens(completion_token_ids=array("i", [3, 4]), logprobs=array("f", [-2, -3])),
    ]
    whole = CallTokens(array("i", [1]), array("i", [2, 3, 4]), array("f", [-1, -2, -3]), turn=6)
    assert join_tokens(parts, turn=6) == whole
    assert join_tokens(parts[:1]) == parts[0]
    assert join_tokens([]) is None


IDS = st.none() | st.lists(st.integers(0, 2**31 - 1)).map(lambda ids: array("i", ids))
LOGPROBS = st.none() | st.lists(st.floats(width=32, allow_nan=False)).map(lambda n: array("f", n))
CALLS = st.lists(st.builds(CallTokens, IDS, IDS, LOGPROBS, st.integers(0, 1000)))


@given(CALLS)
def test_what_is_written_is_read(tmp_path_factory: Any, calls: list[CallTokens]) -> None:
    file = tmp_path_factory.mktemp("tokens") / "any-name"
    file.write_bytes(encode_tokens(calls))
    assert load_tokens(file) == calls


def test_the_format_can_be_read_with_anything(tmp_path: Path) -> None:
    """A line of JSON, then little-endian numbers that begin at a multiple of four bytes."""
    (tmp_path / FILE_NAME).write_bytes(encode_tokens([FULL, CallTokens(turn=4)]))
    head, _, _ = (tmp_path / FILE_NAME).read_bytes().partition(b"\n")
    assert json.loads(head) == {
        "schema_version": 1,
        "calls": [
            {"turn": 0, "prompt_token_ids": 2, "completion_token_ids": 1, "logprobs": 1},
            {"turn": 4, "prompt_token_ids": None, "completion_token_ids": None, "logprobs": None},
        ],
    }
    start = len(head) + 1
    assert start % 4 == 0
    assert np.fromfile(tmp_path / FILE_NAME, "<i4", 3, offset=start).tolist() == [1, 2, 3]
    assert np.fromfile(tmp_path / FILE_NAME, "<f4", 1, offset=start + 12).tolist() == [-0.5]
    assert load_tokens(tmp_path) == [FULL, CallTokens(turn=4)]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (encode_tokens([FULL])[:-1], "unpack requires"),
        (b"", "unexpected end|empty|zero length"),
        (b"[]\n", "list indices"),
        (b'{"schema_version":2}\n', "its schema_version is 2"),
        (b'{"schema_version":1,"calls":[{"turn":0}]}\n', "prompt_token_ids"),
        (struct.pack("<4i", 1, 2, 3, 4), "."),
    ],
)
def test_a_file_that_is_none_is_refused(tmp_path: Path, content: bytes, problem: str) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    with pytest.raises(ValueError, match=f"cannot be read as a file of tokens: .*({problem})"):
        load_tokens(tmp_path)
