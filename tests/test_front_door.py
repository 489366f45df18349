"""The documented names, exactly, and what importing them costs."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import pytest

from tests.isolated import closure, link_installed, link_ours, run_python

ROLLOUT = """
    AgentWorkflow AgentWorkflowConfig AgentWorkflowContext AgentWorkflowOutput BaseConfig
    ConcurrencyConfig ExecutionBackend ExecutionOutcome ExecutionRequest ExecutionResult Grader
    GraderCompleteRequest GraderConfig GraderContext GraderStatus LocalBackend MessageDict NoResult
    RolloutCompleteRequest RolloutContext RolloutErrorCategory RolloutInitRequest
    RolloutInitResponse RolloutSample RolloutStatus SampleSource get_rollout_context
"""

SERVER = "ControllerAuth create_rollout_server"

DEEP_PATHS = {
    "osmosis_ai.rollout.agent_workflow": "AgentWorkflow",
    "osmosis_ai.rollout.backend": "ExecutionBackend LocalBackend ResultCallback",
    "osmosis_ai.rollout.backend.local": "LocalBackend",
    "osmosis_ai.rollout.context": (
        "AgentWorkflowContext GraderContext RolloutContext SampleSource get_rollout_context"
    ),
    "osmosis_ai.rollout.grader": "Grader",
    "osmosis_ai.rollout.types": (
        "AgentWorkflowConfig BaseConfig ConcurrencyConfig ExecutionRequest ExecutionResult "
        "GraderConfig MessageDict Messages RolloutErrorCategory RolloutSample RolloutStatus"
    ),
}
"""Paths that existing rollouts import by."""

COSTLY = {"aiohttp", "fastapi", "httpx", "requests", "rich", "starlette", "typer", "uvicorn"}
"""What `import osmosis_ai.rollout` must not load: a web framework, an HTTP client, the CLI's."""


@pytest.fixture(scope="module")
def base_install(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds what `pip install osmosis-ai` without extras brings, and no more."""
    wanted = closure("osmosis-ai") - {"osmosis-ai"}
    site = link_installed(tmp_path_factory.mktemp("base") / "site", lambda name: name in wanted)
    link_ours(site)
    return site


@pytest.mark.parametrize(
    ("module", "names"),
    [("osmosis_ai.rollout", ROLLOUT), ("osmosis_ai.rollout.server", SERVER)],
)
def test_a_front_door_has_exactly_the_documented_names_sorted(module: str, names: str) -> None:
    front_door = import_module(module)
    assert front_door.__all__ == names.split()
    assert [name for name in names.split() if not hasattr(front_door, name)] == []


@pytest.mark.parametrize(
    ("module", "name"),
    [(module, name) for module, all in DEEP_PATHS.items() for name in all.split()],
)
def test_a_deep_path_of_existing_rollouts_is_a_real_module(module: str, name: str) -> None:
    assert import_module(module).__file__
    assert hasattr(import_module(module), name)


def test_the_front_door_and_the_deep_path_give_the_same_object() -> None:
    front_door = import_module("osmosis_ai.rollout")
    for module, names in DEEP_PATHS.items():
        for name in set(names.split()) & set(ROLLOUT.split()):
            assert getattr(import_module(module), name) is getattr(front_door, name), name


def test_the_rollout_core_runs_on_the_base_install(base_install: Path, tmp_path: Path) -> None:
    """No extra is needed to write, run and grade a rollout."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    assert run_python(str(program), path=[base_install], cwd=tmp_path).split() == ["success", "1.0"]


def test_importing_the_core_loads_no_web_framework_and_no_http_client() -> None:
    """They are installed here, and would cost every import of a rollout their time."""
    code = "import json, sys, osmosis_ai.rollout; print(json.dumps(list(sys.modules)))"
    loaded = {name.partition(".")[0] for name in json.loads(run_python("-c", code))}
    assert "pydantic" in loaded
    assert loaded & COSTLY == set()


def test_the_server_without_its_extra_gives_the_install_line(
    base_install: Path, tmp_path: Path
) -> None:
    code = "try: import osmosis_ai.rollout.server\nexcept ModuleNotFoundError as e: print(e)"
    message = run_python("-c", code, path=[base_install], cwd=tmp_path)
    assert 'pip install "osmosis-ai[server]"' in message
    assert message.count("\n") == 1


PROGRAM = """
import asyncio
from osmosis_ai.rollout import AgentWorkflow, ExecutionRequest, Grader, LocalBackend

class Echo(AgentWorkflow):
    async def run(self, ctx):
        return ctx.prompt

class Always(Grader):
    async def grade(self, ctx):
        ctx.set_reward(1.0)

async def main():
    backend = LocalBackend(workflow=Echo, grader=Always)
    request = ExecutionRequest(id="one", prompt=[{"role": "user", "content": "hi"}], label="hi")
    result = await backend.run_workflow(request)
    graded = await backend.run_grader(request, result)
    print(graded.status.value, graded.sample.reward)

asyncio.run(main())
"""
