"""A scripted policy that multiplies with whatever tools an agent offers it."""

from __future__ import annotations

import json
import re
from typing import Any


def reply(request: dict[str, Any], call: Any) -> str | dict[str, Any]:
    """Call `multiply`, then answer with what it gave; through `final_answer` where there is one."""
    messages = request["messages"]
    if not any(message["role"] == "assistant" for message in messages):
        val1, val2 = (int(value) for value in re.findall(r"val\d = (-?\d+)", text_of(messages)))
        return call_tool("multiply", val1=val1, val2=val2)
    product = re.findall(r"-?\d+", text_of(messages[-1:]))[-1]
    answer = f"#### {product}"
    offered = [tool["function"]["name"] for tool in request.get("tools", [])]
    return call_tool("final_answer", answer=answer) if "final_answer" in offered else answer


def text_of(messages: list[dict[str, Any]]) -> str:
    """What messages say, their content being text or a list of parts."""
    return " ".join(
        content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
        for content in (message.get("content") for message in messages)
    ).replace("\\n", "\n")


def call_tool(name: str, **arguments: Any) -> dict[str, Any]:
    """An assistant message that calls one tool."""
    return {"tool_calls": [{"function": {"name": name, "arguments": arguments}}]}
