"""What an entrypoint is, told without running anything but its import."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from osmosis_ai.launch import forgetting_modules, load_entrypoint
from osmosis_ai.rollout.backend.base import ExecutionBackend


@dataclass(frozen=True, slots=True)
class Wiring:
    """What an entrypoint has for a driver to take."""

    backend: str | None
    """The class of its module-level `backend`; with one it runs in our process."""
    has_app: bool
    """Whether it has an `app` to serve."""
    problem: str | None = None
    """What it lacks, unless it listens by itself when it is started."""


def check_entrypoint(entrypoint: Path, *, import_roots: Sequence[Path]) -> Wiring:
    """Import an entrypoint, once, and say what it is; its own errors are the cause of ConfigError.

    Nothing is looked for but the names `backend` and `app`: no classes, no other modules.
    """
    with forgetting_modules(import_roots):
        module = load_entrypoint(entrypoint, import_roots)
    backend = find_backend(module, entrypoint)
    has_app = getattr(module, "app", None) is not None
    if isinstance(backend, ExecutionBackend):
        return Wiring(type(backend).__name__, has_app)
    return Wiring(None, has_app, problem=None if has_app else backend)


def find_backend(module: ModuleType, entrypoint: Path) -> ExecutionBackend | str:
    """The entrypoint's `backend`, or a clause that says what it has in its place."""
    backend = getattr(module, "backend", None)
    if isinstance(backend, ExecutionBackend):
        return backend
    missing = f"{entrypoint.name} has no ExecutionBackend named `backend`"
    if backend is not None:
        return f"{missing}: its `backend` is a {type(backend).__name__}"
    for name, value in vars(module).items():
        if isinstance(value, ExecutionBackend):
            return f"{missing}: its {type(value).__name__} is named `{name}`"
    return missing
