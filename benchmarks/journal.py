"""What a rollout server's journal costs: W3 with it, against the same server without it."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import yardstick

GOAL = 0.85
ROUNDS = 5
OFF = "_OSMOSIS_ROLLOUT_JOURNAL=off"


def main() -> None:
    """Print the ratio of rates and of CPU times, round by round in turn."""
    home = os.environ.get("BENCH_HOME", yardstick.TMPFS)
    with tempfile.TemporaryDirectory(prefix="journal-") as folder:
        bench = Path(folder) / "bench"
        shutil.copytree(yardstick.bench_dir(), bench)
        command = [
            sys.executable,
            str(bench / "run.py"),
            *("--impl", f"off={sys.executable},{OFF}", "--impl", f"on={sys.executable}"),
            *("--workload", "w3", "--runs", str(ROUNDS), "--conc", "64,256", "--home", home),
            *("--log-level", "warning"),
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        (result,) = (bench / "results").glob("*.json")
        cells = json.loads(result.read_text())["cells"]
    rows: list[list[str]] = []
    ratios: list[float] = []
    for cell in cells:
        rounds = list(zip(cell["raw"]["off"], cell["raw"]["on"], strict=True))
        rate = statistics.median(on["rps"] / off["rps"] for off, on in rounds)
        cpu = statistics.median(
            off["cpu_ms_per_rollout"] / on["cpu_ms_per_rollout"] for off, on in rounds
        )
        ratios.append(rate)
        rows.append([cell["cell"], f"{rate:.2f}", f"{cpu:.2f}", f"{GOAL:.2f}"])
    yardstick.print_table(["w3", "on/off", "CPU off/on", "goal"], rows)
    if min(ratios) < GOAL:
        sys.exit("below the goal")


if __name__ == "__main__":
    main()
