"""A scripted policy that multiplies: usually with the tool, sometimes in its head and wrong.

It stands in for a model, costs nothing and always says the same: each reply follows from the
request and from `call.seed`, which belongs to the row and the attempt.
"""

from __future__ import annotations

import random
import re
from typing import Any, Protocol

FORGETS_TOOL = 0.3
"""Share of rollouts that do it in the head."""
SLIPS = 0.7
"""Share of those that lose a carry."""
CHECKS = 0.4
"""Share of the others that call the tool a second time, with the factors swapped."""


class Call(Protocol):
    """What `reply` needs to know of a call."""

    @property
    def seed(self) -> int:
        """A number that belongs to the row and the attempt."""
        ...


def reply(request: dict[str, Any], call: Call) -> str | dict[str, Any]:
    """The next assistant message of a conversation: a tool call or the answer."""
    # One die for each rollout, thrown the same on every turn.
    die = random.Random(call.seed)
    forgets, slips, checks = (die.random() < share for share in (FORGETS_TOOL, SLIPS, CHECKS))
    val1, val2 = read_factors(request["messages"])
    results = [message["content"] for message in request["messages"] if message["role"] == "tool"]
    if not results and forgets:
        guess = val1 * val2 - (10 ** die.randint(1, 3) if slips else 0)
        return f"In my head that makes {guess}.\n\n#### {guess}"
    if not results:
        return call_multiply(val1, val2)
    if len(results) == 1 and checks:
        return call_multiply(val2, val1)
    return f"The tool says {results[-1]}.\n\n#### {results[-1]}"


def read_factors(messages: list[dict[str, Any]]) -> tuple[int, int]:
    """The two numbers of the user's message."""
    prompt = next(message["content"] for message in messages if message["role"] == "user")
    val1, val2 = re.findall(r"= (-?\d+)", prompt)
    return int(val1), int(val2)


def call_multiply(val1: int, val2: int) -> dict[str, Any]:
    """An assistant message that calls the tool."""
    function = {"name": "multiply", "arguments": {"val1": val1, "val2": val2}}
    return {"tool_calls": [{"function": function}]}
