"""The conversation of a rollout, for a terminal: who said what, in its order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from osmosis_ai.cli.output import Fact, Section
from osmosis_ai.rollout.safe_json import safe_text

MAX_CHARS = 4000
"""What is shown of one message; the file has the whole of it."""


def read_messages(folder: Path) -> list[dict[str, Any]]:
    """The messages of the rollout in a folder, or its prompt where it left no sample.

    Empty where nothing was kept that can be read: a look at a run is not the place to fail.
    """
    try:
        document: Any = orjson.loads((folder / "sample.json").read_bytes())
    except (OSError, ValueError):
        return []
    sample = document.get("sample") if isinstance(document, dict) else None
    found = sample.get("messages") if isinstance(sample, dict) else None
    messages = found or (document.get("prompt") if isinstance(document, dict) else None)
    if not isinstance(messages, list):
        return []
    return [message for message in messages if isinstance(message, dict)]


def transcript_sections(folder: Path) -> Iterator[Section]:
    """The conversation as a section, or nothing."""
    facts = [_fact(message) for message in read_messages(folder)]
    if facts:
        yield Section("Conversation", facts)


def _fact(message: dict[str, Any]) -> Fact:
    text = "\n".join(part for part in _parts(message) if part)
    more = f"{len(text):,} characters in all" if len(text) > MAX_CHARS else ""
    return Fact(_printable(str(message.get("role", "?"))), _printable(text[:MAX_CHARS]), more)


def _parts(message: dict[str, Any]) -> Iterator[str]:
    content = message.get("content")
    parts = content if isinstance(content, list) else [content]
    for part in parts:
        yield _text(part)
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else []:
        function = call.get("function") if isinstance(call, dict) else None
        yield _call(function) if isinstance(function, dict) else _text(call)


def _text(part: Any) -> str:
    if part is None or isinstance(part, str):
        return part or ""
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return str(part["text"])
    kind = part.get("type") if isinstance(part, dict) else None
    return f"[{kind or type(part).__name__}]"


def _call(function: dict[str, Any]) -> str:
    return f"{function.get('name')}({function.get('arguments') or ''})"


def _printable(text: str) -> str:
    """Without what a terminal would obey: a model's answer may hold escape sequences."""
    shown = (
        sign if sign.isprintable() or sign in "\n\t" else "\N{REPLACEMENT CHARACTER}"
        for sign in safe_text(text)
    )
    return "".join(shown)
