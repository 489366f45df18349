"""The tracing of OpenAI Agents, silent inside a rollout: its prompts go to no third party."""

from __future__ import annotations

from typing import Any

from osmosis_ai._extras import requires_extra
from osmosis_ai.rollout.context import get_rollout_context

with requires_extra("openai-agents", "OsmosisAgent"):
    from agents.tracing import (
        Span,
        Trace,
        TraceProvider,
        TracingProcessor,
        get_trace_provider,
        set_trace_provider,
    )


def quiet_in_rollouts() -> None:
    """Put the filter before whichever provider is in force, once; outside rollouts it traces on."""
    provider = get_trace_provider()
    if not isinstance(provider, _QuietProvider):
        set_trace_provider(_QuietProvider(provider))


class _QuietProvider(TraceProvider):
    def __init__(self, provider: TraceProvider) -> None:
        self._provider = provider

    def create_trace(self, *args: Any, disabled: bool = False, **kwargs: Any) -> Trace:
        kwargs["disabled"] = disabled or _in_rollout()
        return self._provider.create_trace(*args, **kwargs)

    def create_span(self, *args: Any, disabled: bool = False, **kwargs: Any) -> Span[Any]:
        kwargs["disabled"] = disabled or _in_rollout()
        return self._provider.create_span(*args, **kwargs)

    def register_processor(self, processor: TracingProcessor) -> None:
        self._provider.register_processor(processor)

    def set_processors(self, processors: list[TracingProcessor]) -> None:
        self._provider.set_processors(processors)

    def get_current_trace(self) -> Trace | None:
        return self._provider.get_current_trace()

    def get_current_span(self) -> Span[Any] | None:
        return self._provider.get_current_span()

    def set_disabled(self, disabled: bool) -> None:
        self._provider.set_disabled(disabled)

    def time_iso(self) -> str:
        return self._provider.time_iso()

    def gen_trace_id(self) -> str:
        return self._provider.gen_trace_id()

    def gen_span_id(self) -> str:
        return self._provider.gen_span_id()

    def gen_group_id(self) -> str:
        return self._provider.gen_group_id()

    def force_flush(self) -> None:
        self._provider.force_flush()

    def shutdown(self) -> None:
        self._provider.shutdown()


def _in_rollout() -> bool:
    return get_rollout_context() is not None
