"""A grader for every framework's messages."""

from __future__ import annotations

import json
import re

from osmosis_ai.rollout import Grader, GraderContext


class AnswerGrader(Grader):
    """1.0 where the last message says `#### <the product>`, else 0.0."""

    async def grade(self, ctx: GraderContext) -> None:
        """Look through the whole message: text is in another place in each framework."""
        if ctx.sample is None or ctx.label is None:
            raise ValueError("multiply needs a sample and a row with a ground_truth")
        said = json.dumps(ctx.sample.messages[-1], default=str)
        found = re.findall(r"#### (-?\d+(?:\.\d+)?)", said)
        ctx.set_reward(1.0 if found and float(found[-1]) == float(ctx.label) else 0.0)
