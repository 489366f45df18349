"""What model calls took: tokens, money and time, call by call and in all."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from osmosis_ai.rollout.trajectory.atif import MAX_COUNT
from osmosis_ai.rollout.trajectory.report import LlmCallMetrics, SampleReport, TrajectoryReport
from osmosis_ai.rollout.trajectory.tokens import CallTokens, find_tokens
from osmosis_ai.rollout.types import ModelUsage


class Receipt(NamedTuple):
    """What an answer says of itself."""

    usage: Any = None
    """As the server wrote it: counts of tokens, mostly."""
    model_name: Any = None
    tokens: CallTokens | None = None
    cost_usd: float | None = None
    """None where the price is not known."""


class AnsweredCall(NamedTuple):
    """One call of a rollout, and what it took."""

    turn: int
    latency_sec: float
    """From the arrival of the call to the end of its answer, retries included."""
    retries: int
    receipt: Receipt

    def metrics(self) -> LlmCallMetrics:
        """The call as an archived step has it."""
        usage, tokens, name = self.receipt.usage, self.receipt.tokens, self.receipt.model_name
        extra: dict[str, Any] = {"latency_sec": round(self.latency_sec, 6)}
        if self.retries:
            extra["retries"] = self.retries
        return LlmCallMetrics(
            prompt_tokens=known(usage, "prompt_tokens"),
            completion_tokens=known(usage, "completion_tokens"),
            cached_tokens=known(_get(usage, "prompt_tokens_details"), "cached_tokens"),
            cost_usd=self.receipt.cost_usd,
            model_name=name if isinstance(name, str) else None,
            extra=extra,
            **({} if tokens is None else _lists(tokens)),
        )


def make_report(calls: Sequence[AnsweredCall]) -> TrajectoryReport | None:
    """What an archive is told of a conversation's calls; None where there were none."""
    if not calls:
        return None
    metrics = [call.metrics() for call in calls]
    sample = SampleReport(llm_call_metrics=metrics)
    return TrajectoryReport(model_name=metrics[-1].model_name, samples={"policy": sample})


class Tally(NamedTuple):
    """Counts that are replaced as a whole, so that another thread never reads half an update."""

    calls: int = 0
    failed_calls: int = 0
    retries: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    cost_usd: float = 0.0
    priced: int = 0
    unpriced: int = 0
    last_error: str | None = None
    last_failure_status: int | None = None

    def with_call(self) -> Tally:
        """One more call has begun."""
        return Tally(self.calls + 1, *self[1:])

    def with_retry(self) -> Tally:
        """A call is asked once more."""
        return self._replace(retries=self.retries + 1)

    def with_failure(self, fault: str, status: int | None) -> Tally:
        """A call failed for reasons outside the agent."""
        return self._replace(
            failed_calls=self.failed_calls + 1, last_error=fault, last_failure_status=status
        )

    def with_refusal(self) -> Tally:
        """A call came to nothing, and the model has no part in it."""
        return self._replace(last_error=None, last_failure_status=None)

    def with_answer(self, receipt: Receipt) -> Tally:
        """A call was answered."""
        usage, cost = receipt.usage, receipt.cost_usd
        prompt, completion = count(usage, "prompt_tokens"), count(usage, "completion_tokens")
        # Built anew, as above: `_replace` takes longer, and this is for each call there is.
        return Tally(
            self.calls,
            self.failed_calls,
            self.retries,
            self.prompt_tokens + prompt,
            self.completion_tokens + completion,
            self.total_tokens + (count(usage, "total_tokens") or prompt + completion),
            self.cost_usd + (cost or 0.0),
            self.priced + (cost is not None),
            self.unpriced + (cost is None),
        )

    def usage(self) -> ModelUsage:
        """The counts as a rollout's outcome has them."""
        is_priced = self.priced and not self.unpriced
        return ModelUsage(
            calls=self.calls,
            failed_calls=self.failed_calls,
            retries=self.retries,
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            total_tokens=self.total_tokens,
            cost_usd=self.cost_usd if is_priced else None,
            last_error=self.last_error,
            last_failure_status=self.last_failure_status,
        )


def read_receipt(completion: Mapping[str, Any], *, turn: int) -> Receipt:
    """What a whole completion says of itself."""
    tokens = find_tokens(completion, completion["choices"][0], turn=turn)
    return Receipt(completion.get("usage"), completion.get("model"), tokens)


def count_all(usage: Any) -> int:
    """Tokens of prompt and completion; 0 where there are none."""
    both = count(usage, "prompt_tokens") + count(usage, "completion_tokens")
    return count(usage, "total_tokens") or both


def count(usage: Any, key: str) -> int:
    """A count of tokens; 0 where there is none."""
    return known(usage, key) or 0


def known(usage: Any, key: str) -> int | None:
    """A count of tokens; None where there is none."""
    value: Any = usage.get(key) if isinstance(usage, dict) else None
    # Whole floats come from servers written in JavaScript and Lua; a bool is no count.
    if isinstance(value, float) and math.isfinite(value) and value.is_integer():
        value = int(value)
    return value if type(value) is int and 0 <= value <= MAX_COUNT else None


def _get(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, dict) else None


def _lists(tokens: CallTokens) -> dict[str, list[Any]]:
    named = {
        "prompt_token_ids": tokens.prompt_token_ids,
        "completion_token_ids": tokens.completion_token_ids,
        "logprobs": tokens.logprobs,
    }
    return {name: numbers.tolist() for name, numbers in named.items() if numbers is not None}
