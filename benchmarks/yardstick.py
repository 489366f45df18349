"""Run the fixed yardsticks beside this project's code and read their ratios.

The yardsticks are files outside this repository: `BENCH_DIR`, else `../shared/bench`. They are
copied to a temporary folder first, since they write their results beside themselves.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TMPFS = "/dev/shm"


@dataclass(frozen=True)
class Cell:
    """One setting of a workload: how our rate compares with the bare side's, round by round."""

    name: str
    ratio: float
    ours: dict[str, Any]
    bare: dict[str, Any]


def bench_dir() -> Path:
    """The folder of the yardsticks; ends the program where it is absent."""
    found = Path(os.environ.get("BENCH_DIR", ROOT.parent / "shared" / "bench"))
    if not (found / "run.py").is_file():
        sys.exit(f"no yardsticks in {found}: set BENCH_DIR to the folder that holds run.py")
    return found


def run(
    workload: str,
    *,
    peer: str,
    home: str,
    runs: int = 5,
    conc: str | None = None,
    options: Sequence[str] = (),
    variables: Sequence[str] = (),
) -> list[Cell]:
    """Measure one workload, ours and the bare side in turn, in the same rounds.

    `variables` are set for ours, each as `NAME=VALUE`. A peer named `ours-…` is this project's code
    without them.
    """
    with tempfile.TemporaryDirectory(prefix="yardstick-") as folder:
        bench = Path(folder) / "bench"
        shutil.copytree(bench_dir(), bench)
        for path in [bench, *bench.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)
        command = [
            sys.executable,
            str(bench / "run.py"),
            *("--impl", ",".join([f"ours={sys.executable}", *variables])),
            *("--impl" if peer.startswith("ours-") else "--peer", f"{peer}={sys.executable}"),
            *("--workload", workload, "--runs", str(runs), "--home", home),
            *(("--conc", conc) if conc else ()),
            *options,
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        (result,) = (bench / "results").glob("*.json")
        return [_cell(cell, peer) for cell in json.loads(result.read_text())["cells"]]


def _cell(cell: dict[str, Any], peer: str) -> Cell:
    rows = {row["impl"]: row for row in cell["rows"]}
    rounds = zip(cell["raw"]["ours"], cell["raw"][peer], strict=True)
    ratios = [ours["rps"] / bare["rps"] for ours, bare in rounds if ours and bare]
    if not ratios:
        sys.exit(f"{cell['cell']}: no round finished on both sides")
    return Cell(cell["cell"], statistics.median(ratios), rows["ours"], rows[peer])


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a Markdown table."""
    print("| " + " | ".join(head) + " |")
    print("|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(row) + " |")
