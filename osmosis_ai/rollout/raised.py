"""What was raised, in one line for people: its class, its message, and the user's line."""

from __future__ import annotations

import os
import re
import sysconfig
import traceback
from bdb import BdbQuit
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from pydantic import ValidationError

import osmosis_ai
from osmosis_ai.errors import OsmosisError
from osmosis_ai.redaction import redact
from osmosis_ai.rollout.safe_json import safe_text

MAX_LINE_CHARS = 400
"""What is kept of a message in the line; the whole of it is elsewhere."""


def summarize_error(error: BaseException, *, root: str | Path | None = None) -> str:
    """What was raised and where: `KeyError: 'answer' (main.py:38, in grade)`.

    A group is told by the first error in it; an error's cause and its notes are told with it. A
    file is named from `root` where it lies in there, else by its bare name. Never raises.
    """
    first, others = _first_of(error)
    said = [title_error(first), *_cause(first), *_notes(first)]
    place = find_place(first, root=root) or find_place(error, root=root)
    if place is not None:
        said[0] = f"{said[0]} ({place})"
    if others:
        said.append(f"the first of {others + 1} errors in one {type(error).__name__}")
    return "; ".join(said)


def title_error(error: BaseException) -> str:
    """Class and message: `KeyError: 'answer'`; of an error of ours the message alone."""
    name, message = type(error).__name__, _message(error)
    return message if isinstance(error, OsmosisError) or message == name else f"{name}: {message}"


def find_place(error: BaseException, *, root: str | Path | None = None) -> str | None:
    """The last line of the user's that an error came through; None where it came through none."""
    place = None
    for frame, number in traceback.walk_tb(error.__traceback__):
        if is_users(frame.f_code.co_filename):
            place = f"{_short(frame, root)}:{number}, in {frame.f_code.co_name}"
    return place


def users_traceback(error: BaseException) -> list[str]:
    """A traceback of the user's own frames, or the whole of it where there are none.

    An error of ours is a sentence, and needs no traceback.
    """
    if isinstance(error, OsmosisError):
        return [f"Error: {error}\n"]
    told = traceback.TracebackException.from_exception(error)
    one: traceback.TracebackException | None = told
    while one is not None:
        frames = [frame for frame in one.stack if is_users(frame.filename)]
        one.stack = traceback.StackSummary.from_list(frames or one.stack)
        one = one.__cause__ or one.__context__
    return list(told.format())


def has_left_debugger(error: BaseException | None) -> bool:
    """Whether somebody has quit a debugger, as far as a group of errors can tell."""
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(BdbQuit) is not None
    return isinstance(error, BdbQuit)


def is_users(filename: str) -> bool:
    """Whether a file is the user's: neither ours, nor Python's, nor an installed package's."""
    if filename.startswith(("<frozen ", *_NOT_USERS)):
        return False
    return not {"site-packages", "dist-packages"}.intersection(Path(filename).parts)


def one_line(text: str) -> str:
    """A message on one line, without the address that pydantic adds to each of its faults."""
    # First: of a secret that is cut in two no half would be found.
    lines = (line.strip() for line in redact(text).replace(_NOISE, "").splitlines())
    kept = " ".join(line for line in lines if line and not line.startswith(_ADDRESS))
    return kept if len(kept) <= MAX_LINE_CHARS else f"{kept[:MAX_LINE_CHARS]}..."


_ADDRESS = "For further information visit "
_NOISE = " ssl:default"
"""What aiohttp says of every connection it cannot make, those without TLS too."""

_NOT_USERS = tuple(
    f"{folder}{os.sep}"
    for folder in (
        os.path.dirname(osmosis_ai.__file__),
        sysconfig.get_path("stdlib"),
        sysconfig.get_path("platstdlib"),
        # Of the interpreter that a virtual environment was made from.
        os.path.dirname(os.__file__),
    )
)


def error_text(error: BaseException) -> str:
    """`str(error)` made safe to send, or the class name where that is empty."""
    try:
        text = str(error)
    except Exception:  # __str__ is the user's, and a broken one must not cost the result
        text = ""
    return safe_text(text) or type(error).__name__


def _first_of(error: BaseException) -> tuple[BaseException, int]:
    """The first error of a group, and how many others there are."""
    leaves = list(_leaves(error))
    return leaves[0], len(leaves) - 1


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _cause(error: BaseException) -> Iterator[str]:
    """The cause an error names, where its message does not tell it already."""
    if error.__cause__ is None:
        return
    cause = _first_of(error.__cause__)[0]
    strerror = cause.strerror if isinstance(cause, OSError) else None
    reason = strerror or _message(cause)
    if reason not in _message(error):
        yield f"from {title_error(cause)}"


def _notes(error: BaseException) -> Iterator[str]:
    for note in getattr(error, "__notes__", ()):
        if isinstance(note, str):
            yield one_line(safe_text(note))


def _message(error: BaseException) -> str:
    if isinstance(error, ValidationError):
        faults = [_fault(one) for one in error.errors(include_url=False)]
        return one_line(safe_text("; ".join(faults)))
    return one_line(error_text(error))


def _fault(fault: Any) -> str:
    """One fault of a pydantic model: `reward must be a finite number, got nan`."""
    where = ".".join(str(part) for part in fault["loc"])
    message = str(fault["msg"]).removeprefix("Value error, ").replace("Input should be", "must be")
    if not where or message.startswith(where):
        return message
    if not message.startswith("must be"):
        return f"{where}: {message}"
    return f"{where} {_REASON.split(message)[0]}, got {_shown(fault['input'])}"


_REASON = re.compile(", (?:unable to parse|got) ")


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:  # __repr__ is the user's
        text = f"a {type(value).__name__}"
    text = redact(text)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _short(frame: FrameType, root: str | Path | None) -> str:
    path = frame.f_code.co_filename
    if root is not None:
        # The directory we are in may be gone.
        with suppress(OSError):
            short = os.path.relpath(path, root)
            if not short.startswith(os.pardir):
                return short
    return os.path.basename(path)
