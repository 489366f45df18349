"""Another package's data set, with that package's own scorer as the grader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

reasoning_gym: Any = pytest.importorskip(
    "reasoning_gym", reason="a package of tasks that nothing else needs: install it to run this"
)

from osmosis_ai.eval.config import load_config  # noqa: E402 - after the package is found
from osmosis_ai.eval.evaluation import evaluate  # noqa: E402

MAIN = '''
from osmosis_ai.rollout import AgentWorkflow, AgentWorkflowConfig, Grader, LocalBackend
from reasoning_gym import get_score_answer_fn


class Workflow(AgentWorkflow):
    """Knows the answers to the first half."""

    async def run(self, ctx):
        entry = ctx.metadata["entry"]
        right = entry["metadata"]["source_index"] < 10
        return [*ctx.prompt, {"role": "assistant", "content": entry["answer"] if right else "no"}]


class Score(Grader):
    async def grade(self, ctx):
        entry = ctx.metadata["entry"]
        score = get_score_answer_fn(entry["metadata"]["source_dataset"])
        ctx.set_reward(score(ctx.sample.messages[-1]["content"], entry))


backend = LocalBackend(
    workflow=Workflow, workflow_config=AgentWorkflowConfig(name="gym"), grader=Score
)
'''

CONFIG = """
[experiment]
rollout = "gym"
entrypoint = "main.py"
model_path = "scripted:policy:reply"
dataset = "chain_sum"
"""


async def test_its_scorer_grades_its_own_rows(tmp_path: Path) -> None:
    for directory in ("rollouts/gym", "configs/eval"):
        (tmp_path / directory).mkdir(parents=True)
    (tmp_path / "rollouts/gym/main.py").write_text(MAIN)
    (tmp_path / "rollouts/gym/policy.py").write_text("def reply(request, call):\n    return 'x'\n")
    config = tmp_path / "configs/eval/gym.toml"
    config.write_text(CONFIG)
    entries = list(reasoning_gym.create_dataset("chain_sum", size=20, seed=42))
    rows = [{"user_prompt": entry["question"], "metadata": {"entry": entry}} for entry in entries]
    score = reasoning_gym.get_score_answer_fn("chain_sum")
    expected = [score(e["answer"] if i < 10 else "no", e) for i, e in enumerate(entries)]
    summary = (await evaluate(load_config(config), rows=rows)).summary
    assert summary.outcomes["scored"] == 20
    assert summary.passed == 10
    assert summary.mean.value == pytest.approx(sum(expected) / 20)
