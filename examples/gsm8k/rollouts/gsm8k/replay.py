"""Replayed models: each answers a question with the solution that was recorded for it.

The recordings are `model_solutions.jsonl` in the directory that GSM8K_DIR names.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


def replay(model: str) -> Callable[[dict[str, Any], object], str]:
    """A scripted policy that looks the question up in what `model` once answered."""
    solutions = {line["question"]: line[model]["solution"] for line in RECORDED}
    return lambda request, _call: solutions[request["messages"][-1]["content"]]


def _read_recorded() -> list[dict[str, Any]]:
    with Path(os.environ["GSM8K_DIR"], "model_solutions.jsonl").open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


RECORDED = _read_recorded()

model_6b_finetuning = replay("6b_finetuning")
model_6b_verification = replay("6b_verification")
model_175b_finetuning = replay("175b_finetuning")
model_175b_verification = replay("175b_verification")
