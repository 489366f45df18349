"""`osmosis rollout serve`: one rollout of a workspace, or any file, as a rollout server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from osmosis_ai.errors import ConfigError
from osmosis_ai.eval.config import find_workspace
from osmosis_ai.hint import did_you_mean
from osmosis_ai.rollout.driver.serve import DEFAULT_PORT, serve_entrypoint


def serve(
    target: Annotated[
        str, typer.Argument(metavar="NAME|PATH", help="A directory under rollouts/, or a file.")
    ],
    port: Annotated[int, typer.Option(help="Where it listens.", min=1, max=65535)] = DEFAULT_PORT,
    host: Annotated[
        str, typer.Option(help="The address it listens at; a file that listens by itself decides.")
    ] = "127.0.0.1",
) -> None:
    """Serve a rollout until you stop it."""
    entrypoint = find_entrypoint(target)
    roots = [entrypoint.parent, *_workspace(entrypoint)]
    serve_entrypoint(entrypoint, roots, host=host, port=port, port_is_chosen=True)


def find_entrypoint(target: str) -> Path:
    """The file that a name or a path means; raises ConfigError where there is none."""
    path = Path(target)
    if path.is_file():
        return path.resolve()
    rollouts = find_workspace(Path.cwd()) / "rollouts"
    found = rollouts / target / "main.py"
    if not found.is_file():
        hint = did_you_mean(target, (main.parent.name for main in rollouts.glob("*/main.py")))
        raise ConfigError(f"{target} is no file, and there is no {found}{hint}")
    return found


def _workspace(entrypoint: Path) -> list[Path]:
    try:
        return [find_workspace(entrypoint.parent)]
    except ConfigError:
        return []
