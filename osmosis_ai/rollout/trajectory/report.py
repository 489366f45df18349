"""What a controller knows about a rollout's model calls, as its answer to a callback says it."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from osmosis_ai.rollout.trajectory.atif import MAX_COUNT

logger = logging.getLogger(__name__)

Count: TypeAlias = Annotated[int, Field(ge=0, le=MAX_COUNT)]


class LlmCallMetrics(BaseModel):
    """One model call as the controller counted it."""

    model_config = ConfigDict(protected_namespaces=())

    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    cached_tokens: Count | None = None
    cost_usd: float | None = None
    prompt_token_ids: list[Count] | None = None
    completion_token_ids: list[Count] | None = None
    logprobs: list[float] | None = None
    model_name: str | None = None
    extra: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _drop_what_is_not_finite(self) -> Self:
        # An infinite log probability must not cost the token ids beside it.
        dropped: list[str] = []
        if self.cost_usd is not None and not math.isfinite(self.cost_usd):
            self.cost_usd = None
            dropped.append("cost_usd")
        if self.logprobs is not None and not all(map(math.isfinite, self.logprobs)):
            self.logprobs = None
            dropped.append("logprobs")
        if dropped:
            self.extra = {**(self.extra or {}), "not_finite": dropped}
        return self


class SampleReport(BaseModel):
    """The model calls of one sample, in order, and their totals where the controller has them."""

    model_config = ConfigDict(protected_namespaces=())

    model_name: str | None = None
    llm_call_metrics: list[LlmCallMetrics] = Field(default_factory=list[LlmCallMetrics])
    final_metrics: dict[str, Any] | None = None


class TrajectoryReport(BaseModel):
    """A controller's report. A rollout has one sample, so `samples` has one entry, of any key."""

    model_config = ConfigDict(protected_namespaces=())

    model_name: str | None = None
    samples: dict[str, SampleReport] = Field(default_factory=dict[str, SampleReport])


class ReportedTotals(BaseModel):
    """The totals a controller gives; what is left out is summed from the calls."""

    total_prompt_tokens: Count | None = None
    total_completion_tokens: Count | None = None
    total_cached_tokens: Count | None = None
    total_cost_usd: Annotated[float, Field(allow_inf_nan=False)] | None = None
    extra: dict[str, Any] | None = None


class _Ack(BaseModel):
    trajectory: TrajectoryReport | None = None


def report_from_response(
    body: bytes | Mapping[str, Any], *, rollout_id: str = ""
) -> TrajectoryReport | None:
    """The report in the answer to a callback, or None where there is none.

    An answer that is not JSON holds no report; a report that cannot be read costs a warning.
    """
    try:
        if not isinstance(body, bytes):
            return _Ack.model_validate(body).trajectory
        return _Ack.model_validate_json(body).trajectory if b'"trajectory"' in body else None
    except ValidationError as exc:
        errors = exc.errors(include_url=False, include_context=False, include_input=False)
        if _is_about_report(error["loc"] for error in errors):
            where = ".".join(map(str, errors[0]["loc"]))
            logger.warning(
                "rollout %s: the controller's report is ignored: %s: %s",
                rollout_id,
                where,
                errors[0]["msg"],
            )
        return None


def _is_about_report(places: Iterable[tuple[int | str, ...]]) -> bool:
    return any(place[:1] == ("trajectory",) for place in places)
