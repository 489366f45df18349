"""An entrypoint: the file that wires a rollout, imported once as a module."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from osmosis_ai.errors import ConfigError, OsmosisError
from osmosis_ai.hint import did_you_mean


def load_entrypoint(entrypoint: Path, import_roots: Sequence[Path]) -> ModuleType:
    """Import a file, with `import_roots` in front of `sys.path` meanwhile.

    It becomes the module that `import` would find from one of the roots, never `__main__`, and
    does not run again where it was imported before. Raises ConfigError; what the file itself
    raised is the `__cause__`, traceback and all.
    """
    path = entrypoint.resolve()
    if not path.is_file():
        hint = did_you_mean(path.name, (file.name for file in path.parent.glob("*.py")))
        raise ConfigError(
            f"entrypoint {entrypoint} is not a file; experiment.entrypoint is a path inside the "
            f"rollout's directory{hint}",
            key="entrypoint",
        )
    with import_path(import_roots):
        return _import(path, _module_name(path, import_roots))


@contextmanager
def import_path(roots: Sequence[Path]) -> Iterator[None]:
    """Let `import` find what lies in these directories, before anything else."""
    added = [str(root.resolve()) for root in roots]
    sys.path[:0] = added
    try:
        yield
    finally:
        for root in added:
            # The user's code may have taken it off itself.
            if root in sys.path:
                sys.path.remove(root)


@contextmanager
def forgetting_modules(roots: Sequence[Path]) -> Iterator[None]:
    """Forget, at the end, what was imported from these directories since the beginning.

    Rollouts call their files alike: the next one's `main` must not be this one's.
    """
    before = set(sys.modules)
    try:
        yield
    finally:
        for name in sys.modules.keys() - before:
            if name.startswith(_PREFIX) or _lies_in(roots, name):
                del sys.modules[name]


_PREFIX = "osmosis_entrypoint_"


def _lies_in(roots: Sequence[Path], name: str) -> bool:
    # By its name from a root: a virtual environment below one holds what is not the rollout's.
    file = getattr(sys.modules[name], "__file__", None)
    if file is None:
        return False
    where = Path(*name.split("."))
    inside = [root.resolve() / place for root in roots for place in _places(where)]
    return Path(file) in inside


def _places(where: Path) -> tuple[Path, Path]:
    return where.with_suffix(".py"), where / "__init__.py"


def _module_name(path: Path, roots: Sequence[Path]) -> str:
    for root in roots:
        if path.is_relative_to(root.resolve()):
            parts = path.relative_to(root.resolve()).with_suffix("").parts
            if all(part.isidentifier() for part in parts):
                return ".".join(parts)
    return f"{_PREFIX}{path.stem}"


def _import(path: Path, name: str) -> ModuleType:
    known = sys.modules.get(name)
    if known is not None and getattr(known, "__file__", None) == str(path):
        return known
    if known is not None:
        # An entrypoint called json.py must not stand in for the module of that name.
        name = f"{_PREFIX}{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"entrypoint {path} is not a Python file", key="entrypoint")
    module = importlib.util.module_from_spec(spec)
    # Before it runs: pickles and `"main:MyWorkflow"` paths look the module up by its name.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # the user's file runs here, and may raise anything
        del sys.modules[name]
        said = traceback.format_exception_only(error)[-1].strip()
        # An error of ours is a sentence already.
        reason = str(error) if isinstance(error, OsmosisError) else said
        raise ConfigError(f"importing {path} failed: {reason}", key="entrypoint") from error
    return module
