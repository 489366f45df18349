"""The numbers of a run by what its rows have in common."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from osmosis_ai.errors import ConfigError, RunError
from osmosis_ai.eval.breakdown import break_down, group_rows, measure_groups
from osmosis_ai.eval.dataset import load_rows
from osmosis_ai.eval.estimate import Estimate, Rewards, estimate_mean
from osmosis_ai.eval.outcome import Outcome
from osmosis_ai.eval.record import Record
from osmosis_ai.eval.row import Row
from osmosis_ai.eval.run_folder import find_run
from osmosis_ai.eval.runner import run_eval
from osmosis_ai.eval.selection import select_rows
from osmosis_ai.eval.store import open_run
from osmosis_ai.eval.tally import tally
from tests.eval.workspace import FunctionDriver, Workspace, scored


def rows_with(*metadata: dict[str, Any] | None) -> Iterator[Row]:
    return (Row(index, [], metadata=one) for index, one in enumerate(metadata))


def record(row: int, reward: float | None, attempt: int = 0) -> Record:
    return Record(
        row=row,
        attempt=attempt,
        try_index=0,
        item=f"{row}",
        rollout_id=f"{row}-{attempt}",
        outcome=Outcome.NO_RESULT if reward is None else Outcome.SCORED,
        reward=reward,
    )


def test_each_value_has_its_own_numbers() -> None:
    groups = group_rows(rows_with({"d": "hard"}, {"d": "easy"}, {"d": "hard"}, None, {}), "d")
    rewards = [[0.0, 1.0], [1.0, 1.0], [0.0, None], [1.0, 1.0]]
    records = [record(row, r, i) for row, two in enumerate(rewards) for i, r in enumerate(two)]
    table = tally(records, n=2, workflow_failed_reward=None)
    easy, hard = break_down(table, groups, pass_threshold=1.0)
    assert (easy.value, easy.rows, easy.mean.value, easy.passed) == ("easy", 1, 1.0, 2)
    assert (hard.value, hard.rows, hard.passed) == ("hard", 2, 1)
    expected = Rewards()
    expected.add_row([0.0, 1.0])
    expected.add_row([0.0])
    assert hard.mean == estimate_mean(expected)
    assert (hard.outcomes["scored"], hard.outcomes["no_result"]) == (3, 1)
    assert hard.to_json()["pass_rate"]["over"] == 3


def test_a_value_without_records_has_no_numbers() -> None:
    """No result is never 0."""
    groups = group_rows(rows_with({"d": 1}, {"d": 2}), "d")
    table = tally([record(0, 1.0)], n=1, workflow_failed_reward=None)
    assert break_down(table, groups, pass_threshold=1.0)[1].mean == Estimate(None, 0)


def test_rows_that_the_run_does_not_take_are_in_no_group() -> None:
    groups = group_rows(iter([Row(2, [], metadata={"d": 1})]), "d")
    table = tally(
        [record(0, 1.0), record(2, 0.0), record(5, 1.0)], n=1, workflow_failed_reward=None
    )
    (group,) = break_down(table, groups, pass_threshold=1.0)
    assert (group.rows, group.mean.over, group.mean.value) == (1, 1, 0.0)


def test_numbers_come_in_their_order_then_texts() -> None:
    values = [10, 9, "b", True, "a", 2.5, [1], "nan"]
    groups = group_rows(rows_with(*({"d": value} for value in values)), "d")
    found = break_down(tally([], n=1, workflow_failed_reward=None), groups, pass_threshold=1.0)
    assert [one.value for one in found] == ["2.5", "9", "10", "[1]", "a", "b", "nan", "true"]


def test_a_dotted_key_looks_into_objects() -> None:
    rows = rows_with({"task": {"kind": "x"}}, {"task.kind": "y"}, {"task": "z"})
    assert group_rows(rows, "task.kind").names == ["x", "y"]


@pytest.mark.parametrize(
    ("metadata", "hint"),
    [
        ({"difficulty": 1}, "did you mean 'difficulty'"),
        ({"level": 1, "a": 2}, "it has a, level"),
        (None, "which is empty"),
    ],
)
def test_a_key_that_no_row_has_is_refused(metadata: dict[str, Any] | None, hint: str) -> None:
    with pytest.raises(ConfigError, match=f"--by 'dificulty'.*{hint}"):
        group_rows(rows_with(metadata), "dificulty")


async def test_a_run_is_broken_down_by_its_data_set(workspace: Workspace) -> None:
    """A data set that has changed since would put rows into the wrong group."""
    workspace.write_rows(
        {"user_prompt": f"q{i}", "metadata": {"odd": i % 2 == 1}} for i in range(4)
    )
    dataset, config = workspace.dataset(), workspace.config()
    selection = select_rows("0-2", limit=None, total=4)
    driver = FunctionDriver(lambda request, item: scored(float(item.row % 2)))
    async with open_run(config, dataset, selection) as store:
        await run_eval(config, driver=driver, store=store, rows=load_rows(dataset, selection))
    run = find_run("hello", evals_dir=workspace.evals)
    even, odd = measure_groups(run, "odd", workspace=workspace.root)
    assert (even.value, even.rows, even.mean.value) == ("false", 2, 0.0)
    assert (odd.value, odd.rows, odd.mean.value) == ("true", 1, 1.0)
    workspace.write_rows([{"user_prompt": "other", "metadata": {"odd": True}}])
    with pytest.raises(RunError, match="has changed since run 'hello'"):
        measure_groups(run, "odd", workspace=workspace.root)
