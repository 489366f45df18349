"""A whole small workspace: a workflow that calls its model, a grader, a scripted policy."""

from __future__ import annotations

import json
from pathlib import Path

MAIN = """
import asyncio
import json
import os
import urllib.request

from osmosis_ai.rollout import (
    AgentWorkflow,
    AgentWorkflowConfig,
    ConcurrencyConfig,
    Grader,
    LocalBackend,
    NoResult,
    get_rollout_context,
)

print("imported", os.environ.get("DEMO_GREETING"))


def call_model(context, messages):
    request = urllib.request.Request(
        context.chat_completions_url + "/chat/completions",
        data=json.dumps({"model": "m", "messages": messages}).encode(),
        headers={"Authorization": f"Bearer {context.api_key}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)["choices"][0]["message"]


class Workflow(AgentWorkflow):
    async def run(self, ctx):
        question = ctx.prompt[-1]["content"]
        if question == "loud":
            print("said by a rollout")
            os.system("echo said by a child")
        if question == "broken":
            raise RuntimeError("the tool is broken")
        if question == "stuck":
            print("waiting", flush=True)
            await asyncio.Event().wait()
        message = await asyncio.to_thread(call_model, get_rollout_context(), ctx.prompt)
        return [*ctx.prompt, message]


class IsLabel(Grader):
    async def grade(self, ctx):
        answer = ctx.sample.messages[-1]["content"]
        if answer == "judge":
            raise NoResult("the judge does not answer")
        ctx.set_reward(float(answer == ctx.label))


config = AgentWorkflowConfig(name="demo", concurrency=ConcurrencyConfig(max_concurrent=8))
backend = LocalBackend(workflow=Workflow, workflow_config=config, grader=IsLabel)
"""

POLICY = '''
def reply(request, call):
    """Repeats the question; wrong on odd attempts."""
    question = request["messages"][-1]["content"]
    if question == "unreachable":
        raise RuntimeError("the model is down")
    return question if call.attempt % 2 == 0 else question + "!"
'''

CONFIG = """
[experiment]
rollout = "demo"
entrypoint = "main.py"
model_path = "scripted:policy:reply"
dataset = "demo"

[env]
DEMO_GREETING = "hello"
"""


def make_demo(root: Path, *questions: str) -> Path:
    """Write a workspace with these rows, each its own label; returns its config file."""
    for directory in ("rollouts/demo", "configs/eval", "data"):
        (root / directory).mkdir(parents=True)
    (root / "rollouts/demo/main.py").write_text(MAIN)
    (root / "rollouts/demo/policy.py").write_text(POLICY)
    rows = [{"user_prompt": question, "ground_truth": question} for question in questions]
    (root / "data/demo.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = root / "configs/eval/demo.toml"
    config.write_text(CONFIG)
    return config
