"""Write an AgentWorkflow and a Grader, and run them: the documented front door."""

from osmosis_ai.rollout.agent_workflow import AgentWorkflow, AgentWorkflowOutput
from osmosis_ai.rollout.backend.base import ExecutionBackend
from osmosis_ai.rollout.backend.local import LocalBackend
from osmosis_ai.rollout.context import (
    AgentWorkflowContext,
    GraderContext,
    RolloutContext,
    SampleSource,
    get_rollout_context,
)
from osmosis_ai.rollout.grader import Grader, NoResult
from osmosis_ai.rollout.protocol import (
    GraderCompleteRequest,
    RolloutCompleteRequest,
    RolloutInitRequest,
    RolloutInitResponse,
)
from osmosis_ai.rollout.types import (
    AgentWorkflowConfig,
    BaseConfig,
    ConcurrencyConfig,
    ExecutionOutcome,
    ExecutionRequest,
    ExecutionResult,
    GraderConfig,
    GraderStatus,
    MessageDict,
    RolloutErrorCategory,
    RolloutSample,
    RolloutStatus,
)

__all__ = [
    "AgentWorkflow",
    "AgentWorkflowConfig",
    "AgentWorkflowContext",
    "AgentWorkflowOutput",
    "BaseConfig",
    "ConcurrencyConfig",
    "ExecutionBackend",
    "ExecutionOutcome",
    "ExecutionRequest",
    "ExecutionResult",
    "Grader",
    "GraderCompleteRequest",
    "GraderConfig",
    "GraderContext",
    "GraderStatus",
    "LocalBackend",
    "MessageDict",
    "NoResult",
    "RolloutCompleteRequest",
    "RolloutContext",
    "RolloutErrorCategory",
    "RolloutInitRequest",
    "RolloutInitResponse",
    "RolloutSample",
    "RolloutStatus",
    "SampleSource",
    "get_rollout_context",
]
