"""What the agent can do."""

from __future__ import annotations

from strands import tool


@tool
def multiply(val1: float, val2: float) -> str:
    """Multiply two numbers exactly.

    Args:
        val1: the first
        val2: the second
    """
    return f"{val1 * val2:.12g}"
