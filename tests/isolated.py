"""A Python that sees only the distributions a test names: folders of links, no installing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import osmosis_ai


def run_python(*arguments: str, path: Sequence[Path] | None = None, cwd: Path | None = None) -> str:
    """What this interpreter prints; with `path`, it sees those folders and nothing installed."""
    flags = [] if path is None else ["-S"]
    environment = dict(os.environ)
    if path is not None:
        environment["PYTHONPATH"] = os.pathsep.join(map(str, path))
    answer = subprocess.run(
        [sys.executable, *flags, *arguments],
        capture_output=True,
        check=False,
        text=True,
        env=environment,
        cwd=cwd,
    )
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def link_installed(folder: Path, keep: Callable[[str], bool]) -> Path:
    """Link the installed distributions whose canonical name `keep` accepts into `folder`."""
    folder.mkdir(parents=True)
    for found in distributions():
        if keep(canonicalize_name(found.name)):
            tops = {file.parts[0] for file in found.files or []} - {"..", "__pycache__"}
            for top in tops:
                _link(Path(str(found.locate_file(top))), folder / top)
    return folder


def link_ours(folder: Path) -> None:
    """Link the package under test into `folder`, also where it is installed as a checkout."""
    _link(Path(osmosis_ai.__file__).parent, folder / "osmosis_ai")


def closure(name: str, *, extra: str = "") -> set[str]:
    """The distributions `pip install name[extra]` brings to this interpreter, `name` included."""
    found: set[str] = set()
    owed = {(canonicalize_name(name), extra)}
    seen: set[tuple[str, str]] = set()
    while owed:
        name, extra = owed.pop()
        seen.add((name, extra))
        found.add(name)
        owed |= _requirements(name, extra) - seen
    return found


def _requirements(name: str, extra: str) -> set[tuple[str, str]]:
    needed = map(Requirement, distribution(name).requires or [])
    return {
        (canonicalize_name(one.name), wanted)
        for one in needed
        if one.marker is None or one.marker.evaluate({"extra": extra})
        for wanted in {"", *one.extras}
    }


def _link(source: Path, target: Path) -> None:
    if not target.exists():
        target.symlink_to(source)
