"""AgentWorkflow: the agent loop a user writes, and what it may return."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Generic

from pydantic import ConfigDict, Field, field_validator
from typing_extensions import TypeVar

from osmosis_ai.rollout.context import AgentWorkflowContext
from osmosis_ai.rollout.types import (
    AgentWorkflowConfig,
    DeferredModel,
    MessageDict,
    Messages,
    check_messages,
)

ConfigT = TypeVar("ConfigT", bound=AgentWorkflowConfig, default=AgentWorkflowConfig)


class AgentWorkflowOutput(DeferredModel):
    """What a workflow may return: its conversation and numbers about it.

    `messages=None` is a success without a sample. `metrics` are finite numbers and reach the
    sample; `info` is for the workflow's author alone. Unknown keys are refused.
    """

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, revalidate_instances="always")

    messages: Messages | None = None
    metrics: dict[str, float] = Field(default_factory=dict)
    info: dict[str, Any] = Field(default_factory=dict)

    # Plain: the conversation is the workflow's own and is not copied.
    @field_validator("messages", mode="plain", json_schema_input_type=Messages | None)
    @classmethod
    def _check_messages(cls, value: Any) -> Any:
        return value if value is None else check_messages(value)


class AgentWorkflow(ABC, Generic[ConfigT]):
    """Base of every workflow: subclass it and write `async def run(self, ctx)`.

    One instance serves one execution. Name the config type to have it checked:
    `class MyWorkflow(AgentWorkflow[MyConfig])`.
    """

    def __init__(self, config: ConfigT | None = None) -> None:
        self.config = config

    @abstractmethod
    async def run(
        self, ctx: AgentWorkflowContext[ConfigT]
    ) -> AgentWorkflowOutput | list[MessageDict] | None:
        """Run the agent once and return its conversation.

        Return an `AgentWorkflowOutput`, the bare message list, or None where an agent or session
        registered itself as the rollout's sample source. Whatever it raises fails this rollout
        alone.
        """
        raise NotImplementedError
