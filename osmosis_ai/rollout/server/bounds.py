"""Bounds: how much a rollout server takes on, and where its answers may go."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from fnmatch import fnmatchcase

from osmosis_ai.errors import ConfigError
from osmosis_ai.rollout.http import Target

MAX_BODY_BYTES = 64 * 1024 * 1024
"""The largest body of a request: room for a long conversation with pictures in it."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a rollout server refuses because it would be too much, or go to the wrong place."""

    max_body_bytes: int = MAX_BODY_BYTES
    max_queue_depth: int | None = None
    """The most rollouts that wait for a slot; None lets any number wait."""
    callback_hosts: Collection[str] | None = None
    """The hosts that answers are posted to: names, addresses, or patterns like `*.example.org`."""

    def __post_init__(self) -> None:
        if self.max_body_bytes < 1:
            raise _wrong("max_body_bytes", self.max_body_bytes, "at least 1")
        if self.max_queue_depth is not None and self.max_queue_depth < 1:
            raise _wrong("max_queue_depth", self.max_queue_depth, "at least 1, or None")
        if isinstance(self.callback_hosts, str):
            raise _wrong("callback_hosts", self.callback_hosts, "a list of hosts")

    def check_target(self, target: Target) -> None:
        """Raises ValueError where answers may not go there."""
        host = target.address.origin.host.lower()
        allowed = self.callback_hosts
        if allowed is None or any(fnmatchcase(host, pattern.lower()) for pattern in allowed):
            return
        raise ValueError(f"this server posts to certain hosts alone, and not to {host!r}")


def _wrong(name: str, value: object, wanted: str) -> ConfigError:
    return ConfigError(f"{name} is {value!r}; give {wanted}", key=name)
