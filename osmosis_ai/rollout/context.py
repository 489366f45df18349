"""What a workflow and a grader are given, and the ambient context of the rollout they run in."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, NamedTuple, Self

from typing_extensions import TypeVar

from osmosis_ai.rollout.types import AgentWorkflowConfig, Messages, RolloutSample

ConfigT_co = TypeVar(
    "ConfigT_co", bound=AgentWorkflowConfig, covariant=True, default=AgentWorkflowConfig
)


@dataclass(slots=True)
class AgentWorkflowContext(Generic[ConfigT_co]):
    """What `AgentWorkflow.run` is given.

    `prompt` and `metadata` are this rollout's own copies; `config` is the same deep copy the
    constructor got; `artifacts_dir` is None where no directory can be written.
    """

    prompt: Messages
    config: ConfigT_co | None = None
    metadata: dict[str, Any] | None = None
    artifacts_dir: Path | None = None


@dataclass(slots=True)
class GraderContext:
    """What `Grader.grade` is given; `set_reward` is how the reward gets out.

    `sample` is None when the workflow produced none; `artifacts_dir` is shared with the workflow
    and None where no directory can be written; `project_path` is the rollout's directory where
    whoever runs it knows one.
    """

    label: str | None = None
    sample: RolloutSample | None = None
    project_path: str | None = None
    metadata: dict[str, Any] | None = None
    artifacts_dir: Path | None = None

    def set_reward(self, reward: float) -> None:
        """Give the sample its reward, a finite number.

        Raises ValueError without a sample, and pydantic.ValidationError (a ValueError) for NaN,
        infinities and what is not a number.
        """
        if self.sample is None:
            raise ValueError("GraderContext has no sample to reward: the workflow produced none")
        self.sample.reward = reward


class SampleSource(ABC):
    """Something that can tell the sample of a rollout when its workflow has returned."""

    @abstractmethod
    async def get_sample(self) -> RolloutSample:
        """Return the sample as it stands now."""


@dataclass
class RolloutContext:
    """The rollout that is going on: where its model is, its id, its sample source.

    Empty values fall back to `OSMOSIS_CHAT_COMPLETIONS_URL`, `OSMOSIS_API_KEY` and
    `OSMOSIS_ROLLOUT_ID`. `with context:` makes it ambient; leaving restores what was before.
    """

    chat_completions_url: str = ""
    """OpenAI-compatible base URL; clients append `/chat/completions`."""
    api_key: str | None = field(default=None, repr=False)
    rollout_id: str = ""
    sample_source: SampleSource | None = None
    project_path: str | None = None
    """The rollout's directory, where the one who runs it knows it."""
    artifact_root: Path | None = None
    """Where rollout folders go; None leaves it to the environment, then `~/.osmosis`."""

    def __post_init__(self) -> None:
        self.chat_completions_url = self.chat_completions_url or os.environ.get(
            "OSMOSIS_CHAT_COMPLETIONS_URL", ""
        )
        self.api_key = self.api_key or os.environ.get("OSMOSIS_API_KEY") or None
        self.rollout_id = self.rollout_id or os.environ.get("OSMOSIS_ROLLOUT_ID", "")

    def set_sample_source(self, source: SampleSource) -> None:
        """Register the one source of this rollout's sample; a second one raises ValueError."""
        if self.sample_source is not None:
            raise ValueError(
                "this rollout already has a sample source: "
                "build exactly one agent or session in run()"
            )
        self.sample_source = source

    async def get_sample(self) -> RolloutSample | None:
        """The registered source's sample, or None when nothing is registered."""
        return None if self.sample_source is None else await self.sample_source.get_sample()

    def for_rollout(self, rollout_id: str) -> RolloutContext:
        """This context if it belongs to the rollout, else a copy of it that does.

        Another rollout's sample source stays behind: its sample is not this one's.
        """
        if self.rollout_id == rollout_id:
            return self
        source = None if self.rollout_id else self.sample_source
        return replace(self, rollout_id=rollout_id, sample_source=source)

    def __enter__(self) -> Self:
        _ambient.set(_Frame(self, _ambient.get()))
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        frame = _ambient.get()
        # Contexts that user code entered and never left go with the one they were entered in.
        while frame is not None and frame.context is not self:
            frame = frame.outer
        if frame is not None:
            _ambient.set(frame.outer)


class _Frame(NamedTuple):
    """An entered context and the one it hides; a chain, since one context may be entered twice."""

    context: RolloutContext
    outer: _Frame | None


_ambient: ContextVar[_Frame | None] = ContextVar("osmosis_rollout", default=None)


def get_rollout_context() -> RolloutContext | None:
    """The context of the rollout this code runs in, or None outside one."""
    frame = _ambient.get()
    return None if frame is None else frame.context
