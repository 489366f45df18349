"""Where secrets come from: a file, the environment, a hidden prompt; never from a command line."""

from __future__ import annotations

import getpass
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from osmosis_ai.cli.mode import InteractiveRequired, Mode
from osmosis_ai.errors import ConfigError
from osmosis_ai.redaction import hide

STDIN = "-"


@contextmanager
def secrets_set(names: Sequence[str], *, file: str | None, mode: Mode) -> Iterator[None]:
    """Have the named secrets in the environment meanwhile: the file's first, then what is there.

    What is in neither is asked for, where a person sits at a terminal; raises InteractiveRequired,
    with all that is missing, where nobody does.
    """
    given = {} if file is None else parse_secrets(_read(file))
    found = {name: given[name] for name in names if name in given}
    found |= _asked([name for name in names if not (found.get(name) or os.environ.get(name))], mode)
    hide(found.values())
    _refuse([name for name in names if not (found.get(name) or os.environ.get(name))])
    before = {name: os.environ.get(name) for name in found}
    os.environ.update(found)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


_LINE = re.compile(r"(?:export\s+)?([A-Za-z_]\w*)\s*=\s*(.*)")


def parse_secrets(text: str) -> dict[str, str]:
    """`NAME=value` lines; an error names the number of a line and never what is in it."""
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        content = line.strip()
        if not content or content.startswith("#"):
            continue
        match = _LINE.fullmatch(content)
        if match is None or "\0" in content:
            raise ConfigError(
                f"the secrets file, line {number}: not of the form NAME=value", key="secrets-file"
            )
        found[match[1]] = _unquoted(match[2])
    return found


def _unquoted(value: str) -> str:
    is_quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
    return value[1:-1] if is_quoted else value


def _read(file: str) -> str:
    try:
        if file == STDIN:
            return sys.stdin.read()
        with open(file, encoding="utf-8-sig") as opened:
            return opened.read()
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}", key="secrets-file") from error
    except UnicodeDecodeError:
        # Without its cause, which holds the bytes.
        raise ConfigError(f"{file} is not UTF-8 text", key="secrets-file") from None


def _refuse(missing: Sequence[str]) -> None:
    if missing:
        raise InteractiveRequired(
            f"secrets.required names {', '.join(missing)}: not set in the environment, and nobody "
            "is there to be asked. Export them, or give --secrets-file FILE.",
            details={"missing": list(missing), "flags": ["--secrets-file"]},
        )


def _asked(names: Sequence[str], mode: Mode) -> Mapping[str, str]:
    if mode is not Mode.RICH or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return {}
    return {name: _ask(name) for name in names}


def _ask(name: str) -> str:
    while not (value := getpass.getpass(f"{name} (hidden): ", stream=sys.stderr)):
        print("It cannot be empty; Ctrl-C ends.", file=sys.stderr)
    return value
