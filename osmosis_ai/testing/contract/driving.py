"""The driving bench: one driver under test, and the rollouts it was sent."""

from __future__ import annotations

import asyncio
import urllib.error
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from osmosis_ai.rollout.agent_workflow import AgentWorkflow
from osmosis_ai.rollout.driver.base import Deadline, RolloutDriver, RolloutItem
from osmosis_ai.rollout.grader import Grader
from osmosis_ai.rollout.types import ExecutionOutcome, ExecutionRequest, ModelUsage
from osmosis_ai.testing.contract.asking import ask
from osmosis_ai.testing.contract.bench import make_request
from osmosis_ai.testing.stage import Stage

_ENTRYPOINT = '''\
"""The rollout that a driver contract drives."""

from osmosis_ai.rollout import ConcurrencyConfig, LocalBackend
from osmosis_ai.rollout.server import create_rollout_server
from osmosis_ai.testing.contract_workflows import JudgeConfig, PlayerConfig

backend = LocalBackend(
    workflow="{workflow}",
    workflow_config=PlayerConfig(concurrency=ConcurrencyConfig(max_concurrent={limit})),
    grader="{grader}",
    grader_config=JudgeConfig(stage="{stage}"),
)

app = create_rollout_server(backend=backend, configure_logging=False)
'''


def write_entrypoint(
    folder: Path,
    *,
    workflow: type[AgentWorkflow[Any]],
    grader: type[Grader],
    stage: str,
    max_concurrent: int | None,
) -> Path:
    """An entrypoint file that wires a contract workflow, as `backend` and as `app`."""
    folder.mkdir(parents=True)
    path = folder / "main.py"
    path.write_text(
        _ENTRYPOINT.format(
            workflow=_import_path(workflow),
            grader=_import_path(grader),
            stage=stage,
            limit=max_concurrent,
        )
    )
    return path


def _import_path(target: type[Any]) -> str:
    return f"{target.__module__}:{target.__qualname__}"


@dataclass(eq=False)
class DrivingBench:
    """A driver under test with its stage, its project and the folder rollouts write to."""

    driver: RolloutDriver
    stage: Stage
    project_path: Path
    root: Path
    patience_sec: float
    _tasks: list[asyncio.Task[ExecutionOutcome]] = field(default_factory=list)

    def request(
        self, rollout_id: str = "a", *, options: Mapping[str, Any] | None = None, **fields: Any
    ) -> ExecutionRequest:
        """A request that `make_request` makes for this bench's stage."""
        return make_request(self.stage, rollout_id, options=options, **fields)

    def start(
        self, request: ExecutionRequest, *, item: RolloutItem | None = None
    ) -> asyncio.Task[ExecutionOutcome]:
        """Send a rollout on its way."""
        task = asyncio.create_task(self.driver.run(request, item=item), name=f"run {request.id}")
        self._tasks.append(task)
        return task

    async def outcome(self, task: asyncio.Task[ExecutionOutcome]) -> ExecutionOutcome:
        """What a rollout came to; waits until it has."""
        done, _ = await asyncio.wait([task], timeout=self.patience_sec)
        assert done, f"{task.get_name()!r} did not return"
        try:
            return task.result()
        except Exception as exc:  # the driver's: a failed rollout is a value
            raise AssertionError(f"{task.get_name()!r} raised {exc!r}, not a value") from exc

    async def run(
        self, request: ExecutionRequest, *, item: RolloutItem | None = None
    ) -> ExecutionOutcome:
        """Run one rollout to its end."""
        return await self.outcome(self.start(request, item=item))

    async def close(self) -> None:
        """End what a failed test left behind."""
        self.stage.release_all()
        owed = [task for task in self._tasks if not task.done()]
        for task in owed:
            task.cancel()
        if owed:
            await asyncio.wait(owed, timeout=self.patience_sec)


def usage_of(outcome: ExecutionOutcome) -> ModelUsage:
    """What a rollout asked of its model."""
    assert outcome.usage is not None, "a driver with a bridge of its own says what went over it"
    return outcome.usage


def contents(outcome: ExecutionOutcome) -> list[str]:
    """What was said in a rollout, message by message."""
    assert outcome.workflow.sample is not None, "the workflow gave a sample"
    return [str(message.get("content")) for message in outcome.workflow.sample.messages]


def after(seconds: float) -> Deadline:
    """The same deadline for every rollout."""
    return lambda request: seconds


def read(path: Path) -> str:
    """A file's text, or an empty object where there is no file."""
    return path.read_text() if path.exists() else "{}"


async def asking_status(url: str, api_key: str) -> int:
    """The HTTP status of a model call, 404 where nobody listens any more."""
    try:
        await asyncio.to_thread(ask, url, api_key, [{"role": "user", "content": "Play."}])
    except urllib.error.HTTPError as refusal:
        with refusal:
            return refusal.code
    except OSError:
        return 404
    return 200
