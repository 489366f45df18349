"""W1: what LocalBackend costs a rollout, against the same code without any SDK."""

from __future__ import annotations

import sys
import tempfile

import yardstick


def main(workload: str = "w1", conc: str = "4,64,none", goal: float = 0.35) -> None:
    """Print the ratio to the bare side with the artifacts on tmpfs, and on the disk."""
    with tempfile.TemporaryDirectory(prefix="bench-disk-", dir=".") as disk:
        on = {
            place: yardstick.run(workload, peer="bare-fs", home=home, conc=conc)
            for place, home in {"tmpfs": yardstick.TMPFS, "disk": disk}.items()
        }
    rows = [
        [fast.name, f"{fast.ratio:.2f}", f"{slow.ratio:.2f}", f"{goal:.2f}"]
        for fast, slow in zip(on["tmpfs"], on["disk"], strict=True)
    ]
    yardstick.print_table([workload, "ours/bare, tmpfs", "ours/bare, disk", "goal"], rows)
    if any(cell.ratio < goal for cell in on["tmpfs"]):
        sys.exit("below the goal")


if __name__ == "__main__":
    main()
