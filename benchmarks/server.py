"""W3: what the rollout server costs, against one FastAPI route that does the same by hand.

python benchmarks/server.py [--rounds 5]

The journal is off, as nothing is written down on the bare side either. A second table says what the
journal costs. On a machine that is busy the ratio of CPU times says more than that of the rates.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import yardstick

GOAL, SPREAD = 0.70, 3.0
JOURNAL_GOAL = 0.85
NO_JOURNAL = "_OSMOSIS_ROLLOUT_JOURNAL=off"
QUIET = "--log-level", "warning"


def main() -> None:
    """Print the ratios to the bare server, lost and doubled answers, and the latency spread."""
    rounds = _arguments().rounds
    cells = yardstick.run(
        "w3",
        peer="floor-fastapi-callback",
        home=yardstick.TMPFS,
        runs=rounds,
        conc="64,256,512",
        options=QUIET,
        variables=[NO_JOURNAL],
    )
    head = ["w3", "ours/bare", "goal", "by CPU time", "lost", "doubled", "wrong"]
    spreads = [f"p99/p50 (below {SPREAD:g})", "bare p99/p50"]
    yardstick.print_table([*head, *spreads], [_row(cell) for cell in cells])
    written = yardstick.run(
        "w3",
        peer="ours-written",
        home=yardstick.TMPFS,
        runs=rounds,
        conc="64,256",
        options=QUIET,
        variables=[NO_JOURNAL],
    )
    yardstick.print_table(
        ["w3", "with a journal/without", "goal", "by CPU time"],
        [
            [
                cell.name,
                f"{1 / cell.ratio:.2f}",
                f"{JOURNAL_GOAL:.2f}",
                f"{1 / _cpu_ratio(cell):.2f}",
            ]
            for cell in written
        ],
    )
    if any(not _good(cell) for cell in cells) or any(
        1 / cell.ratio < JOURNAL_GOAL for cell in written
    ):
        sys.exit("below the goal")


def _arguments() -> Any:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args()


def _row(cell: yardstick.Cell) -> list[str]:
    ours = cell.ours
    return [
        cell.name,
        f"{cell.ratio:.2f}",
        f"{GOAL:.2f}",
        f"{_cpu_ratio(cell):.2f}",
        f"{ours['lost']:.0f}",
        f"{ours['dup']:.0f}",
        f"{ours['bad']:.0f}",
        f"{_spread(ours):.1f}",
        f"{_spread(cell.bare):.1f}",
    ]


def _good(cell: yardstick.Cell) -> bool:
    ours = cell.ours
    exact = ours["lost"] == ours["dup"] == ours["bad"] == 0
    return cell.ratio >= GOAL and exact and _spread(ours) < SPREAD


def _cpu_ratio(cell: yardstick.Cell) -> float:
    return float(cell.bare["cpu_ms_per_rollout"] / cell.ours["cpu_ms_per_rollout"])


def _spread(side: dict[str, Any]) -> float:
    return float(side["p99_ms"] / side["p50_ms"])


if __name__ == "__main__":
    main()
