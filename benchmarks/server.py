"""W3: what the rollout server costs, against one FastAPI route that does the same by hand."""

from __future__ import annotations

import sys

import yardstick

GOAL, SPREAD = 0.70, 3.0


def main() -> None:
    """Print the ratio to the bare server, lost and doubled answers, and the latency spread."""
    cells = yardstick.run(
        "w3",
        peer="floor-fastapi-callback",
        home=yardstick.TMPFS,
        conc="64,256,512",
        options=["--log-level", "warning"],
    )
    rows = [
        [
            cell.name,
            f"{cell.ratio:.2f}",
            f"{GOAL:.2f}",
            f"{cell.ours['lost']:.0f}",
            f"{cell.ours['dup']:.0f}",
            f"{cell.ours['bad']:.0f}",
            f"{cell.ours['p99_ms'] / cell.ours['p50_ms']:.1f}",
        ]
        for cell in cells
    ]
    head = ["w3", "ours/bare", "goal", "lost", "doubled", "wrong", "p99/p50 (below 3)"]
    yardstick.print_table(head, rows)
    if any(not _good(cell) for cell in cells):
        sys.exit("below the goal")


def _good(cell: yardstick.Cell) -> bool:
    ours = cell.ours
    exact = ours["lost"] == ours["dup"] == ours["bad"] == 0
    return cell.ratio >= GOAL and exact and ours["p99_ms"] < SPREAD * ours["p50_ms"]


if __name__ == "__main__":
    main()
