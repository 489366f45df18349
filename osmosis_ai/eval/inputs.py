"""What a run was made from, and what has changed since: results of two things must never mix."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from osmosis_ai.errors import ConfigError
from osmosis_ai.eval.config import EvalConfig
from osmosis_ai.eval.dataset import Dataset
from osmosis_ai.rollout.safe_json import dump_json

CACHES = (
    "__pycache__",
    "*.pyc",
    "*.egg-info",
    "*.swp",
    "*~",
    ".#*",
    ".*_cache",
    ".DS_Store",
    ".git",
    ".hypothesis",
    ".ipynb_checkpoints",
    ".osmosis",
    ".venv",
    "node_modules",
    "venv",
)
"""Names under a rollout's directory that are no code: caches, environments, editors' traces."""

SHOWN_FILES = 5
"""Changed files named one by one; the rest is counted."""


class DataInput(BaseModel):
    """The data set as it was."""

    sha256: str
    rows: int


class CodeInput(BaseModel):
    """The files under the rollout's directory as they were."""

    sha256: str
    files: dict[str, str]
    """Each with its digest."""


class Inputs(BaseModel):
    """What decides what comes out of a run; may not change while it lasts."""

    data: DataInput
    code: CodeInput
    settings: dict[str, Any]
    """By dotted key."""


def describe_inputs(config: EvalConfig, dataset: Dataset) -> Inputs:
    """The data set, code and settings of a run that begins now.

    Left out is what only reads results (the pass threshold), what may grow (rows, n), and what
    says how fast or how hard to try.
    """
    files = dict(_digest_tree(config.rollout_dir))
    inputs = {
        "data": {"sha256": dataset.sha256, "rows": dataset.total_rows},
        "code": {"sha256": _digest_of(files), "files": files},
        "settings": _settings(config),
    }
    # As it will be read back: TOML has dates and NaN, and file names need not be text.
    return Inputs.model_validate_json(dump_json(inputs).data)


def changed_inputs(before: Inputs, now: Inputs) -> list[str]:
    """One line for each difference, naming what changed; empty where nothing did."""
    return [
        *_changed_data(before.data, now.data),
        *_changed_files(before.code.files, now.code.files),
        *_changed_settings(before.settings, now.settings),
    ]


def _settings(config: EvalConfig) -> dict[str, Any]:
    file = config.file
    experiment, evaluation = file.experiment, file.evaluation
    return {
        "experiment.rollout": experiment.rollout,
        "experiment.entrypoint": experiment.entrypoint,
        "experiment.model_path": experiment.model_path,
        "evaluation.agent_workflow_timeout_s": evaluation.agent_workflow_timeout_s,
        "evaluation.grader_timeout_s": evaluation.grader_timeout_s,
        "evaluation.max_model_calls": evaluation.max_model_calls,
        "evaluation.max_tokens": evaluation.max_tokens,
        "evaluation.max_cost": evaluation.max_cost,
        "model.base_url": file.model.base_url,
        "model.params": file.model.params,
        "env": file.env,
        "secrets.required": sorted(file.secrets.required),
    }


def _changed_data(before: DataInput, now: DataInput) -> Iterator[str]:
    if before.sha256 != now.sha256:
        rows = f" (it had {before.rows} rows, and has {now.rows})"
        yield f"the data set changed{'' if before.rows == now.rows else rows}"


def _changed_files(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    changed = sorted(
        file for file in before.keys() | now.keys() if before.get(file) != now.get(file)
    )
    for file in changed[:SHOWN_FILES]:
        how = "is new" if file not in before else "is gone" if file not in now else "changed"
        yield f"code: {file} {how}"
    if len(changed) > SHOWN_FILES:
        yield f"code: and {len(changed) - SHOWN_FILES} more files"


def _changed_settings(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for key in sorted(before.keys() | now.keys()):
        if before.get(key) != now.get(key):
            yield f"{key} was {before.get(key)!r}, is now {now.get(key)!r}"


def _digest_tree(root: Path) -> Iterator[tuple[str, str]]:
    """Each file under a directory with the digest of its content, sorted, caches left out."""
    for directory, names, files in os.walk(root):
        names[:] = sorted(name for name in names if not _is_cache(name))
        links = [name for name in names if os.path.islink(os.path.join(directory, name))]
        for name in sorted(file for file in [*files, *links] if not _is_cache(file)):
            path = Path(directory, name)
            yield path.relative_to(root).as_posix(), _digest_path(path)


def _is_cache(name: str) -> bool:
    return any(fnmatch(name, pattern) for pattern in CACHES)


def _digest_path(path: Path) -> str:
    if not path.is_file():
        # A linked directory, or a link to nothing, counts as what it points to; a socket by name.
        target = os.readlink(path) if path.is_symlink() else ""
        return hashlib.sha256(os.fsencode(target)).hexdigest()
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ConfigError(
            f"cannot read {path}: {error.strerror}. Every file under the rollout's directory is "
            "part of what is evaluated; move it elsewhere or make it readable."
        ) from error


def _digest_of(files: Mapping[str, str]) -> str:
    lines = "".join(f"{digest}  {name}\n" for name, digest in sorted(files.items()))
    return hashlib.sha256(lines.encode("utf-8", "surrogateescape")).hexdigest()
