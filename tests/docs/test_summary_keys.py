"""The keys of `summary.json` are those that docs/evaluation.md lists, in that order."""

from __future__ import annotations

import json
import re
from pathlib import Path

from osmosis_ai.eval.config import load_config
from osmosis_ai.eval.evaluation import evaluate
from tests.eval.demo import make_demo

PAGE = Path(__file__).parents[2] / "docs" / "evaluation.md"


async def test_the_page_lists_the_keys_of_a_summary(tmp_path: Path) -> None:
    """A key that comes or goes breaks whoever reads the file, and is said here first."""
    await evaluate(load_config(make_demo(tmp_path, "one")))
    summary = json.loads((tmp_path / ".osmosis/evals/demo/summary.json").read_bytes())
    section = PAGE.read_text("utf-8").partition("## The numbers")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`.+?) \|", section, re.MULTILINE)
    assert list(summary) == [key for cell in cells for key in re.findall(r"`(\w+)`", cell)]
