"""What an entrypoint is, told without running anything but its import."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from osmosis_ai.launch import forgetting_modules, load_entrypoint
from osmosis_ai.rollout.backend.base import ExecutionBackend


@dataclass(frozen=True, slots=True)
class Wiring:
    """What an entrypoint has for a driver to take."""

    backend: str | None
    """The class of its module-level `backend`; with one it runs in our process."""
    has_app: bool
    """Whether it has an `app` to serve."""


def check_entrypoint(entrypoint: Path, *, import_roots: Sequence[Path]) -> Wiring:
    """Import an entrypoint, once, and say what it is; its own errors are the cause of ConfigError.

    Nothing is looked for but the names `backend` and `app`: no classes, no other modules.
    """
    with forgetting_modules(import_roots):
        module = load_entrypoint(entrypoint, import_roots)
    backend = getattr(module, "backend", None)
    found = type(backend).__name__ if isinstance(backend, ExecutionBackend) else None
    return Wiring(found, getattr(module, "app", None) is not None)
