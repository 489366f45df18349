"""Concurrency that grows while it gets more done: a load that is a function, and a clock."""

from __future__ import annotations

import heapq
import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from osmosis_ai.eval.dataset import load_rows
from osmosis_ai.eval.pace import START, AdaptivePace, SteadyPace, Ticket
from osmosis_ai.eval.run_folder import find_run
from osmosis_ai.eval.runner import run_eval
from osmosis_ai.eval.selection import select_rows
from osmosis_ai.eval.store import open_run
from osmosis_ai.rollout.driver.base import RolloutItem
from osmosis_ai.rollout.types import ExecutionOutcome, ExecutionRequest, ModelUsage, RolloutTiming
from tests.eval.workspace import FunctionDriver, make_workspace, scored


@dataclass
class Load:
    """A model whose latency follows from how many ask at once, and the time that takes."""

    latency: Callable[[int], float]
    room: float = float("inf")
    """With more than so many at once it refuses, and is asked again."""
    at: float = 0.0
    peak: int = 0
    refused: int = 0
    sizes: list[int] = field(default_factory=list)
    """How many ran, at the start of each rollout."""

    def now(self) -> float:
        return self.at

    def drive(self, pace: AdaptivePace, rollouts: int) -> AdaptivePace:
        going: list[tuple[float, int, Ticket, ExecutionOutcome]] = []
        numbers = itertools.count()
        while rollouts or going:
            while rollouts and len(going) < pace.limit:
                rollouts -= 1
                self.sizes.append(len(going) + 1)
                ends_at = self.at + self.latency(len(going) + 1)
                ticket, outcome = pace.begin(), self._outcome(len(going) + 1)
                heapq.heappush(going, (ends_at, next(numbers), ticket, outcome))
            self.peak = max(self.peak, len(going))
            self.at, _, ticket, outcome = heapq.heappop(going)
            pace.end(ticket, outcome)
        return pace

    def _outcome(self, running: int) -> ExecutionOutcome:
        is_refused = running > self.room
        self.refused += is_refused
        return scored(1.0, calls=1, retries=int(is_refused))


def driven(load: Load, *, most: int = 256, rollouts: int = 5000) -> AdaptivePace:
    return load.drive(AdaptivePace(most, now=load.now), rollouts)


def saturating(capacity: int) -> Callable[[int], float]:
    """So many at once cost nothing; more of them only wait."""
    return lambda running: max(1.0, running / capacity)


@pytest.mark.parametrize("capacity", [8, 32, 100])
def test_it_grows_until_more_at_once_gets_no_more_done(capacity: int) -> None:
    load = Load(saturating(capacity))
    pace = driven(load)
    assert 0.8 * capacity <= pace.limit <= 1.6 * capacity
    assert load.peak <= 4 * capacity


def test_where_nothing_says_stop_it_grows_to_what_was_asked() -> None:
    load = Load(lambda running: 1.0)
    pace = driven(load, most=100)
    assert (pace.limit, load.peak) == (100, 100)
    assert [limit for _, limit, _ in pace.changes] == [4, 8, 16, 32, 64, 100]
    assert {why for _, _, why in pace.changes} == {"start", "growth"}


def test_a_model_that_does_one_thing_at_a_time_is_not_crowded() -> None:
    load = Load(float)
    assert driven(load).limit <= START + 1
    assert load.peak <= 2 * START


def test_refusals_halve_it_and_stay_rare() -> None:
    load = Load(lambda running: 1.0, room=20)
    pace = driven(load)
    assert pace.limit <= 21
    assert load.refused / 5000 < 0.1
    later = load.sizes[1000:]
    assert sum(later) / len(later) > 10
    assert "refusals" in {why for _, _, why in pace.changes}


def test_it_never_falls_below_one() -> None:
    assert driven(Load(lambda running: 1.0, room=0), rollouts=100).limit == 1


@pytest.mark.parametrize("most", [1, 3])
def test_less_than_it_begins_with_is_kept_to(most: int) -> None:
    load = Load(lambda running: 1.0)
    assert (driven(load, most=most, rollouts=100).limit, load.peak) == (most, most)


def test_it_tries_again_after_a_rest() -> None:
    """What slowed the model may be over: a run of hours should not keep to its first minute."""
    busy = [True]
    load = Load(lambda running: max(1.0, running / 8) if busy[0] else 1.0)
    pace = AdaptivePace(64, now=load.now)
    assert load.drive(pace, 500).limit < 16
    busy[0] = False
    assert load.drive(pace, 20_000).limit == 64


def test_the_same_load_makes_the_same_run() -> None:
    first, second = (driven(Load(saturating(32), room=60)) for _ in range(2))
    assert first.changes == second.changes


def test_what_it_did_is_kept_and_bounded() -> None:
    pace = driven(Load(lambda running: 1.0, room=6), rollouts=60_000)
    document = pace.to_json()
    assert document["max_in_flight"] == 256
    changes = document["adaptive"]
    assert isinstance(changes, list)
    assert len(changes) == 200
    assert changes[-1]["in_flight"] == pace.limit
    assert changes[-1]["at_sec"] > changes[0]["at_sec"] > 0


def test_calls_tell_more_than_rollouts() -> None:
    """Tools and graders take what they take, however many ask the model."""
    pace = AdaptivePace(8, now=lambda: 0.0)
    timing = RolloutTiming(waiting_sec=0, model_sec=2, tools_sec=90, call_sec=(0.5, 1.5))
    for latency in (1.0, 3.0):
        calls = timing.model_copy(update={"call_sec": (latency - 0.5, latency + 0.5)})
        for _ in range(8):
            pace.end(pace.begin(), scored(1.0).model_copy(update={"timing": calls}))
    assert [(limit, why) for _, limit, why in pace.changes] == [
        (4, "start"),
        (8, "growth"),
        (4, "latency"),
    ]


def test_what_began_before_a_change_or_was_lost_tells_nothing() -> None:
    pace = AdaptivePace(64, now=lambda: 0.0)
    early = pace.begin()
    refused = scored(1.0, calls=1, retries=1)
    pace.end(pace.begin(), None)
    pace.end(pace.begin(), refused)
    assert pace.limit == 2
    pace.end(early, refused)
    assert pace.limit == 2


@pytest.mark.parametrize(
    ("usage", "limit"),
    [
        ({"failed_calls": 1, "last_failure_status": 429}, 2),
        ({"failed_calls": 1, "last_failure_status": 503}, 2),
        ({"retries": 1}, 2),
        ({"failed_calls": 1, "last_failure_status": 404}, 4),
        ({"calls": 1}, 4),
    ],
)
def test_who_refuses_is_known_by_the_calls(usage: dict[str, int], limit: int) -> None:
    pace = AdaptivePace(64, now=lambda: 0.0)
    outcome = scored(1.0).model_copy(update={"usage": ModelUsage(**usage)})
    pace.end(pace.begin(), outcome)
    assert pace.limit == limit


def test_a_steady_pace_is_steady() -> None:
    pace = SteadyPace(7)
    pace.end(pace.begin(), scored(1.0, retries=9))
    assert (pace.limit, pace.to_json()) == (7, {"max_in_flight": 7})


async def test_a_run_grows_and_says_so(tmp_path: Path) -> None:
    """Refused above 20 at once: never lost, and each item still runs once."""
    many = make_workspace(tmp_path / "many", rows=400)

    def behaviour(request: ExecutionRequest, item: RolloutItem) -> ExecutionOutcome:
        outcome = scored(1.0, calls=1, retries=int(driver.running > 20))
        timing = RolloutTiming(waiting_sec=0, model_sec=1, tools_sec=0, call_sec=(1.0,))
        return outcome.model_copy(update={"timing": timing})

    driver = FunctionDriver(behaviour, turns=3)
    config, dataset = many.config(adaptive=True), many.dataset()
    selection = select_rows(None, limit=None, total=400)
    async with open_run(config, dataset, selection) as store:
        rows = load_rows(dataset, selection)
        result = await run_eval(config, driver=driver, store=store, rows=rows, max_in_flight=64)
    assert (result.summary.finished, len(driver.started)) == (400, 400)
    assert 20 < driver.peak <= 40
    paths = find_run("hello", evals_dir=many.evals).paths
    session = json.loads(paths.timing.read_bytes())["sessions"][0]
    assert session["max_in_flight"] == 64
    sizes = [change["in_flight"] for change in session["adaptive"]]
    assert sizes[:4] == [4, 8, 16, 32]
    assert max(sizes) == driver.peak
