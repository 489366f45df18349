"""`osmosis rollout`: one rollout of a workspace, without an evaluation around it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from osmosis_ai.cli.mode import Mode
from osmosis_ai.cli.output import Fact, Section, print_detail
from osmosis_ai.cli.problem import print_warning
from osmosis_ai.errors import ConfigError
from osmosis_ai.eval.config import find_workspace
from osmosis_ai.eval.preflight import find_unmet
from osmosis_ai.hint import did_you_mean
from osmosis_ai.rollout.driver.check import Wiring, check_entrypoint


def check(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="A directory in rollouts/.")],
    entrypoint: Annotated[str, typer.Option(help="The file in it that wires it.")] = "main.py",
) -> None:
    """Import a rollout as a run would, and say what it is or what it lacks."""
    mode: Mode = ctx.obj
    workspace = find_workspace(Path())
    folder = workspace / "rollouts" / name
    if not folder.is_dir():
        there = sorted(path.name for path in folder.parent.iterdir() if path.is_dir())
        hint = did_you_mean(name, there) or f"; there is: {', '.join(there) or 'none'}"
        raise ConfigError(f"no rollout {name!r} in {folder.parent}{hint}")
    found = check_entrypoint(folder / entrypoint, import_roots=(folder, workspace))
    warnings = [*find_unmet(folder), *_lacks(found)]
    for warning in warnings:
        print_warning(warning, mode=mode)
    data = {
        "rollout": name,
        "entrypoint": entrypoint,
        "backend": found.backend,
        "has_app": found.has_app,
        "warnings": warnings,
    }
    facts = [Fact("Entrypoint", entrypoint, "imported"), Fact("Runs", _how(found))]
    print_detail(data, [Section(name, facts)], mode=mode)


def _lacks(found: Wiring) -> Iterator[str]:
    if found.problem is not None:
        yield (
            f"{found.problem}, and no `app`: unless it listens by itself when it is started, "
            "nothing can run it"
        )


def _how(found: Wiring) -> str:
    if found.backend is not None:
        return f"in this process, on its {found.backend}"
    served = "its app is served" if found.has_app else "it has to listen when it is started"
    return f"as a server of its own: {served}"
