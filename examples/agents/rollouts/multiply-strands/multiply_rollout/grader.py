"""The grader and its config."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from osmosis_ai.rollout.context import GraderContext
from osmosis_ai.rollout.grader import Grader
from osmosis_ai.rollout.types import GraderConfig


class MultiplyGrader(Grader):
    """1.0 where the last text says `#### <number>` within 0.01 of the label, else 0.0."""

    async def grade(self, ctx: GraderContext) -> None:
        """Read the last message's text blocks."""
        if ctx.sample is None or ctx.label is None:
            raise ValueError("multiply needs a sample and a row with a ground_truth")
        found = re.search(r"####\s*(-?[\d.]+)", last_text(ctx.sample.messages[-1]))
        correct = found is not None and abs(float(found[1]) - float(ctx.label)) < 1e-2
        ctx.set_reward(1.0 if correct else 0.0)


def last_text(message: Mapping[str, Any]) -> str:
    """The text of a message in Strands' own shape."""
    return "".join(block.get("text", "") for block in message["content"])


config = GraderConfig(name="MultiplyGrader")
