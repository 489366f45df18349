"""Which addresses mean the machine that calls them."""

from __future__ import annotations

from urllib.parse import urlsplit

LOOPBACK = "127.0.0.1"

WILDCARDS = frozenset({"0.0.0.0", "::"})
"""What a listener binds to, and nobody can call."""


def is_loopback(url: str) -> bool:
    """Whether an address means the machine that calls it."""
    return is_loopback_host(urlsplit(url).hostname or "")


def is_loopback_host(host: str) -> bool:
    """Whether a host is the machine itself, under a name that only it understands so."""
    return host in ("localhost", "::1") or host.startswith("127.")
