"""What every part of a backend's contract suite builds on: the factory and what a backend can."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest

from osmosis_ai.rollout.agent_workflow import AgentWorkflow
from osmosis_ai.rollout.backend.base import ExecutionBackend
from osmosis_ai.rollout.grader import Grader
from osmosis_ai.rollout.types import AgentWorkflowConfig
from osmosis_ai.testing.contract.bench import Bench
from osmosis_ai.testing.contract_workflows import Judge, JudgeConfig, Player
from osmosis_ai.testing.stage import Stage


class BackendClauses:
    """Base of the suite's parts; the attributes say what the backend under test can."""

    pytestmark = pytest.mark.asyncio

    in_process: ClassVar[bool] = True
    """Whether user code runs in the test's own process; False skips what only that can show."""

    enforces_timeouts: ClassVar[bool] = False
    """Whether the backend enforces request timeouts without being asked to."""

    can_enforce_timeouts: ClassVar[bool] = False
    """Whether `make_backend(enforce_timeouts=True)` makes a backend that enforces them."""

    patience_sec: ClassVar[float] = 10.0
    """How long a test waits for what must happen, before it fails instead of hanging."""

    stage_host: ClassVar[str] = "127.0.0.1"
    """The address of this machine under which user code reaches the test."""

    def make_backend(self, **wiring: Any) -> ExecutionBackend:
        """Build the backend under test.

        `wiring` holds `workflow` and, where a test gives them, `workflow_config`, `grader` and
        `grader_config`: the arguments of `LocalBackend`, as classes and objects that can be
        imported from `osmosis_ai.testing.contract_workflows`.
        """
        raise NotImplementedError("give your suite a make_backend() that builds your backend")

    @asynccontextmanager
    async def bench(
        self,
        root: Path,
        *,
        workflow: type[AgentWorkflow[Any]] = Player,
        workflow_config: AgentWorkflowConfig | None = None,
        grader: type[Grader] | None = Judge,
        grader_config: JudgeConfig | None = None,
        **wiring: Any,
    ) -> AsyncIterator[Bench]:
        """The backend under test, wired and running, with its stage."""
        async with Stage(host=self.stage_host, patience_sec=self.patience_sec) as stage:
            wiring["workflow"] = workflow
            if workflow_config is not None:
                wiring["workflow_config"] = workflow_config
            if grader is not None:
                wiring["grader"] = grader
                wiring["grader_config"] = grader_config or JudgeConfig()
                wiring["grader_config"].stage = stage.address
            bench = Bench(self.make_backend(**wiring), stage, root / "artifacts", self.patience_sec)
            try:
                yield bench
            finally:
                await bench.close()

    def only_in_process(self, why: str) -> None:
        """Skip the rest of a test where user code runs elsewhere."""
        if not self.in_process:
            pytest.skip(f"user code runs in another process: {why}")
