"""Write multiply.jsonl: 200 pairs of numbers to multiply, the same ones every time."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

ROWS = 200
SYSTEM_PROMPT = (
    "Multiply val1 by val2 with the multiply tool. End your answer with a line that holds only "
    "#### and the product."
)


def make_rows() -> Iterator[dict[str, str]]:
    """Rows in the documented form: system_prompt, user_prompt, ground_truth."""
    die = random.Random("multiply")
    for _ in range(ROWS):
        val1, val2 = die.randint(12, 9999), die.randint(-999, 999)
        yield {
            "system_prompt": SYSTEM_PROMPT,
            "user_prompt": f"val1 = {val1}\nval2 = {val2}",
            "ground_truth": str(val1 * val2),
        }


if __name__ == "__main__":
    lines = "".join(json.dumps(row) + "\n" for row in make_rows())
    Path(__file__).with_name("multiply.jsonl").write_text(lines, encoding="utf-8")
