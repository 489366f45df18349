"""How a command speaks: to a person, in plain lines, or in JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

import typer


class Misuse(typer.TyperException):
    """A command line that cannot be meant."""

    exit_code = 2


class Stopped(typer.TyperException):
    """A person ended the command."""

    exit_code = 130


class InteractiveRequired(typer.TyperException):
    """Somebody would have to be asked, and nobody is there; `details` are for programs."""

    exit_code = 1

    def __init__(self, message: str, *, details: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.details = details


class Mode(StrEnum):
    """What the root options choose; `rich` without any."""

    RICH = "rich"
    PLAIN = "plain"
    JSON = "json"


def take_mode(args: Sequence[str]) -> tuple[Mode, list[str]]:
    """The mode that `--json` or `--plain` ask for, anywhere before a bare `--`, and the rest.

    Raises Misuse where both are given.
    """
    end = args.index("--") if "--" in args else len(args)
    asked = {arg for arg in args[:end] if arg in _FLAGS}
    rest = [arg for arg in args[:end] if arg not in _FLAGS] + list(args[end:])
    if len(asked) > 1:
        raise Misuse("--json and --plain exclude each other: give one of them")
    return (_FLAGS[asked.pop()] if asked else Mode.RICH), rest


_FLAGS = {"--json": Mode.JSON, "--plain": Mode.PLAIN}
