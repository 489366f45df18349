"""What goes into a rollout and what comes out: messages, samples, configs, requests and results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    field_validator,
)

MessageDict: TypeAlias = dict[str, Any]
"""One chat message in the shape its framework uses."""

Messages: TypeAlias = list[MessageDict]
"""A conversation, oldest message first."""

Phase: TypeAlias = Literal["workflow", "grader"]
"""The half of a rollout a result speaks of."""


def check_path_segment(value: str) -> str:
    """Return `value` if it is one path segment, so that it can name a directory; else raise."""
    if value in {"", ".", ".."} or "/" in value or "\\" in value or "\0" in value:
        raise ValueError(
            f"{value!r} must be a single path segment: no separators, not empty, '.' or '..'"
        )
    try:
        value.encode()
    except UnicodeEncodeError as exc:
        raise ValueError(f"{value!r} holds a lone surrogate, which no message can carry") from exc
    return value


RolloutId: TypeAlias = Annotated[str, AfterValidator(check_path_segment)]
"""The name of one rollout: a single path segment."""


class DeferredModel(BaseModel):
    """Base of this package's models: each is built on first use, which keeps the import short."""

    model_config = ConfigDict(defer_build=True)


class RolloutStatus(StrEnum):
    """Where a rollout is in its life."""

    QUEUED = "queued"
    RUNNING = "running"
    GRADING = "grading"
    SUCCESS = "success"
    FAILURE = "failure"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"

    @property
    def is_terminal(self) -> bool:
        """Whether nothing more happens to a rollout in this status."""
        return self in (
            RolloutStatus.SUCCESS,
            RolloutStatus.FAILURE,
            RolloutStatus.CANCELLED,
        )


class GraderStatus(StrEnum):
    """How grading ended, on the wire."""

    PENDING = "pending"
    SUCCESS = "success"
    FAILURE = "failure"


class RolloutErrorCategory(StrEnum):
    """What kind of error ended a rollout."""

    TIMEOUT = "timeout"
    VALIDATION_ERROR = "validation_error"
    HTTP_ERROR = "http_error"
    AGENT_ERROR = "agent_error"
    LEASE_EXPIRED = "lease_expired"
    INTERNAL_ERROR = "internal_error"


class RolloutSample(DeferredModel):
    """What one workflow execution produced, and the reward a grader gave it.

    `messages` are native to the agent framework. `trajectory_messages` are a chat-shaped copy for
    the archive where the native ones are not chat-shaped; left out, `messages` are archived;
    given as None, nothing is. `reward` is finite or None, and None means "no reward", never 0.
    """

    model_config = ConfigDict(allow_inf_nan=False, validate_assignment=True)

    messages: Sequence[Mapping[str, Any]] = Field(default_factory=list)
    trajectory_messages: Sequence[Mapping[str, Any]] | None = None
    label: str | None = None
    reward: float | None = None
    remove_sample: bool = False
    metrics: dict[str, Any] = Field(default_factory=dict)
    extra_fields: dict[str, Any] = Field(default_factory=dict)

    # Plain: the default rebuilds every message of the conversation on each construction.
    @field_validator("messages", mode="plain", json_schema_input_type=list[dict[str, Any]])
    @classmethod
    def _check_messages(cls, value: Any) -> Any:
        return check_messages(value)

    @field_validator(
        "trajectory_messages",
        mode="plain",
        json_schema_input_type=list[dict[str, Any]] | None,
    )
    @classmethod
    def _check_trajectory_messages(cls, value: Any) -> Any:
        return value if value is None else check_messages(value)

    @property
    def archived_messages(self) -> Sequence[Mapping[str, Any]] | None:
        """The messages an archive keeps, or None where the user asked for none."""
        if "trajectory_messages" in self.model_fields_set:
            return self.trajectory_messages
        return self.messages


def check_messages(value: Any) -> Any:
    """Return `value` if it is a sequence of mappings, as it is and not copied; else raise."""
    if not isinstance(value, Sequence) or isinstance(value, str | bytes | bytearray):
        raise ValueError(f"messages must be a list of dicts, got {type(value).__name__}")
    for index, message in enumerate(value):
        # The exact type first: asking the abstract one costs ten times as much.
        if type(message) is not dict and not isinstance(message, Mapping):
            raise ValueError(f"messages[{index}] must be a dict, got {type(message).__name__}")
    return value


class ConcurrencyConfig(DeferredModel):
    """How many executions may run at once."""

    max_concurrent: int | None = Field(default=None, ge=1)
    """The most at once, at least 1; None is unlimited."""


class BaseConfig(DeferredModel):
    """Base of workflow and grader configs; subclasses and instances may add fields."""

    model_config = ConfigDict(extra="allow", validate_assignment=True, arbitrary_types_allowed=True)

    name: str
    """What logs and errors call it."""
    description: str | None = None
    """One sentence for people."""


class AgentWorkflowConfig(BaseConfig):
    """Configuration of a workflow; extend it with your own fields."""

    concurrency: ConcurrencyConfig = Field(default_factory=ConcurrencyConfig)
    """How many executions the backend runs at once; unlimited unless said."""
    capture: Literal["endpoint"] | None = None
    """`endpoint` makes the sample of the calls to the rollout's model; None leaves it to `run`."""


class GraderConfig(BaseConfig):
    """Configuration of a grader; extend it with your own fields."""

    concurrency: ConcurrencyConfig = Field(default_factory=ConcurrencyConfig)
    """Present for symmetry; no backend limits graders by it."""


class ExecutionRequest(DeferredModel):
    """One rollout to run: the prompt, and what a grader needs to judge the answer.

    Timeouts are finite seconds. `LocalBackend` does not enforce them unless asked to.
    """

    id: RolloutId
    prompt: list[dict[str, Any]]
    label: str | None = None
    metadata: dict[str, Any] | None = None
    agent_timeout_sec: FiniteFloat | None = None
    grader_timeout_sec: FiniteFloat | None = None

    @property
    def is_gradable(self) -> bool:
        """Whether a grader has something to judge by: a label or metadata, empty ones included."""
        return self.label is not None or self.metadata is not None


class ExecutionResult(DeferredModel):
    """How a workflow, or its grading, ended.

    `err_summary` tells in one line for people what user code raised, and where; `no_result` says
    why there is nothing to count where the failure was not the agent's own; `extra_fields` are the
    backend's diagnostics and stay off the wire.
    """

    status: RolloutStatus
    sample: RolloutSample | None = None
    err_message: str | None = None
    err_category: RolloutErrorCategory | None = None
    err_summary: str | None = None
    extra_fields: dict[str, Any] | None = None
    phase: Phase | None = None
    no_result: str | None = None

    @property
    def succeeded(self) -> bool:
        """Whether the status is success."""
        return self.status is RolloutStatus.SUCCESS


class ModelUsage(DeferredModel):
    """What one rollout asked of its model, as the bridge saw it."""

    calls: int = 0
    """Calls a rollout made, retries not counted."""
    failed_calls: int = 0
    """Calls that ended in an error after all retries."""
    retries: int = 0
    """Goes at calls after their first."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    cost_usd: float | None = None
    """US dollars; None where the price of an answer is not known, or nothing was answered."""
    last_error: str | None = None
    """Why the newest call failed for reasons outside the agent; None where it was answered."""
    last_failure_status: int | None = None
    """The HTTP status with which it failed; None where the model gave no answer at all."""


class RolloutTiming(DeferredModel):
    """Where the time of one rollout went, in seconds."""

    waiting_sec: float
    """From the wish to run it to its start."""
    model_sec: float
    """With at least one model call open while the workflow ran, retries included."""
    tools_sec: float
    """The rest of the workflow: tools, and the agent's own code."""
    grading_sec: float | None = None
    """From the workflow's answer to the grader's; None where nothing was graded."""
    call_sec: tuple[float, ...] = ()
    """Each model call that was answered, the grader's included."""


class ExecutionOutcome(DeferredModel):
    """Both results of one rollout; `grader` is None where no grading was asked for."""

    workflow: ExecutionResult
    grader: ExecutionResult | None = None
    usage: ModelUsage | None = None
    """Model calls, where the driver's own bridge served them."""
    duration_sec: float | None = None
    """Seconds from dispatch to the last answer, where the driver measured it."""
    timing: RolloutTiming | None = None
    """The same in parts."""

    @property
    def result(self) -> ExecutionResult:
        """The workflow's result where it failed, else the grader's, else the workflow's.

        A failed workflow without a sample shows the grader's.
        """
        if self.grader is None:
            return self.workflow
        if self.workflow.succeeded:
            return self.grader
        if self.workflow.sample is None and self.grader.sample is not None:
            return self.workflow.model_copy(update={"sample": self.grader.sample})
        return self.workflow

    @property
    def reward(self) -> float | None:
        """The reward where it counts; None where there is none, which is not a reward of 0."""
        graded = self.grader
        if not self.workflow.succeeded or graded is None or not graded.succeeded:
            return None
        sample = graded.sample
        return None if sample is None or sample.remove_sample else sample.reward

    @property
    def result_to_save(self) -> ExecutionResult:
        """The grader's result where it holds a sample, else the workflow's."""
        if self.grader is not None and self.grader.sample is not None:
            return self.grader
        return self.workflow
