"""The folder of one rollout: its files, and the directory that workflow and grader write to."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from osmosis_ai.redaction import redact_json
from osmosis_ai.rollout.context import RolloutContext

logger = logging.getLogger(__name__)

ARTIFACT_ROOT_VARIABLE = "_OSMOSIS_ROLLOUT_ARTIFACT_ROOT"

_DEFAULT = "~/.osmosis"
_PROBE_NAME = ".osmosis-health-check"

# Both hold one entry for each root this process has met, which is one or a few.
_usable_roots: set[str] = set()
_warned_roots: set[str] = set()


def artifact_root(context: RolloutContext | None = None) -> str:
    """Where rollout folders go now: the context's root, else the environment's, else `~/.osmosis`.

    Absolute: a workflow may change the working directory.
    """
    if context is not None and context.artifact_root is not None:
        return os.path.abspath(context.artifact_root)
    root = os.environ.get(ARTIFACT_ROOT_VARIABLE)
    return os.path.abspath(root) if root else _default_root(os.environ.get("HOME"))


# Remembered by what it depends on: it is asked for several times in each rollout.
@lru_cache(maxsize=16)
def _default_root(home: str | None) -> str:
    return os.path.abspath(os.path.expanduser(_DEFAULT))


def make_artifacts_dir(rollout_id: str, *, context: RolloutContext | None = None) -> Path | None:
    """Make `<root>/<rollout-id>/artifacts` and return it, or None where it cannot be made.

    The rollout goes on without it; each unusable root is warned of once.
    """
    root = artifact_root(context)
    folder = f"{root}/{rollout_id}"
    path = f"{folder}/artifacts"
    # Made in line: two small calls cost less than the hop to a thread that would hide them.
    try:
        if root not in _usable_roots:
            _probe(root)
        _make(folder)
        _make(path)
    except (OSError, ValueError) as exc:
        _warn(root, exc)
        return None
    return Path(path)


def replace_file(folder: str, name: str, data: bytes) -> None:
    """Write a file as a whole, so that nobody reads half of it; the folder is made if it is not.

    A link in its place is replaced, not followed. A power cut may lose it. JSON is written without
    secrets.
    """
    if name.endswith(".json"):
        data = redact_json(data)
    temporary = f"{folder}/.{name}.tmp"
    try:
        descriptor = _open_new(temporary)
    except FileNotFoundError:
        os.makedirs(folder, exist_ok=True)
        descriptor = _open_new(temporary)
    try:
        _write_out(descriptor, data)
        os.replace(temporary, f"{folder}/{name}")
    except OSError:
        os.unlink(temporary)
        raise


def _write_out(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    try:
        while rest:
            rest = rest[os.write(descriptor, rest) :]
    finally:
        os.close(descriptor)


def _open_new(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o666)


def _probe(root: str) -> None:
    os.makedirs(root, exist_ok=True)
    with open(f"{root}/{_PROBE_NAME}", "w") as probe:
        probe.write("osmosis-health-check")
    # Another process may have probed the same root, and taken it away.
    with suppress(FileNotFoundError):
        os.unlink(probe.name)
    _usable_roots.add(root)


def _make(path: str) -> None:
    try:
        os.mkdir(path)
    except FileExistsError:
        # A link would be followed to wherever it leads.
        if os.path.islink(path) or not os.path.isdir(path):
            raise
    except FileNotFoundError:
        # The root was removed under a running server: make it again.
        os.makedirs(path, exist_ok=True)


def _warn(root: str, error: Exception) -> None:
    if root in _warned_roots:
        return
    _warned_roots.add(root)
    logger.warning("no artifacts directory under %s: %s; rollouts go on without one", root, error)
