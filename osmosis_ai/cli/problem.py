"""What a person, or a program, reads when a command could not do what it was asked."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from typing import Any

import orjson
import typer
from rich.console import Console
from rich.text import Text

from osmosis_ai import __version__
from osmosis_ai.cli.mode import InteractiveRequired, Mode, Stopped
from osmosis_ai.errors import (
    BackendError,
    BudgetError,
    ConfigError,
    MissingExtraError,
    ModelError,
    OsmosisError,
    ProtocolError,
    RunError,
)
from osmosis_ai.eval.run_folder import RunNotFoundError
from osmosis_ai.redaction import hides_something, redact, redact_json
from osmosis_ai.rollout.raised import is_users
from osmosis_ai.rollout.safe_json import make_safe


def print_problem(error: Exception, *, mode: Mode, command: str) -> int:
    """Say on stderr what is wrong and what to do next; returns the exit code that goes with it."""
    if mode is Mode.JSON:
        _print_json(error, command)
    elif isinstance(error, OsmosisError):
        print(redact("".join(_users_traceback(error))), end="", file=sys.stderr)
        _print_text("Error", str(error), mode)
    else:
        label = "Stopped" if isinstance(error, Stopped) else "Error"
        _print_text(label, _with_usage(error), mode)
    return error.exit_code if isinstance(error, typer.TyperException) else 1


def print_fault(error: Exception) -> bool:
    """Show the traceback of a fault of ours where it may hold a secret; False where it cannot."""
    if not hides_something():
        return False
    sys.stderr.write(redact("".join(traceback.format_exception(error))))
    return True


def print_warning(message: str, *, mode: Mode) -> None:
    """Say on stderr what a person should know."""
    if mode is Mode.JSON:
        _write_json({"warning": {"code": "WARNING", "message": message}})
    else:
        # Without Rich: a progress bar makes room for what is printed to stderr.
        print(f"Warning: {redact(message)}", file=sys.stderr)


def error_code(error: BaseException) -> str:
    """The word that programs tell errors apart by."""
    if isinstance(error, ModelError) and error.status_code in _BY_STATUS:
        return _BY_STATUS[error.status_code]
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    return "VALIDATION" if isinstance(error, OsmosisError | typer.TyperException) else "INTERNAL"


_CODES: tuple[tuple[type[BaseException], str], ...] = (
    (Stopped, "INTERRUPTED"),
    (InteractiveRequired, "INTERACTIVE_REQUIRED"),
    (RunNotFoundError, "NOT_FOUND"),
    (RunError, "CONFLICT"),
    (BackendError, "NETWORK"),
    (BudgetError, "BUDGET_USED_UP"),
    (ModelError, "NETWORK"),
    (ProtocolError, "NETWORK"),
)

_BY_STATUS: dict[int | None, str] = {
    401: "AUTH_REQUIRED",
    403: "AUTH_REQUIRED",
    404: "NOT_FOUND",
    429: "RATE_LIMITED",
}


def _print_json(error: Exception, command: str) -> None:
    code = error_code(error)
    message = _message(error) if code != "INTERNAL" else "An internal error occurred."
    if code == "INTERNAL" and os.environ.get("OSMOSIS_DEBUG") == "1":
        message = f"{message}\n{''.join(traceback.format_exception(error))}"
    problem = {"code": code, "message": message, "details": _details(error)}
    _write_json({"command": command, "error": problem})


def _write_json(content: dict[str, Any]) -> None:
    document = {"schema_version": 1, "cli_version": __version__, **content}
    sys.stderr.write(redact_json(orjson.dumps(make_safe(document).value)).decode() + "\n")


def _details(error: Exception) -> dict[str, Any]:
    if isinstance(error, ConfigError):
        issues = [issue._asdict() for issue in error.issues]
        return {"issues": issues} if issues else {} if error.key is None else {"key": error.key}
    if isinstance(error, MissingExtraError):
        return {"extra": error.extra}
    if isinstance(error, InteractiveRequired):
        return dict(error.details)
    return {}


def _message(error: Exception) -> str:
    return error.format_message() if isinstance(error, typer.TyperException) else str(error)


def _with_usage(error: Exception) -> str:
    """A misused command line, and how it is used."""
    context = getattr(error, "ctx", None)
    if context is None:
        return _message(error)
    return (
        f"{_message(error)}\n{context.get_usage()}\nTry '{context.command_path} --help' for help."
    )


def _users_traceback(error: OsmosisError) -> Iterator[str]:
    """Where users' code raised what made it unusable; the way there through ours is left out."""
    cause = error.__cause__
    if not isinstance(error, ConfigError) or error.key not in _USERS_CODE or cause is None:
        return
    told = traceback.TracebackException.from_exception(cause)
    frames = [frame for frame in told.stack if is_users(frame.filename)]
    told.stack = traceback.StackSummary.from_list(frames)
    # Its last line is the end of the message that follows. Of wrong syntax the lines before say
    # where.
    *where, _ = told.format(chain=False)
    if frames or isinstance(cause, SyntaxError):
        yield from where


_USERS_CODE = frozenset({"entrypoint", "model_path"})
"""Keys whose values are code to import."""


def _print_text(label: str, message: str, mode: Mode) -> None:
    message = redact(message)
    if mode is Mode.PLAIN:
        print(f"{label}: {message}", file=sys.stderr)
        return
    text = Text.assemble((f"{label}: ", "bold red"), message)
    Console(stderr=True, highlight=False).print(text, soft_wrap=True)
