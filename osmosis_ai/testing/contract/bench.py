"""The bench: one backend under test, the rollouts sent to it, and what it answered."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from osmosis_ai.rollout.backend.base import CancelDisposition, Capacity, ExecutionBackend
from osmosis_ai.rollout.context import RolloutContext
from osmosis_ai.rollout.types import ExecutionRequest, ExecutionResult
from osmosis_ai.testing.stage import Stage, within

Answer: TypeAlias = Literal["workflow", "grader"]
"""Which of a rollout's two answers."""


@dataclass(eq=False)
class Flight:
    """One rollout under way: its answers as they came, and the task that runs `execute`.

    A held answer is received, but its callback does not return before `acknowledge`.
    """

    request: ExecutionRequest
    graded: bool
    patience_sec: float
    held: frozenset[Answer] = frozenset()
    answers: list[tuple[Answer, ExecutionResult]] = field(default_factory=list)
    _arrived: dict[Answer, asyncio.Event] = field(default_factory=dict)
    _acknowledged: dict[Answer, asyncio.Event] = field(default_factory=dict)
    _task: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        for kind in _KINDS:
            self._arrived[kind] = asyncio.Event()
            self._acknowledged[kind] = asyncio.Event()

    async def execute(self, backend: ExecutionBackend) -> None:
        """Have the backend run the rollout, in this task."""

        async def on_workflow(result: ExecutionResult) -> None:
            await self._take("workflow", result)

        async def on_grader(result: ExecutionResult) -> None:
            await self._take("grader", result)

        await backend.execute(self.request, on_workflow, on_grader if self.graded else None)

    def take_off(self, work: Coroutine[Any, Any, None]) -> None:
        """Let `execute` go on in a task of its own."""
        self._task = asyncio.create_task(work, name=f"execute {self.request.id}")

    @property
    def task(self) -> asyncio.Task[None]:
        """The task that runs `execute`."""
        assert self._task is not None, "the rollout has not been started"
        return self._task

    async def answer(self, kind: Answer) -> ExecutionResult:
        """The first answer of that kind; waits until it comes."""
        what = f"rollout {self.request.id!r} gives its {kind} answer"
        await within(self.patience_sec, self._arrived[kind].wait(), what=what)
        return next(result for one, result in self.answers if one == kind)

    def acknowledge(self, kind: Answer) -> None:
        """Let the callback of a held answer return."""
        self._acknowledged[kind].set()

    async def ended(self) -> None:
        """Wait until `execute` has returned, and check what was answered."""
        done, _ = await asyncio.wait([self.task], timeout=self.patience_sec)
        assert done, f"execute() of rollout {self.request.id!r} did not return"
        try:
            self.task.result()
        except Exception as exc:  # the backend's: it must let nothing of user code pass
            raise AssertionError(f"execute() raised {exc!r} instead of answering") from exc
        self.check_answers()

    def check_answers(self) -> None:
        """One workflow answer, and after it one grader answer exactly where it was asked for."""
        given = [kind for kind, _ in self.answers]
        owed = list(_KINDS) if self.graded else ["workflow"]
        assert given == owed, (
            f"rollout {self.request.id!r} owed the answers {owed} and gave {given}"
        )

    async def _take(self, kind: Answer, result: ExecutionResult) -> None:
        self.answers.append((kind, result))
        self._arrived[kind].set()
        if kind in self.held:
            await self._acknowledged[kind].wait()


_KINDS: tuple[Answer, Answer] = ("workflow", "grader")


def make_request(
    stage: Stage, rollout_id: str, *, options: Mapping[str, Any] | None = None, **fields: Any
) -> ExecutionRequest:
    """A request whose prompt tells the contract workflows what to do; its label is its id."""
    message = {
        "role": "user",
        "content": "Play.",
        "stage": stage.address,
        "scene": rollout_id,
        "options": dict(options or {}),
    }
    given = {"id": rollout_id, "prompt": [message], "label": rollout_id, **fields}
    return ExecutionRequest.model_validate(given)


@dataclass(eq=False)
class Bench:
    """A backend under test with its stage and the folder its rollouts write to."""

    backend: ExecutionBackend
    stage: Stage
    root: Path
    patience_sec: float
    _flights: list[Flight] = field(default_factory=list)

    def request(
        self, rollout_id: str = "a", *, options: Mapping[str, Any] | None = None, **fields: Any
    ) -> ExecutionRequest:
        """A request that `make_request` makes for this bench's stage."""
        return make_request(self.stage, rollout_id, options=options, **fields)

    def context(self, rollout_id: str) -> RolloutContext:
        """The ambient context a driver would put around the rollout."""
        return RolloutContext(
            chat_completions_url=f"http://policy.invalid/{rollout_id}",
            api_key=f"key-{rollout_id}",
            rollout_id=rollout_id,
            project_path=f"/projects/{rollout_id}",
            artifact_root=self.root,
        )

    def start(
        self,
        request: ExecutionRequest,
        *,
        graded: bool = True,
        hold: Iterable[Answer] = (),
        context: RolloutContext | None = None,
    ) -> Flight:
        """Send a rollout to the backend; `graded` asks for a grader answer, as drivers do."""
        flight = Flight(request, graded, self.patience_sec, held=frozenset(hold))
        flight.take_off(self._fly(flight, context or self.context(request.id)))
        self._flights.append(flight)
        return flight

    async def fly(self, request: ExecutionRequest) -> Flight:
        """Run a rollout in the caller's own task; whatever `execute` raises passes."""
        flight = Flight(request, False, self.patience_sec)
        await self._fly(flight, self.context(request.id))
        return flight

    async def run(
        self, request: ExecutionRequest, *, context: RolloutContext | None = None
    ) -> ExecutionResult:
        """Run a rollout to its end without asking for a grade; its only answer."""
        flight = self.start(request, graded=False, context=context)
        await flight.ended()
        return await flight.answer("workflow")

    async def grade(
        self, request: ExecutionRequest, *, context: RolloutContext | None = None
    ) -> tuple[ExecutionResult, ExecutionResult]:
        """Run a rollout to its end and ask for a grade; both answers."""
        flight = self.start(request, context=context)
        await flight.ended()
        return await flight.answer("workflow"), await flight.answer("grader")

    async def cancel(self, rollout_id: str) -> CancelDisposition:
        """Cancel one rollout by its id; what the backend says that did."""
        said = await self.cancel_by(ids=[rollout_id])
        assert set(said) == {rollout_id}, f"asked of {rollout_id!r}, cancel spoke of {set(said)}"
        return said[rollout_id]

    async def cancel_by(self, **selector: Any) -> dict[str, CancelDisposition]:
        """Cancel what a selector names; what the backend says of each."""
        try:
            return await self.backend.cancel_rollouts(**selector)
        except Exception as exc:  # the backend's: this selector is one that it must take
            raise AssertionError(f"cancel_rollouts(**{selector}) raised {exc!r}") from exc

    @property
    def capacity(self) -> Capacity:
        """How full the backend says it is."""
        capacity = self.backend.capacity()
        assert capacity is not None, "capacity() says how full the backend is, never None"
        return capacity

    def artifacts(self, rollout_id: str) -> Path:
        """The directory in which a rollout's artifacts belong."""
        return self.root / rollout_id / "artifacts"

    async def _fly(self, flight: Flight, context: RolloutContext) -> None:
        with context:
            await flight.execute(self.backend)

    async def close(self) -> None:
        """End what a failed test left behind, and release what the backend holds."""
        self.stage.release_all()
        owed = [flight.task for flight in self._flights if not flight.task.done()]
        for task in owed:
            task.cancel()
        if owed:
            await asyncio.wait(owed, timeout=self.patience_sec)
        await self.backend.shutdown()
