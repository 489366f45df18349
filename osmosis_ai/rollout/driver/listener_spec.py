"""Where rollouts call us: on this machine alone, or at an address that servers elsewhere reach."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

from osmosis_ai.rollout.controller.address import LOOPBACK, WILDCARDS, is_loopback, is_loopback_host

_LISTEN = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\s:/\[\]]+)):(\d{1,5})")


@dataclass(frozen=True, slots=True)
class ListenerSpec:
    """What the listener of a run binds to, and what rollouts are told to call."""

    host: str = LOOPBACK
    port: int = 0
    """0: any that is free."""
    advertise_url: str | None = None
    """Where it is another address than the listener's own."""
    stall_sec: float | None = None
    """After so long without progress a rollout is named in the log."""

    @classmethod
    def parse(
        cls, listen: str | None, *, advertise_url: str | None = None, stall_sec: float | None = None
    ) -> Self:
        """From settings that the two checks below have passed."""
        host, port = (LOOPBACK, 0) if listen is None else split_listen(listen)
        return cls(host, port, advertise_url, stall_sec)

    @property
    def is_wildcard(self) -> bool:
        """Whether it binds to every address, so that none of them can be told to anybody."""
        return self.host in WILDCARDS

    @property
    def is_loopback(self) -> bool:
        """Whether nobody but this machine reaches what rollouts are told to call."""
        if self.advertise_url is not None:
            return is_loopback(self.advertise_url)
        return is_loopback_host(self.host)


def split_listen(text: str) -> tuple[str, int]:
    """`HOST:PORT` as both, `[::1]:PORT` for IPv6; raises ValueError, in words for a person."""
    found = _LISTEN.fullmatch(text)
    if found is None or int(found[3]) > 65535:
        raise ValueError(f"{text!r} must be HOST:PORT, such as 0.0.0.0:9000")
    return found[1] or found[2], int(found[3])


def check_listen(text: str) -> str:
    """The same text; raises ValueError for what is no HOST:PORT."""
    split_listen(text)
    return text


def check_advertise_url(text: str) -> str:
    """The URL without a slash at its end; raises ValueError for what clients cannot call."""
    try:
        parts = urlsplit(text)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_address, parts = False, urlsplit("")
    if not is_address or parts.query or parts.fragment or re.search(r"\s", text):
        raise ValueError(
            f"{text!r} must be the address at which servers reach this machine, such as "
            "http://my-machine:9000"
        )
    return text.rstrip("/")
