"""The documentation's LLM judge, unchanged, through LiteLLM's own environment variables."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("litellm", reason="runs in the environments of the frameworks")

import litellm

from osmosis_ai.rollout import (
    AgentWorkflow,
    AgentWorkflowContext,
    ExecutionRequest,
    ExecutionResult,
    Grader,
    GraderContext,
    LocalBackend,
)
from tests.frameworks.policy import Broken, Reply, serving

# LiteLLM warns of itself.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")


# fmt: off
def _last_text(sample) -> str:
    """Extract the final text block from a sample's last message."""
    if not sample.messages:
        return ""
    content = sample.messages[-1].get("content", "")
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return next((b["text"] for b in content if isinstance(b, dict) and "text" in b), "")
    return ""


class LLMJudgeGrader(Grader):
    async def grade(self, ctx: GraderContext) -> None:
        if ctx.sample is None:
            raise ValueError("workflow produced no sample")
        agent_output = _last_text(ctx.sample)
        judge_response = await litellm.acompletion(
            model="openai/gpt-5.2",
            messages=[{
                "role": "user",
                "content": f"Rate this response from 0.0 to 1.0.\n\n"
                           f"Expected: {ctx.label}\n"
                           f"Actual: {agent_output}\n\n"
                           f"Score (just the number):"
            }],
        )
        score = float(judge_response.choices[0].message.content.strip())
        ctx.set_reward(max(0.0, min(1.0, score)))

# fmt: on


class Answers(AgentWorkflow):
    async def run(self, ctx: AgentWorkflowContext) -> Any:
        return [*ctx.prompt, {"role": "assistant", "content": [{"text": "forty-two"}]}]


async def judged(reply: Reply, patch: pytest.MonkeyPatch) -> tuple[ExecutionResult, list[Any]]:
    backend = LocalBackend(workflow=Answers, grader=LLMJudgeGrader)
    request = ExecutionRequest(id="r1", prompt=[{"role": "user", "content": "6*7"}], label="42")
    with serving(lambda request, rollout_id: reply) as judge, judge.context():
        patch.setenv("OPENAI_BASE_URL", judge.url("judge"))
        patch.setenv("OPENAI_API_KEY", "the judge's own")
        result = await backend.run_workflow(request)
        graded = await backend.run_grader(request, result)
    assert set(judge.served) == {"judge"}
    assert set(judge.keys) == {"Bearer the judge's own"}
    return graded, judge.requests


@pytest.mark.parametrize(("reply", "reward"), [("0.75", 0.75), (" 3 \n", 1.0)])
async def test_the_judges_number_is_the_reward(
    reply: str, reward: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    graded, requests = await judged(reply, monkeypatch)
    assert graded.sample is not None
    assert graded.sample.reward == reward, graded.err_message
    assert requests[0]["model"] == "gpt-5.2"
    assert "Expected: 42\nActual: forty-two" in requests[0]["messages"][0]["content"]


async def test_a_judge_that_says_no_number_leaves_no_reward(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graded, _ = await judged("good", monkeypatch)
    assert not graded.succeeded
    assert "could not convert string to float: 'good'" in str(graded.err_message)
    assert graded.sample is not None
    assert graded.sample.reward is None


async def test_a_judge_that_refuses_leaves_no_reward(monkeypatch: pytest.MonkeyPatch) -> None:
    graded, _ = await judged(Broken(400, "no credit left"), monkeypatch)
    assert "no credit left" in str(graded.err_message)
    assert graded.sample is not None
    assert graded.sample.reward is None
