"""Commands that end in the ways a command can end."""

from __future__ import annotations

from typing import Annotated

import typer

from osmosis_ai.cli.main import Command, Group
from osmosis_ai.errors import BackendError, MissingExtraError, RunError


def crash() -> None:
    """Hit a fault of ours."""
    raise ZeroDivisionError("a fault")


def refuse() -> None:
    """Refuse a run."""
    raise RunError("the run is locked\nby somebody")


def unreachable() -> None:
    """Find nobody."""
    raise BackendError("the server is gone")


def need() -> None:
    """Need a package."""
    raise MissingExtraError("install it", extra="eval")


def abort() -> None:
    """Be told no."""
    raise typer.Abort


def interrupt() -> None:
    """Be interrupted."""
    raise KeyboardInterrupt


def leave() -> None:
    """Leave with a code."""
    raise typer.Exit(7)


def say(ctx: typer.Context, word: Annotated[str, typer.Argument(metavar="WORD")]) -> None:
    """Say a word, and the mode."""
    print(ctx.obj, word)


_FUNCTIONS = (crash, refuse, unreachable, need, abort, interrupt, leave, say)
GROUPS = {
    "test": Group(
        "Commands of the tests.",
        {
            function.__name__: Command(f"{__name__}:{function.__name__}", "x")
            for function in _FUNCTIONS
        }
        | {"more": Group("Further down.", {"say": Command(f"{__name__}:say", "x")})},
    )
}
