"""What is owed, run by so many workers: each rollout ends as one record, or not at all."""

from __future__ import annotations

import asyncio
import logging
import time
from bdb import BdbQuit
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal, NamedTuple, TypeAlias

from osmosis_ai.errors import BackendError, BudgetError, OsmosisError, ProtocolError
from osmosis_ai.eval.config import EvalConfig
from osmosis_ai.eval.halt import ModelWatch
from osmosis_ai.eval.metrics import Summary
from osmosis_ai.eval.outcome import Outcome, classify, no_result
from osmosis_ai.eval.pace import AdaptivePace, Pace, SteadyPace
from osmosis_ai.eval.record import Record, item_for, make_record
from osmosis_ai.eval.row import Row
from osmosis_ai.eval.store import RunStore
from osmosis_ai.eval.timing import Timing
from osmosis_ai.rollout.descriptors import raise_descriptor_limit
from osmosis_ai.rollout.driver.base import RolloutDriver, rollout_id_for
from osmosis_ai.rollout.garbage import patient_collector
from osmosis_ai.rollout.raised import has_left_debugger, summarize_error
from osmosis_ai.rollout.types import ExecutionOutcome, ExecutionRequest

logger = logging.getLogger(__name__)

DEFAULT_MAX_IN_FLIGHT = 64
"""Rollouts at once where neither the user nor the driver sets a limit."""

RunEnd: TypeAlias = Literal["finished", "halted", "interrupted"]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is; one is made for each record."""

    items: int
    finished: int
    """Items with a record, those of earlier sessions included."""
    record: Record | None
    """The newest one; None at the start."""
    outcomes: Counter[Outcome]
    """Of this session."""
    reward_sum: float = 0.0
    """Of this session's scored rollouts."""


@dataclass(frozen=True, slots=True)
class EvalResult:
    """How a run ended: what it has measured, and why it stopped early if it did."""

    summary: Summary
    timing: Timing
    halted_by: OsmosisError | None = None


def choose_max_in_flight(
    config: EvalConfig, driver: RolloutDriver, *, max_in_flight: int | None = None
) -> int:
    """Rollouts at once: as asked, else `batch_size`, else what the driver takes; never more."""
    room = driver.max_in_flight
    wanted = max_in_flight or config.file.evaluation.batch_size or room or DEFAULT_MAX_IN_FLIGHT
    return wanted if room is None else min(wanted, room)


async def run_eval(
    config: EvalConfig,
    *,
    driver: RolloutDriver,
    store: RunStore,
    rows: Iterable[Row],
    max_in_flight: int | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> EvalResult:
    """Run every item the store does not have yet, and summarize all it has then.

    A rollout that fails is a record. A driver that says no further rollout can succeed, a model
    that is gone or rejects the key, a budget that is used up, or a disk that takes no record, ends
    dispatching: what is in flight ends, the rest stays pending.
    Cancelled, it cancels what runs, writes no record of it, and passes the cancellation on.
    """
    most = choose_max_in_flight(config, driver, max_in_flight=max_in_flight)
    raise_descriptor_limit(rollouts=most)
    pace = AdaptivePace(most) if config.file.evaluation.adaptive else SteadyPace(most)
    model = ModelWatch(driver, probes=config.file.model.probe)
    session = _Session(config, driver, store, on_progress or _ignore, model, pace)
    end: RunEnd = "interrupted"
    try:
        with patient_collector():
            await session.work(session.owed(rows))
        end = "finished" if session.halted_by is None else "halted"
    finally:
        await store.journal.flush()
        session.warn_of_survivors()
        measured = store.close_session(session.timing(end=end))
    return EvalResult(measured.summary, measured.timing, session.halted_by)


def _ignore(progress: Progress) -> None:
    """Take no notice."""


class _Item(NamedTuple):
    row: Row
    attempt: int
    try_index: int


@dataclass(slots=True)
class _Session:
    """One process's share of a run."""

    config: EvalConfig
    driver: RolloutDriver
    store: RunStore
    on_progress: Callable[[Progress], None]
    model: ModelWatch
    pace: Pace
    workers: int = 0
    halted_by: OsmosisError | None = None
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    reward_sum: float = 0.0
    survivors: int = 0
    """Scored rollouts whose last model call had failed."""
    started: float = field(default_factory=time.monotonic)
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    items: int = field(init=False)
    done_before: int = field(init=False)

    def __post_init__(self) -> None:
        selection, ledger = self.store.run.selection, self.store.ledger
        self.items, self.done_before = len(selection) * ledger.n, ledger.done_in(selection)

    def owed(self, rows: Iterable[Row]) -> Iterator[_Item]:
        """Attempt by attempt, row by row, what has no record that counts."""
        ledger = self.store.ledger
        for row in rows:
            for attempt in range(ledger.n):
                if ledger.owes(row.index, attempt):
                    yield _Item(row, attempt, ledger.tries(row.index, attempt))

    async def work(self, items: Iterator[_Item]) -> None:
        """Share the items among workers; the rows are read as they are needed."""
        self._tell(None)
        try:
            async with asyncio.TaskGroup() as group:
                self._hire(group, items)
        except BaseExceptionGroup as errors:
            if has_left_debugger(errors):
                raise BdbQuit from None
            raise

    def _hire(self, group: asyncio.TaskGroup, items: Iterator[_Item]) -> None:
        """Have as many workers as may be now, and as there are items for."""
        while self.workers < self.pace.limit:
            item = self._next(items)
            if item is None:
                return
            self.workers += 1
            group.create_task(self._worker(item, items, group))

    async def _worker(
        self, item: _Item | None, items: Iterator[_Item], group: asyncio.TaskGroup
    ) -> None:
        while item is not None:
            try:
                await self._run(item)
            except OsmosisError as error:
                self._halt(error)
            self._hire(group, items)
            item = self._next(items) if self.workers <= self.pace.limit else None
        self.workers -= 1

    def _next(self, items: Iterator[_Item]) -> _Item | None:
        if self.halted_by is not None:
            return None
        try:
            return next(items, None)
        except OsmosisError as error:
            self._halt(error)
            return None

    def _halt(self, error: OsmosisError) -> None:
        if self.halted_by is None:
            self.halted_by = error

    async def _run(self, item: _Item) -> None:
        ticket = self.pace.begin()
        record, outcome = await self._record(item)
        self.pace.end(ticket, outcome)
        await self.store.append(record)
        self.outcomes[record.outcome] += 1
        self.reward_sum += record.reward or 0.0
        if record.outcome is Outcome.SCORED and outcome is not None and outcome.usage is not None:
            self.survivors += outcome.usage.last_error is not None
        self._tell(record)
        end = await self.model.find_end(None if outcome is None else outcome.usage)
        if end is not None:
            self._halt(end)

    async def _record(self, item: _Item) -> tuple[Record, ExecutionOutcome | None]:
        row, key = item.row, item.row.key
        rollout_id = rollout_id_for(
            run_id=self.store.run_id, item=key, attempt=item.attempt, try_index=item.try_index
        )
        rollout_item = item_for(row=row.index, attempt=item.attempt, item=key)
        request = self._request(rollout_id, row)
        started, outcome = time.monotonic(), None
        try:
            outcome = await self.driver.run(request, item=rollout_item)
            verdict = classify(outcome)
        except (BackendError, BudgetError, ProtocolError, BdbQuit):
            raise
        except Exception as error:
            # One rollout that its driver loses must not end the run.
            logger.exception("rollout %s: the driver failed", rollout_id)
            verdict = no_result(f"the driver failed: {summarize_error(error)}")
        record = make_record(
            verdict,
            outcome,
            item=rollout_item,
            key=key,
            try_index=item.try_index,
            rollout_id=rollout_id,
            duration_sec=time.monotonic() - started,
        )
        return record, outcome

    def _request(self, rollout_id: str, row: Row) -> ExecutionRequest:
        evaluation = self.config.file.evaluation
        # Not validated again: the rows have been, and a prompt may be large.
        return ExecutionRequest.model_construct(
            id=rollout_id,
            prompt=row.prompt,
            label=row.label,
            metadata=row.metadata,
            agent_timeout_sec=evaluation.agent_workflow_timeout_s,
            grader_timeout_sec=evaluation.grader_timeout_s,
        )

    def warn_of_survivors(self) -> None:
        """Say how many scores may tell of the model's server, and not of the agent."""
        if self.survivors:
            logger.warning(
                "%d scored rollouts went on after their last model call had failed: their rewards "
                "may tell more of the model's server than of the agent",
                self.survivors,
            )

    def _tell(self, record: Record | None) -> None:
        self.on_progress(
            Progress(
                items=self.items,
                finished=self.done_before + self.outcomes.total(),
                record=record,
                outcomes=self.outcomes,
                reward_sum=self.reward_sum,
            )
        )

    def timing(self, *, end: RunEnd) -> dict[str, object]:
        """The session as `timing.json` keeps it."""
        return {
            "started_at": self.started_at.isoformat(timespec="milliseconds"),
            "ended_at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "wall_sec": round(time.monotonic() - self.started, 3),
            "end": end,
            "finished": self.outcomes.total(),
            "driver": self.driver.description,
            **self.pace.to_json(),
        }
