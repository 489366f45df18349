"""What importing the front door and asking the CLI for help cost, against bare equivalents."""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import yardstick

from osmosis_ai.cli.main import GROUPS

ROUNDS = 15

BARE_IMPORT = "import asyncio; from pydantic import BaseModel"

BARE_CLI = """
import typer
app = typer.Typer(no_args_is_help=True)
for group in {groups!r}:
    app.add_typer(typer.Typer(help="A group.", no_args_is_help=True), name=group)
app()
"""


def cpu_sec(command: Sequence[str]) -> float:
    """User and system seconds of one finished command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=_environment())
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime - before.ru_utime) + (after.ru_stime - before.ru_stime)


def compare(ours: Sequence[str], bare: Sequence[str]) -> float:
    """The median ratio of CPU time over interleaved rounds, after one that fills the caches."""
    rounds = [(cpu_sec(ours), cpu_sec(bare)) for _ in range(ROUNDS + 1)]
    return statistics.median(mine / theirs for mine, theirs in rounds[1:])


def main() -> None:
    """Print both ratios and their budgets."""
    python = sys.executable
    osmosis = str(Path(python).parent / "osmosis")
    with tempfile.TemporaryDirectory() as folder:
        bare_cli = Path(folder) / "bare.py"
        bare_cli.write_text(BARE_CLI.format(groups=list(GROUPS)))
        found = [
            (
                "import osmosis_ai.rollout",
                compare([python, "-c", "import osmosis_ai.rollout"], [python, "-c", BARE_IMPORT]),
                1.6,
            ),
            (
                "osmosis --help",
                compare([osmosis, "--help"], [python, str(bare_cli), "--help"]),
                1.3,
            ),
        ]
    rows = [[name, f"{ratio:.2f}", f"{budget:.1f}"] for name, ratio, budget in found]
    yardstick.print_table(["start-up", "ours/bare", "at most"], rows)
    if any(ratio > budget for _, ratio, budget in found):
        sys.exit("over the budget")


def _environment() -> dict[str, str]:
    # Bytecode is what an installed program has; without it the compiler would be measured.
    return {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}


if __name__ == "__main__":
    main()
