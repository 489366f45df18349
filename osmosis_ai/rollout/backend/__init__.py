"""Where a rollout runs."""

from osmosis_ai.rollout.backend.base import ExecutionBackend, ResultCallback
from osmosis_ai.rollout.backend.local import LocalBackend

__all__ = ["ExecutionBackend", "LocalBackend", "ResultCallback"]
