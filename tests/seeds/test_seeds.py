"""The two pages that define this system hold as printed: every block runs, every grader grades."""

from __future__ import annotations

import inspect
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

import osmosis_ai
from osmosis_ai.packaging import MARKER_CODE, sdk_wheel
from osmosis_ai.rollout import (
    AgentWorkflow,
    ExecutionBackend,
    ExecutionOutcome,
    ExecutionRequest,
    ExecutionResult,
    Grader,
    GraderConfig,
    GraderContext,
    LocalBackend,
    MessageDict,
    RolloutContext,
    RolloutErrorCategory,
    RolloutSample,
    RolloutStatus,
)
from tests.isolated import run_python
from tests.seeds.pages import Page, load_pages

LOCAL_BACKEND = "LocalBackend In-Process Execution"
GRADER = "Grader"

# What the LocalBackend page leaves to its reader.
LOCAL_BACKEND_PREAMBLE = """
from osmosis_ai.rollout import AgentWorkflow, AgentWorkflowConfig, Grader, GraderConfig

class MyWorkflow(AgentWorkflow):
    async def run(self, ctx):
        return [{"role": "assistant", "content": "42"}]

class MyGrader(Grader):
    async def grade(self, ctx):
        ctx.set_reward(1.0 if ctx.sample.messages[-1]["content"] == ctx.label else 0.0)

my_workflow_config = AgentWorkflowConfig(name="my-workflow")
my_grader_config = GraderConfig(name="my-grader")
"""

# What the Grader page leaves to its reader.
GRADER_PREAMBLE = """
from abc import ABC, abstractmethod
from typing import Any

from osmosis_ai.rollout import AgentWorkflow, GraderConfig, GraderContext, RolloutSample

class MyWorkflow(AgentWorkflow):
    async def run(self, ctx):
        return [{"role": "assistant", "content": "42"}]

ctx = GraderContext(sample=RolloutSample())
"""

# Its judge asks a model over the network, through a package that this environment has not.
JUDGE = "import litellm"


@pytest.fixture(scope="session")
def pages() -> dict[str, Page]:
    return load_pages()


@pytest.fixture(scope="session")
def local_backend_page(pages: dict[str, Page]) -> list[Mapping[str, Any]]:
    return pages[LOCAL_BACKEND].run(LOCAL_BACKEND_PREAMBLE)


@pytest.fixture(scope="session")
def grader_page(pages: dict[str, Page]) -> list[Mapping[str, Any]]:
    return pages[GRADER].run(GRADER_PREAMBLE, leave_out=[JUDGE])


def test_all_blocks_of_the_pages_are_found(pages: dict[str, Page]) -> None:
    """Else the other tests would hold without having looked at anything."""
    assert set(pages) == {LOCAL_BACKEND, GRADER}
    blocks = [block for page in pages.values() for block in page.blocks]
    languages = [block.language for block in blocks]
    assert (languages.count("python"), languages.count("bash")) == (12, 1)
    assert len(languages) == 13
    assert sum(page.text.count("\n```") for page in pages.values()) == 2 * len(blocks)


def test_one_block_alone_is_left_to_the_frameworks_tests(pages: dict[str, Page]) -> None:
    """The judge is compiled here; it runs where LiteLLM is installed and a judge answers."""
    blocks = [block for page in pages.values() for block in page.of("python")]
    [judge] = [block for block in blocks if JUDGE in block.code]
    assert "class LLMJudgeGrader(Grader)" in judge.code


# The LocalBackend page


def test_the_server_block_wires_backend_and_app(
    local_backend_page: list[Mapping[str, Any]],
) -> None:
    names = local_backend_page[0]
    assert isinstance(names["backend"], LocalBackend)
    assert isinstance(names["app"], FastAPI)


@pytest.mark.parametrize(("label", "reward"), [("42", 1.0), ("43", 0.0)])
async def test_the_backend_of_the_server_block_grades(
    local_backend_page: list[Mapping[str, Any]], label: str, reward: float
) -> None:
    outcome = await roll_out(local_backend_page[0]["backend"], label=label)
    assert reward_of(outcome) == reward


def test_the_concurrency_block_limits_to_eight(
    local_backend_page: list[Mapping[str, Any]],
) -> None:
    assert local_backend_page[1]["backend"].health()["concurrency"]["max_concurrent"] == 8


def test_the_constructor_takes_what_its_table_lists(pages: dict[str, Page]) -> None:
    section = pages[LOCAL_BACKEND].text.partition("The constructor is keyword-only")[2]
    documented = re.findall(r"^\| `(\w+)` ", section.partition("## ")[0], re.MULTILINE)
    taken = inspect.signature(LocalBackend).parameters
    assert list(taken)[: len(documented)] == documented == [
        "workflow", "workflow_config", "grader", "grader_config"
    ]  # fmt: skip
    assert {one.kind for one in taken.values()} == {inspect.Parameter.KEYWORD_ONLY}
    required = [name for name, one in taken.items() if one.default is inspect.Parameter.empty]
    assert required == ["workflow"]


# The Grader page: its graders, each on a real rollout


async def test_the_first_grader_gives_one(grader_page: list[Mapping[str, Any]]) -> None:
    assert await reward_by(grader_page[0]["MyGrader"], "anything") == 1.0


async def test_the_first_grader_refuses_a_rollout_without_sample(
    grader_page: list[Mapping[str, Any]],
) -> None:
    outcome = await grade_with(grader_page[0]["MyGrader"], None)
    expect_failed_grade(outcome, "workflow produced no sample")


def test_the_set_reward_line_rewards_the_sample(grader_page: list[Mapping[str, Any]]) -> None:
    assert grader_page[2]["ctx"].sample.reward == 0.85


async def test_the_artifacts_grader_rewards_and_leaves_its_trace(
    grader_page: list[Mapping[str, Any]], tmp_path: Path
) -> None:
    with RolloutContext(artifact_root=tmp_path):
        assert await reward_by(grader_page[3]["RubricGrader"], "anything") == 1.0
    assert traces_in(tmp_path) == [{"reason": "matched rubric"}]


@pytest.mark.parametrize(
    ("content", "label", "reward"),
    [
        ("  42 ", "42\n", 1.0),
        ([{"image": "…"}, {"text": "42"}], "42", 1.0),
        ("43", "42", 0.0),
        ("", "", 0.0),
        (7, "42", 0.0),
    ],
)
async def test_the_exact_match_grader_compares_the_last_text(
    grader_page: list[Mapping[str, Any]], content: Any, label: str, reward: float
) -> None:
    grader = grader_page[5]["ExactMatchGrader"]
    assert await reward_by(grader, content, label=label) == reward


@pytest.mark.parametrize(
    ("content", "reward"),
    [([{"text": "let me see"}, {"toolUse": {"name": "multiply"}}], 1.0), ("42", 0.0), ("", 0.0)],
)
async def test_the_tool_call_grader_looks_for_a_tool_call(
    grader_page: list[Mapping[str, Any]], content: Any, reward: float
) -> None:
    assert await reward_by(grader_page[7]["ToolCallGrader"], content) == reward


async def test_the_configured_grader_reads_its_config_and_gives_no_reward(
    grader_page: list[Mapping[str, Any]],
) -> None:
    """As printed it stops where the grading begins: a failed grade, and never a 0."""
    names = grader_page[8]
    config = names["my_grader_config"]
    assert isinstance(config, GraderConfig)
    assert names["MyGrader"](config).config.similarity_threshold == 0.8
    outcome = await grade_with(names["MyGrader"], "anything", config=config)
    expect_failed_grade(outcome, "Sample has no reward after grading")


async def test_the_wiring_block_serves_the_grader_of_the_page(
    grader_page: list[Mapping[str, Any]],
) -> None:
    """It wires the class defined last, whose grade fails as above."""
    assert isinstance(grader_page[9]["app"], FastAPI)
    outcome = await roll_out(grader_page[9]["backend"], label="42")
    expect_failed_grade(outcome, "Sample has no reward after grading")


# The Grader page: its signatures


def test_the_printed_grader_class_is_ours(grader_page: list[Mapping[str, Any]]) -> None:
    printed = grader_page[1]["Grader"]
    assert parameters(Grader.__init__) == parameters(printed.__init__)
    assert parameters(Grader.grade) == parameters(printed.grade)
    assert inspect.iscoroutinefunction(Grader.grade)
    assert Grader.__abstractmethods__ == printed.__abstractmethods__


def test_the_printed_sample_has_our_fields(grader_page: list[Mapping[str, Any]]) -> None:
    assert fields(RolloutSample) == fields(grader_page[4]["RolloutSample"])


def test_the_grader_context_has_what_its_table_lists(pages: dict[str, Page]) -> None:
    documented = set(re.findall(r"^\| `ctx\.(\w+)", pages[GRADER].text, re.MULTILINE))
    assert documented == {
        "label", "metadata", "sample", "project_path", "artifacts_dir", "set_reward"
    }  # fmt: skip
    assert documented <= set(dir(GraderContext()))


# The shell line


def test_the_install_line_finds_our_wheel(pages: dict[str, Page], tmp_path: Path) -> None:
    """Offline, against a folder that holds our wheel: the requirement names our version."""
    [block] = pages[LOCAL_BACKEND].of("bash")
    command, *arguments = shlex.split(block.code)
    assert command == "pip"
    folder, target = tmp_path / "wheels", tmp_path / "site"
    folder.mkdir()
    shutil.copy(sdk_wheel(), folder)
    offline = ["--isolated", "--no-index", "--no-deps", "--disable-pip-version-check", "--quiet"]
    places = ["--find-links", str(folder), "--target", str(target)]
    subprocess.run([sys.executable, "-m", "pip", *arguments, *offline, *places], check=True)
    assert run_python("-c", MARKER_CODE, path=[target]).strip() == osmosis_ai.__build__


# Helpers


def traces_in(root: Path) -> list[Any]:
    """The traces among the artifacts of all rollouts."""
    return [json.loads(one.read_text()) for one in root.glob("*/artifacts/grade_trace.json")]


async def reward_by(grader: type[Grader], content: Any, *, label: str = "a label") -> float | None:
    """The reward of a rollout whose last message has that content."""
    return reward_of(await grade_with(grader, content, label=label))


async def grade_with(
    grader: type[Grader],
    content: Any,
    *,
    label: str = "a label",
    config: GraderConfig | None = None,
) -> ExecutionOutcome:
    """A real rollout that says `content`, or has no sample for None in its place."""

    class Saying(AgentWorkflow):
        async def run(self, ctx: Any) -> list[MessageDict] | None:
            if content is None:
                return None
            return [{"role": "assistant", "content": content}]

    backend = LocalBackend(workflow=Saying, grader=grader, grader_config=config)
    return await roll_out(backend, label=label)


async def roll_out(backend: ExecutionBackend, *, label: str) -> ExecutionOutcome:
    """Run one rollout as a server does, asking for its grade."""
    answers: list[ExecutionResult] = []

    async def take(result: ExecutionResult) -> None:
        answers.append(result)

    prompt = [{"role": "user", "content": "What is 6 times 7?"}]
    await backend.execute(ExecutionRequest(id="a-rollout", prompt=prompt, label=label), take, take)
    workflow, grade = answers
    return ExecutionOutcome(workflow=workflow, grader=grade)


def reward_of(outcome: ExecutionOutcome) -> float | None:
    """The reward of a grade that succeeded."""
    assert outcome.result.status is RolloutStatus.SUCCESS, outcome.result.err_message
    assert outcome.result.sample is not None
    return outcome.result.sample.reward


def expect_failed_grade(outcome: ExecutionOutcome, message: str) -> None:
    """The workflow succeeded, and its grade failed for that reason, without a reward."""
    assert outcome.workflow.status is RolloutStatus.SUCCESS
    grade = outcome.grader
    assert grade is not None
    assert grade.status is RolloutStatus.FAILURE
    assert grade.err_category is RolloutErrorCategory.VALIDATION_ERROR
    assert grade.err_message == message
    assert grade.sample is None or grade.sample.reward is None


def parameters(function: Any) -> dict[str, tuple[Any, Any, Any]]:
    """Each parameter's kind, default and annotation."""
    found = inspect.signature(function, eval_str=True).parameters
    return {name: (one.kind, one.default, one.annotation) for name, one in found.items()}


def fields(model: Any) -> dict[str, tuple[Any, Any, bool]]:
    """Each field's type, default and whether it must be given, in order."""
    return {
        name: (one.annotation, one.get_default(call_default_factory=True), one.is_required())
        for name, one in model.model_fields.items()
    }
