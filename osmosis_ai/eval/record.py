"""Record: one line of a run's journal, which says what came of one try at an item."""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Any, Final, Literal

import orjson
from pydantic import ConfigDict, Field, FiniteFloat, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from osmosis_ai.eval.outcome import Outcome, Verdict
from osmosis_ai.redaction import redact
from osmosis_ai.rollout.driver.base import RolloutItem, seed_for
from osmosis_ai.rollout.raised import one_line
from osmosis_ai.rollout.safe_json import safe_text
from osmosis_ai.rollout.types import ExecutionOutcome, RolloutId, RolloutTiming

SCHEMA_VERSION: Final = 1
"""Of every file in a run folder, and of every line of the journal."""

MAX_MESSAGE_CHARS = 2000
"""What is kept of an error's message; the whole of it is in the server's log."""


_Count = Annotated[int, Field(ge=0)]


# Of a line's texts its keys alone are cached: the others are its own, at 140 bytes a record.
@dataclass(
    config=ConfigDict(strict=True, validate_by_name=True, cache_strings="keys"),
    frozen=True,
    slots=True,
    kw_only=True,
)
class Record:
    """What came of one try; of several tries at an item the last counts."""

    row: _Count
    attempt: _Count
    try_index: Annotated[_Count, Field(alias="try")]
    """`try` in the file: 0 for the first go at this attempt."""
    item: str
    """Names the row's content, and which of the equal rows it is."""
    rollout_id: RolloutId
    outcome: Outcome
    reward: FiniteFloat | None = None
    """Of a scored rollout; every other outcome has none."""
    error_phase: str | None = None
    error_category: str | None = None
    error_message: str | None = None
    error_summary: str | None = None
    """What user code raised, in one line for people: class, message and place."""
    calls: _Count | None = None
    """Model calls; None where the driver did not see them."""
    failed_calls: _Count | None = None
    retries: _Count | None = None
    """Goes at model calls after their first."""
    prompt_tokens: _Count | None = None
    completion_tokens: _Count | None = None
    total_tokens: _Count | None = None
    cost_usd: FiniteFloat | None = None
    """Of all model calls; None where the price of one is not known."""
    duration_sec: FiniteFloat | None = None
    waiting_sec: FiniteFloat | None = None
    """Before it began."""
    model_sec: FiniteFloat | None = None
    """Of the workflow, with at least one model call open."""
    tools_sec: FiniteFloat | None = None
    """The rest of the workflow."""
    grading_sec: FiniteFloat | None = None
    """None where nothing was graded."""
    call_sec: tuple[FiniteFloat, ...] | None = None
    """Each model call that was answered."""
    schema_version: Literal[1] = SCHEMA_VERSION

    @property
    def complaint(self) -> str | None:
        """What went wrong, in one line for people; None where nothing did."""
        if self.error_summary is not None:
            return self.error_summary
        return None if self.error_message is None else one_line(self.error_message)


def item_for(*, row: int, attempt: int, item: str) -> RolloutItem:
    """What a model may depend on; the seed follows from the content alone, not from the run."""
    return RolloutItem(row=row, attempt=attempt, seed=seed_for(attempt=attempt, item=item))


def make_record(
    verdict: Verdict,
    outcome: ExecutionOutcome | None,
    *,
    item: RolloutItem,
    key: str,
    try_index: int,
    rollout_id: str,
    duration_sec: float,
) -> Record:
    """The record of a rollout that has ended; `outcome` is None where its driver failed."""
    usage = None if outcome is None else outcome.usage
    measured = None if outcome is None else outcome.duration_sec
    timing = None if outcome is None else outcome.timing
    return Record(
        row=item.row,
        attempt=item.attempt,
        try_index=try_index,
        item=key,
        rollout_id=rollout_id,
        outcome=verdict.outcome,
        reward=verdict.reward,
        error_phase=verdict.phase,
        error_category=verdict.category,
        error_message=_told(verdict.message),
        error_summary=_told(verdict.summary),
        calls=None if usage is None else usage.calls,
        failed_calls=None if usage is None else usage.failed_calls,
        retries=None if usage is None else usage.retries,
        prompt_tokens=None if usage is None else usage.prompt_tokens,
        completion_tokens=None if usage is None else usage.completion_tokens,
        total_tokens=None if usage is None else usage.total_tokens,
        cost_usd=None if usage is None else usage.cost_usd,
        duration_sec=round(duration_sec if measured is None else measured, 6),
        **({} if timing is None else _parts(timing, verdict)),
    )


def _parts(timing: RolloutTiming, verdict: Verdict) -> dict[str, Any]:
    was_graded = timing.grading_sec is not None and verdict.outcome is not Outcome.UNGRADED
    return {
        "waiting_sec": round(timing.waiting_sec, 6),
        "model_sec": round(timing.model_sec, 6),
        "tools_sec": round(timing.tools_sec, 6),
        "grading_sec": round(timing.grading_sec or 0.0, 6) if was_graded else None,
        "call_sec": tuple(round(seconds, 6) for seconds in timing.call_sec),
    }


def to_json(record: Record) -> dict[str, Any]:
    """The record as its line in the journal has it."""
    return {key: getattr(record, name) for key, name in _KEYS.items()}


def to_line(record: Record) -> bytes:
    """The record as one line, newline included."""
    return orjson.dumps(to_json(record)) + b"\n"


def parse_record(line: bytes) -> Record:
    """Read a line; raises ValueError that says what is wrong with it. Unknown keys are ignored."""
    try:
        record = _ADAPTER.validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ValueError(f"{where}: {first['msg']}" if where else first["msg"]) from error
    if (record.outcome is Outcome.SCORED) != (record.reward is not None):
        raise ValueError(f"outcome {record.outcome} with reward {record.reward}")
    return record


_ADAPTER = TypeAdapter(Record)

_KEYS = {"try" if field.name == "try_index" else field.name: field.name for field in fields(Record)}
"""The keys of a line, and the fields they are."""


def _told(message: str | None) -> str | None:
    if message is None:
        return None
    text = redact(safe_text(message))
    if len(text) <= MAX_MESSAGE_CHARS:
        return text
    return f"{text[:MAX_MESSAGE_CHARS]}... ({len(text)} characters)"
