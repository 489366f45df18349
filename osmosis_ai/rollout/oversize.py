"""A sample that is too large for the wire is cut until it fits, and says where."""

from __future__ import annotations

from typing import Any

import orjson

MAX_SAMPLE_BYTES = 32 * 1024 * 1024
"""The largest sample that is sent: half of what a controller of ours takes as one body."""

CUT_KEY = "cut"
"""Key of `extra_fields` that names what was cut, and how large it had been."""

_KEPT_CHARACTERS = (100_000, 10_000, 1_000, 100)
"""What stays of a text, in the order in which it is tried."""


def cut_sample(sample: bytes, *, max_bytes: int = MAX_SAMPLE_BYTES) -> bytes:
    """An encoded sample as it is where it fits, else with its largest parts cut.

    Long texts are cut first, then messages from the middle are left out, and what is no message is
    left out only where it is large itself. The reward stays in any case. The whole sample is in the
    archive: this is what goes to a controller.
    """
    if len(sample) <= max_bytes:
        return sample
    document = orjson.loads(sample)
    cut: dict[str, str] = {}
    for name in ("label", "metrics", "extra_fields"):
        size = len(orjson.dumps(document[name]))
        if size > max_bytes // 8:
            document[name] = None if name == "label" else {}
            cut[name] = f"{size:,} bytes were left out"
    # A quarter is kept free for the rest of the sample.
    document["messages"], cut["messages"] = _cut_messages(document["messages"], max_bytes * 3 // 4)
    document["extra_fields"][CUT_KEY] = cut
    return orjson.dumps(document)


def _cut_messages(messages: list[Any], max_bytes: int) -> tuple[list[Any], str]:
    size = len(orjson.dumps(messages))
    for kept in _KEPT_CHARACTERS:
        shorter = [_shorten(message, kept) for message in messages]
        if len(orjson.dumps(shorter)) <= max_bytes:
            return shorter, f"of {size:,} bytes; texts end after {kept:,} characters"
    least = _KEPT_CHARACTERS[-1]
    first, last = _ends([_shorten(message, least) for message in messages], max_bytes)
    gap = f"{len(messages) - len(first) - len(last):,} messages after the first {len(first):,}"
    return first + last, f"of {size:,} bytes; texts end after {least}, and {gap} were left out"


def _ends(messages: list[Any], max_bytes: int) -> tuple[list[Any], list[Any]]:
    """As many messages from both ends as fit: how it began, and how it ended."""
    sizes = [len(orjson.dumps(message)) + 1 for message in messages]
    first = _fitting(sizes, max_bytes // 2)
    last = _fitting(sizes[:first:-1], max_bytes // 2)
    return messages[:first], messages[len(messages) - last :]


def _fitting(sizes: list[int], max_bytes: int) -> int:
    used = 0
    for count, size in enumerate(sizes):
        used += size
        if used > max_bytes:
            return count
    return len(sizes)


def _shorten(value: Any, kept: int) -> Any:
    if isinstance(value, str):
        if len(value) <= kept:
            return value
        return f"{value[:kept]}… [cut: {len(value):,} characters]"
    if isinstance(value, dict):
        return {key: _shorten(inner, kept) for key, inner in value.items()}
    if isinstance(value, list):
        return [_shorten(inner, kept) for inner in value]
    return value
