"""Secrets stay out of what is written down and said: [REDACTED] stands in their place."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote, quote_plus

REDACTED = "[REDACTED]"

SECRET_NAMES_VARIABLE = "_OSMOSIS_SECRET_NAMES"
"""Names, with commas between them, of the variables whose values a program of ours has to hide."""

MIN_CHARS = 4
"""A shorter value cannot be told from other text, and is not looked for."""


class Redactor:
    """Knows what to hide; this process has one, and the functions below are its methods."""

    def __init__(self) -> None:
        self._values: frozenset[str] = frozenset()
        self._in_text: re.Pattern[str] | None = None
        self._in_bytes: re.Pattern[bytes] | None = None

    def hide(self, values: Iterable[str]) -> None:
        """Hide these values, from now on and for good: a process's last words may hold one."""
        known = self._values | {value for value in values if len(value) >= MIN_CHARS}
        if known == self._values:
            return
        # The longest first: one may be the beginning of another.
        forms = sorted({form for value in known for form in _forms(value)}, key=len, reverse=True)
        self._in_text = re.compile("|".join(map(re.escape, forms)))
        self._in_bytes = re.compile(b"|".join(re.escape(_encode(form)) for form in forms))
        self._values = known

    def hide_variables(self, environ: Mapping[str, str] = os.environ) -> None:
        """Hide the values of the variables that `SECRET_NAMES_VARIABLE` names."""
        names = environ.get(SECRET_NAMES_VARIABLE, "").split(",")
        self.hide(environ[name] for name in names if name in environ)

    def hides_something(self) -> bool:
        """Whether there are secrets at all."""
        return self._in_text is not None

    def redact(self, text: str) -> str:
        """The text without secrets, also where they are escaped as in JSON, a repr or a URL."""
        return text if self._in_text is None else self._in_text.sub(REDACTED, text)

    def redact_json(self, data: bytes) -> bytes:
        """A JSON document without secrets in its texts and keys; it stays one."""
        if self._in_bytes is None or self._in_bytes.search(data) is None:
            return data
        document = self._redacted(json.loads(data))
        indent = 2 if b"\n " in data else None
        separators = None if indent else (",", ":")
        text = json.dumps(document, ensure_ascii=False, indent=indent, separators=separators)
        return _encode(text) + (b"\n" if data.endswith(b"\n") else b"")

    def _redacted(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.redact(value)
        if isinstance(value, list):
            return [self._redacted(one) for one in value]
        if isinstance(value, dict):
            return {self.redact(key): self._redacted(one) for key, one in value.items()}
        return value


_REDACTOR = Redactor()
hide = _REDACTOR.hide
hide_variables = _REDACTOR.hide_variables
hides_something = _REDACTOR.hides_something
redact = _REDACTOR.redact
redact_json = _REDACTOR.redact_json


def _forms(value: str) -> set[str]:
    """A value as it is, and as others write it."""
    data = _encode(value)
    return {
        value,
        json.dumps(value)[1:-1],
        json.dumps(value, ensure_ascii=False)[1:-1],
        repr(value)[1:-1],
        quote(data, safe=""),
        quote_plus(data),
    }


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
