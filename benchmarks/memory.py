"""What a finished row keeps in memory, over 10,000 rows of the multiply example in this process."""

from __future__ import annotations

import asyncio
import gc
import json
import shutil
import sys
import tempfile
import tracemalloc
from pathlib import Path

import yardstick

from osmosis_ai.eval.config import load_config
from osmosis_ai.eval.evaluation import Observer, evaluate
from osmosis_ai.eval.runner import Progress

ROWS, FIRST = 10_000, 2_000
BUDGET_BYTES = 300.0


class Scales(Observer):
    """Weighs what the process holds when `FIRST` rows are done, and at the end."""

    def __init__(self) -> None:
        self.weights: dict[int, int] = {}

    def progressed(self, progress: Progress) -> None:
        """Weigh at the two moments that are compared."""
        if progress.finished in (FIRST, ROWS):
            gc.collect()
            self.weights[progress.finished] = tracemalloc.get_traced_memory()[0]

    @property
    def bytes_a_row(self) -> float:
        """What each row between the two moments has left behind."""
        return (self.weights[ROWS] - self.weights[FIRST]) / (ROWS - FIRST)


def main() -> None:
    """Print the bytes a finished row keeps, and the budget."""
    with tempfile.TemporaryDirectory(dir=yardstick.TMPFS) as folder:
        workspace = Path(folder) / "multiply"
        shutil.copytree(
            yardstick.ROOT / "examples" / "multiply",
            workspace,
            ignore=shutil.ignore_patterns(".osmosis", "__pycache__"),
        )
        _write_rows(workspace / "data" / "multiply.jsonl")
        config = workspace / "configs" / "eval" / "multiply.toml"
        config.write_text(config.read_text().replace("n = 4", "n = 1"))
        scales = Scales()
        tracemalloc.start()
        result = asyncio.run(evaluate(load_config(config), observer=scales))
    if result.summary.mean.over != ROWS:
        sys.exit(f"only {result.summary.mean.over} of {ROWS} rows were scored")
    found = scales.bytes_a_row
    yardstick.print_table(
        ["memory", "bytes a finished row", "at most"],
        [[f"{ROWS:,} rows in process", f"{found:.0f}", f"{BUDGET_BYTES:.0f}"]],
    )
    if found > BUDGET_BYTES:
        sys.exit("over the budget")


def _write_rows(path: Path) -> None:
    first = json.loads(path.open().readline())
    with path.open("w") as file:
        for index in range(ROWS):
            one, two = 100 + index % 900, 100 + index // 900
            asked = {"user_prompt": f"val1 = {one}\nval2 = {two}", "ground_truth": str(one * two)}
            file.write(json.dumps({**first, **asked}) + "\n")


if __name__ == "__main__":
    main()
