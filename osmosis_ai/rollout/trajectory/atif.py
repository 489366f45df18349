"""The shape of an ATIF v1.7 document, and how one is written down.

Plain dicts with types: a server writes one document for each rollout, and building models would
cost more than everything else about it. The tests hold the documents against two sets of models.
"""

from __future__ import annotations

import re
from typing import Any, Literal, NotRequired, TypedDict

from osmosis_ai.rollout.safe_json import SafeJson, dump_json

SCHEMA_VERSION = "ATIF-v1.7"

MAX_COUNT = 2**53
"""The largest number of tokens, or token, that is believed; any JSON reader holds it exactly."""


class Agent(TypedDict):
    """What produced the trajectory."""

    name: str
    version: str
    model_name: NotRequired[str]


class ToolCall(TypedDict):
    """One call of a tool in an agent step."""

    tool_call_id: str
    function_name: str
    arguments: dict[str, Any]


class ObservationResult(TypedDict, total=False):
    """What one tool call gave back; `source_call_id` names a call of the same step."""

    source_call_id: str
    content: str
    extra: dict[str, Any]


class Observation(TypedDict):
    """What came back to the agent in a step."""

    results: list[ObservationResult]


class Metrics(TypedDict, total=False):
    """What one model call cost."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    cost_usd: float
    prompt_token_ids: list[int]
    completion_token_ids: list[int]
    logprobs: list[float]
    extra: dict[str, Any]


class FinalMetrics(TypedDict, total=False):
    """Totals over a trajectory."""

    total_prompt_tokens: int
    total_completion_tokens: int
    total_cached_tokens: int
    total_cost_usd: float
    total_steps: int
    extra: dict[str, Any]


class Step(TypedDict):
    """One turn: something that was said, or an agent's answer and what came back to it."""

    step_id: int
    timestamp: NotRequired[str]
    source: Literal["system", "user", "agent"]
    model_name: NotRequired[str]
    message: str
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[ToolCall]]
    observation: NotRequired[Observation]
    metrics: NotRequired[Metrics]
    llm_call_count: NotRequired[int]
    extra: NotRequired[dict[str, Any]]


class Trajectory(TypedDict):
    """One ATIF document."""

    schema_version: str
    session_id: str
    trajectory_id: str
    agent: Agent
    steps: list[Step]
    final_metrics: FinalMetrics
    extra: dict[str, Any]


# Raw line breaks stand between tokens only, so this matches nothing inside a string.
_NUMBERS = re.compile(rb"\[\n\s*+([-\d][\d.eE+-]*+(?:,\n\s*+[-\d][\d.eE+-]*+)*+)\n\s*+\]")
_BREAK = re.compile(rb",\n\s*+")


def format_json(value: Any) -> SafeJson:
    """Indented JSON with each array of numbers on one line: token ids would be a page each."""
    data, changes = dump_json(value, indent=True)
    return SafeJson(_NUMBERS.sub(_on_one_line, data), changes)


def _on_one_line(found: re.Match[bytes]) -> bytes:
    return b"[" + _BREAK.sub(b", ", found[1]) + b"]"
