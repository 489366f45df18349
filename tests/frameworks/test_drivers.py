"""The whole of `examples/multiply`, solved by agents of frameworks through every driver."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("openai", reason="runs in the environments of the frameworks")

from osmosis_ai.launch import forgetting_modules, import_path, load_entrypoint
from osmosis_ai.rollout.driver.choose import IN_PROCESS, PROCESS
from osmosis_ai.testing.serving import serve
from tests.frameworks.recipe import MULTIPLY, WORKSPACE, solve

# LiteLLM warns of itself, at each chunk of a stream; as an error that would end the stream.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")

NAMES = {"multiply-strands": "strands", "multiply-openai-agents": "agents"}
HERE = [name for name, package in NAMES.items() if find_spec(package)]


@pytest.mark.parametrize("name", HERE)
@pytest.mark.parametrize("driver", [IN_PROCESS, PROCESS])
async def test_an_agent_with_a_tool_solves_every_row(
    name: str, driver: str, tmp_path: Path
) -> None:
    assert len(await solve(name, tmp_path, data=MULTIPLY, driver=driver)) == 200


@pytest.mark.parametrize("name", HERE)
async def test_it_does_so_on_a_server_that_runs_already(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_OSMOSIS_ROLLOUT_ARTIFACT_ROOT", str(tmp_path))
    project = WORKSPACE / "rollouts" / name
    roots = [project, WORKSPACE]
    with (
        forgetting_modules(roots),
        import_path(roots),
        serve(load_entrypoint(project / "main.py", roots).app) as url,
    ):
        assert len(await solve(name, tmp_path, data=MULTIPLY, server_url=url)) == 200
