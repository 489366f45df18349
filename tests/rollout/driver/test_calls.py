"""What model calls took reaches outcome and archive, whichever driver brings the rollout."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.errors import BudgetError
from osmosis_ai.eval.outcome import Outcome, classify
from osmosis_ai.rollout import (
    AgentWorkflow,
    AgentWorkflowContext,
    ExecutionRequest,
    Grader,
    GraderContext,
    LocalBackend,
    MessageDict,
)
from osmosis_ai.rollout.backend.base import ResultCallback
from osmosis_ai.rollout.controller.listener import Controller
from osmosis_ai.rollout.controller.model.scripted import ScriptedClient
from osmosis_ai.rollout.driver.base import Budget, ModelLimits, RolloutDriver
from osmosis_ai.rollout.driver.http import open_http_driver
from osmosis_ai.rollout.driver.in_process import InProcessDriver
from osmosis_ai.rollout.server import create_rollout_server
from osmosis_ai.rollout.trajectory.tokens import load_tokens
from osmosis_ai.rollout.types import ExecutionOutcome
from osmosis_ai.testing import ExactMatchGrader, FailingWorkflow, ask_model
from osmosis_ai.testing.serving import serve
from tests.rollout.driver.backends import PlayingBackend, succeeded

REQUEST = ExecutionRequest(id="r1", prompt=[{"role": "user", "content": "?"}], label="42")


class TwoTurns(AgentWorkflow):
    async def run(self, ctx: AgentWorkflowContext) -> list[MessageDict]:
        messages: list[MessageDict] = [*ctx.prompt]
        for _ in range(2):
            messages.append(await ask_model(messages))
        return messages


class AskingGrader(Grader):
    """Asks the rollout's own model, which is no turn of the conversation."""

    async def grade(self, ctx: GraderContext) -> None:
        await ask_model([{"role": "user", "content": "Is it right?"}])
        ctx.set_reward(1.0)


def reply(request: dict[str, Any], call: Any) -> dict[str, Any]:
    content = [{"token": "4", "logprob": -0.5}, {"token": "2", "logprob": -0.25}]
    return {
        "prompt_token_ids": [1, 2, 3],
        "choices": [
            {
                "message": {"role": "assistant", "content": "42"},
                "token_ids": [call.turn, 8],
                "logprobs": {"content": content},
                "finish_reason": "stop",
            }
        ],
    }


@asynccontextmanager
async def driving(
    kind: str, root: Path, budget: Budget | None = None, /, **wiring: Any
) -> AsyncIterator[RolloutDriver]:
    backend = LocalBackend(**wiring)
    with Controller(ScriptedClient(reply), budget=budget) as controller:
        if kind == "in-process":
            yield InProcessDriver(backend, controller=controller, artifact_root=root)
            return
        app = create_rollout_server(backend=backend, configure_logging=False)
        with serve(app) as url:
            async with open_http_driver(url, controller=controller, artifact_root=root) as driver:
                yield driver


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("_OSMOSIS_ROLLOUT_ARTIFACT_ROOT", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("kind", "grader", "calls"), [("in-process", AskingGrader, 3), ("http", ExactMatchGrader, 2)]
)
async def test_calls_reach_the_steps_of_the_archive(
    kind: str, grader: type[Grader], calls: int, root: Path
) -> None:
    """A server may grade before its answer has arrived: what a grader asks is told apart here."""
    async with driving(kind, root, workflow=TwoTurns, grader=grader) as driver:
        outcome = await driver.run(REQUEST)
    trajectory = json.loads((root / "r1/trajectory.json").read_text())
    steps = [step for step in trajectory["steps"] if step["source"] == "agent"]
    assert [step["metrics"].pop("extra")["latency_sec"] > 0 for step in steps] == [True, True]
    assert [step["llm_call_count"] for step in steps] == [1, 1]
    assert [step["metrics"] for step in steps] == [
        {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": 1,
            "prompt_token_ids": [1, 2, 3],
            "completion_token_ids": [turn, 8],
            "logprobs": [-0.5, -0.25],
        }
        for turn, prompt_tokens in enumerate((1, 2))
    ]
    assert trajectory["final_metrics"]["total_completion_tokens"] == 2
    assert outcome.usage is not None
    assert outcome.usage.calls == calls


@pytest.mark.parametrize("kind", ["in-process", "http"])
async def test_tokens_of_every_call_lie_beside_the_archive(kind: str, root: Path) -> None:
    """As arrays: a training run reads millions of them."""
    async with driving(kind, root, workflow=TwoTurns, grader=AskingGrader) as driver:
        await driver.run(REQUEST)
    calls = load_tokens(root / "r1")
    assert [(call.turn, list(call.completion_token_ids or [])) for call in calls] == [
        (turn, [turn, 8]) for turn in range(3)
    ]


@pytest.mark.parametrize("kind", ["in-process", "http"])
async def test_the_time_of_a_rollout_is_told_in_parts(kind: str, root: Path) -> None:
    async with driving(kind, root, workflow=TwoTurns, grader=AskingGrader) as driver:
        outcome = await driver.run(REQUEST)
    timing, whole = outcome.timing, outcome.duration_sec
    assert timing is not None
    assert whole is not None
    assert timing.grading_sec is not None
    assert len(timing.call_sec) == 3
    assert min(timing.waiting_sec, timing.tools_sec) >= 0
    assert timing.model_sec >= sum(timing.call_sec[:2])
    parts = timing.model_sec + timing.tools_sec + timing.grading_sec
    assert parts == pytest.approx(whole, abs=0.05)


async def test_a_workflow_that_failed_was_not_graded(root: Path) -> None:
    async with driving("in-process", root, workflow=FailingWorkflow, grader=ExactMatchGrader) as d:
        outcome = await d.run(REQUEST)
    assert outcome.timing is not None
    assert outcome.timing.grading_sec is None
    assert outcome.timing.call_sec == ()


async def test_a_rollout_without_an_answer_has_its_time_all_the_same(root: Path) -> None:
    async def nothing(workflow: ResultCallback, grader: ResultCallback) -> None:
        return

    outcome = await played(nothing, root)
    assert outcome.timing is not None
    assert outcome.timing.grading_sec is None


async def test_without_tokens_there_is_no_file_of_them(root: Path) -> None:
    async def unasked(workflow: ResultCallback, grader: ResultCallback) -> None:
        await workflow(succeeded())
        await grader(succeeded(1.0))

    assert (await played(unasked, root)).timing is not None
    assert not (root / "r1/tokens.bin").exists()


async def played(play: Any, root: Path) -> ExecutionOutcome:
    with Controller(ScriptedClient(reply)) as controller:
        driver = InProcessDriver(PlayingBackend(play), controller=controller, artifact_root=root)
        return await driver.run(REQUEST)


async def test_tokens_that_cannot_be_kept_cost_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    with caplog.at_level(logging.WARNING):
        async with driving("in-process", tmp_path / "file", workflow=TwoTurns) as driver:
            outcome = await driver.run(REQUEST)
    assert outcome.workflow.succeeded
    assert "rollout r1: its tokens are not kept: " in caplog.text


class NeverSatisfied(AgentWorkflow):
    """Asks again and again, whatever the answer."""

    async def run(self, ctx: AgentWorkflowContext) -> list[MessageDict]:
        while True:
            with contextlib.suppress(RuntimeError):
                await ask_model(ctx.prompt)
            await asyncio.sleep(0)


class TakesARefusal(AgentWorkflow):
    """Ends as if nothing had happened."""

    async def run(self, ctx: AgentWorkflowContext) -> list[MessageDict]:
        with contextlib.suppress(RuntimeError):
            for _ in range(5):
                await ask_model(ctx.prompt)
        return [*ctx.prompt, {"role": "assistant", "content": "42"}]


@pytest.mark.parametrize("kind", ["in-process", "http"])
@pytest.mark.parametrize("workflow", [TwoTurns, NeverSatisfied, TakesARefusal])
async def test_a_rollout_past_its_budget_is_a_failed_workflow(
    kind: str, workflow: type[AgentWorkflow], root: Path
) -> None:
    """Whatever it makes of the refusal: raise, go on, or say that it is done."""
    budget = Budget(rollout=ModelLimits(max_model_calls=1))
    async with driving(kind, root, budget, workflow=workflow, grader=ExactMatchGrader) as driver:
        outcome = await driver.run(REQUEST)
    assert not outcome.workflow.succeeded
    assert outcome.workflow.err_message == "the rollout's budget is used up: max_model_calls = 1"
    assert outcome.workflow.err_category == "agent_error"
    assert outcome.workflow.no_result is None
    assert outcome.grader is not None
    assert outcome.grader.sample is None
    assert classify(outcome).outcome is Outcome.WORKFLOW_FAILED


@pytest.mark.parametrize("kind", ["in-process", "http"])
async def test_what_a_grader_asks_of_the_rollouts_model_counts_as_well(
    kind: str, root: Path
) -> None:
    """One budget for one rollout: who has asked is not always known."""
    budget = Budget(rollout=ModelLimits(max_model_calls=2))
    async with driving(kind, root, budget, workflow=TwoTurns, grader=AskingGrader) as driver:
        outcome = await driver.run(REQUEST)
    assert classify(outcome).outcome is Outcome.WORKFLOW_FAILED
    assert "max_model_calls = 2" in (classify(outcome).message or "")


@pytest.mark.parametrize("kind", ["in-process", "http"])
async def test_a_rollout_past_the_budget_of_its_run_has_no_outcome(kind: str, root: Path) -> None:
    """It did nothing wrong: with a larger budget it runs again."""
    budget = Budget(run=ModelLimits(max_model_calls=3))
    async with driving(kind, root, budget, workflow=TwoTurns, grader=ExactMatchGrader) as driver:
        assert (await driver.run(REQUEST)).workflow.succeeded
        with pytest.raises(BudgetError, match=r"evaluation\.run_max_model_calls = 3"):
            await driver.run(REQUEST.model_copy(update={"id": "r2"}))
