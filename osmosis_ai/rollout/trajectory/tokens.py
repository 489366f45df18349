"""The tokens of a rollout's model calls, and the file beside its trajectory that keeps them.

`tokens.bin` begins with one line of JSON. What follows is raw: for each call in turn its arrays,
in the order of `ARRAYS`, as little-endian int32 and float32, nothing between them. The line says
how many numbers each array has; null stands for one the server did not give. Blanks at its end
make it a multiple of four bytes long.

    {"schema_version":1,"calls":[{"turn":0,"prompt_token_ids":7,"completion_token_ids":3,...}]}
"""

from __future__ import annotations

import io
import os
import struct
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from osmosis_ai.rollout.artifacts import replace_file

FILE_NAME: Final = "tokens.bin"
SCHEMA_VERSION: Final = 1

ARRAYS: Final = {"prompt_token_ids": "i", "completion_token_ids": "i", "logprobs": "f"}
"""The arrays of a call, and the type of their numbers: int32 or float32."""


@dataclass(frozen=True, slots=True)
class CallTokens:
    """The tokens of one model call, as far as its server gave them."""

    prompt_token_ids: array[int] | None = None
    completion_token_ids: array[int] | None = None
    logprobs: array[float] | None = None
    """Of the completion's tokens."""
    turn: int = 0
    """Which call of its rollout it is, counted from 0."""


def find_tokens(
    body: Mapping[str, Any], choice: Mapping[str, Any], *, turn: int = 0
) -> CallTokens | None:
    """The tokens in a completion and its choice, or in one event of a stream; None without any.

    Understood are `logprobs.content` of OpenAI, and `prompt_token_ids`, `token_ids` and tokens that
    read `token_id:17` as vLLM writes them. What is no list of numbers is left out.
    """
    if not _may_hold_tokens(body, choice):
        return None
    content = _get(_get(choice, "logprobs"), "content")
    extra = _get(choice, "provider_specific_fields")
    prompt = _get(body, "prompt_token_ids") or _get(choice, "prompt_token_ids")
    ids = _get(choice, "token_ids") or _get(extra, "token_ids")
    found = CallTokens(
        prompt_token_ids=_numbers("i", prompt),
        completion_token_ids=_numbers("i", ids or _spelled_ids(content)),
        logprobs=_numbers("f", _logprobs(content)),
        turn=turn,
    )
    return None if found == CallTokens(turn=turn) else found


def join_tokens(parts: Sequence[CallTokens], *, turn: int = 0) -> CallTokens | None:
    """The tokens of a stream from those of its events; None without any."""
    if not parts:
        return None
    return CallTokens(
        prompt_token_ids=next((p.prompt_token_ids for p in parts if p.prompt_token_ids), None),
        completion_token_ids=_joined("i", [part.completion_token_ids for part in parts]),
        logprobs=_joined("f", [part.logprobs for part in parts]),
        turn=turn,
    )


def encode_tokens(calls: Sequence[CallTokens]) -> bytes:
    """The content of `tokens.bin`."""
    lengths = [_lengths(call) for call in calls]
    head = orjson.dumps({"schema_version": SCHEMA_VERSION, "calls": lengths})
    blanks = b" " * (-(len(head) + 1) % 4)
    return b"".join([head, blanks, b"\n", *_packed(calls)])


def save_tokens(folder: str | os.PathLike[str], calls: Sequence[CallTokens]) -> None:
    """Write `tokens.bin` into a rollout's folder; raises OSError."""
    replace_file(os.fspath(folder), FILE_NAME, encode_tokens(calls))


def load_tokens(path: str | os.PathLike[str]) -> list[CallTokens]:
    """Read a `tokens.bin`, or the one in a rollout's folder; one entry for each call that has any.

    Raises ValueError for a file that is not one, or is torn.
    """
    file = Path(path)
    file = file / FILE_NAME if file.is_dir() else file
    head, _, data = file.read_bytes().partition(b"\n")
    try:
        document = orjson.loads(head)
        if document["schema_version"] != SCHEMA_VERSION:
            raise ValueError(f"its schema_version is {document['schema_version']}")
        numbers = io.BytesIO(data)
        return [_read_call(lengths, numbers) for lengths in document["calls"]]
    except (KeyError, TypeError, ValueError, struct.error) as error:
        raise ValueError(f"{file} cannot be read as a file of tokens: {error}") from error


def _read_call(lengths: dict[str, Any], numbers: io.BytesIO) -> CallTokens:
    arrays: dict[str, array[Any]] = {
        name: array(kind, struct.unpack(f"<{length}{kind}", numbers.read(4 * length)))
        for name, kind in ARRAYS.items()
        if (length := lengths[name]) is not None
    }
    return CallTokens(turn=lengths["turn"], **arrays)


def _packed(calls: Iterable[CallTokens]) -> Iterator[bytes]:
    for call in calls:
        for name, kind in ARRAYS.items():
            numbers = getattr(call, name)
            if numbers is not None:
                yield struct.pack(f"<{len(numbers)}{kind}", *numbers)


def _lengths(call: CallTokens) -> dict[str, int | None]:
    arrays = {name: getattr(call, name) for name in ARRAYS}
    lengths = {name: None if found is None else len(found) for name, found in arrays.items()}
    return {"turn": call.turn, **lengths}


def _may_hold_tokens(body: Any, choice: Any) -> bool:
    # For each call of each rollout, and mostly it is no.
    return (
        "prompt_token_ids" in body
        or choice.get("logprobs") is not None
        or "token_ids" in choice
        or "prompt_token_ids" in choice
        or "provider_specific_fields" in choice
    )


def _get(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, dict) else None


def _numbers(kind: str, values: Any) -> array[Any] | None:
    """The values as an array; None where they are none, or not numbers that it can hold."""
    if not isinstance(values, list) or not values:
        return None
    try:
        numbers = array(kind, values)
    except (TypeError, OverflowError):
        return None
    return None if kind == "i" and min(numbers) < 0 else numbers


def _logprobs(content: Any) -> list[Any] | None:
    if not isinstance(content, list):
        return None
    return [_get(token, "logprob") for token in content]


_SPELLED = "token_id:"


def _spelled_ids(content: Any) -> list[int] | None:
    """The ids where tokens are written as `token_id:17`."""
    if not isinstance(content, list) or not content:
        return None
    texts = [_get(token, "token") for token in content]
    if not all(isinstance(text, str) and text.startswith(_SPELLED) for text in texts):
        return None
    try:
        return [int(text.removeprefix(_SPELLED)) for text in texts]
    except ValueError:
        return None


def _joined(kind: str, parts: Sequence[array[Any] | None]) -> array[Any] | None:
    """One array of all; None where no part has one."""
    found = [part for part in parts if part]
    if not found:
        return None
    return array(kind, [number for part in found for number in part])
