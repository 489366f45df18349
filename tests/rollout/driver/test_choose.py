"""Which driver a run gets, with which model, and what is said where there is none."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.errors import BackendError, ConfigError, MissingExtraError
from osmosis_ai.rollout import ExecutionRequest, LocalBackend
from osmosis_ai.rollout.controller.model.openai_compatible import OpenAICompatibleClient
from osmosis_ai.rollout.controller.model.scripted import ScriptedClient
from osmosis_ai.rollout.driver.base import FALLBACK_DEADLINE_SEC, ModelSpec, deadline_sec
from osmosis_ai.rollout.driver.choose import load_model, open_driver
from osmosis_ai.rollout.driver.listener_spec import ListenerSpec
from osmosis_ai.rollout.server import create_rollout_server
from osmosis_ai.testing import ChatWorkflow, ExactMatchGrader, HttpReply, ScriptedModel
from osmosis_ai.testing.serving import serve

ENTRYPOINT = """
from osmosis_ai.rollout import LocalBackend
from osmosis_ai.testing import ChatWorkflow, ExactMatchGrader

backend = LocalBackend(workflow=ChatWorkflow, grader=ExactMatchGrader)
"""
POLICY = "def reply(request, call):\n    return '42'\n"
SCRIPTED = ModelSpec("scripted:the_policy:reply")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "rollouts" / "demo"
    folder.mkdir(parents=True)
    (folder / "main.py").write_text(ENTRYPOINT)
    (folder / "the_policy.py").write_text(POLICY)
    return folder


def opening(project: Path, model: ModelSpec = SCRIPTED, **given: Any) -> Any:
    return open_driver(
        entrypoint=project / "main.py",
        project_path=project,
        import_roots=[project, project.parents[1]],
        model=model,
        artifact_root=project / "runs",
        **given,
    )


def request() -> ExecutionRequest:
    return ExecutionRequest(id="r1", prompt=[{"role": "user", "content": "?"}], label="42")


@pytest.mark.parametrize("driver", [None, "in-process"])
async def test_an_entrypoint_with_a_backend_runs_in_this_process(
    project: Path, driver: str | None
) -> None:
    async with opening(project, driver=driver) as opened:
        assert opened.description == "in-process, LocalBackend"
        assert opened.max_in_flight == 4
        outcome = await opened.run(request())
    assert outcome.result.sample.reward == 1.0
    assert (project / "runs/r1/trajectory.json").exists()


async def test_modules_can_be_imported_as_long_as_the_driver_is_open(project: Path) -> None:
    """Also by code that imports on first use; afterwards the next run's modules have the names."""
    async with opening(project):
        assert str(project) in sys.path
        assert {"main", "the_policy"} <= sys.modules.keys()
    assert str(project) not in sys.path
    assert not {"main", "the_policy"} & sys.modules.keys()


async def test_the_backend_is_shut_down_at_the_end(project: Path) -> None:
    text = ENTRYPOINT + (
        "\nclass Backend(LocalBackend):\n"
        "    async def shutdown(self):\n"
        "        self.is_shut = True\n"
        "\nbackend = Backend(workflow=ChatWorkflow)\n"
    )
    (project / "main.py").write_text(text)
    async with opening(project):
        backend = sys.modules["main"].backend
        assert not hasattr(backend, "is_shut")
    assert backend.is_shut


async def test_a_server_is_called_with_its_name_key_and_params(project: Path) -> None:
    with ScriptedModel("42", api_key="secret") as model:
        spec = ModelSpec("big", base_url=model.base_url, api_key="secret", params={"top_p": 0.5})
        async with opening(project, spec) as opened:
            outcome = await opened.run(request())
    assert outcome.result.sample.reward == 1.0
    assert model.calls[0].request["model"] == "big"
    assert model.calls[0].request["top_p"] == 0.5


async def test_a_server_is_tried_as_often_as_it_is_said(project: Path) -> None:
    busy = HttpReply(429, headers={"Retry-After": "0"})
    with ScriptedModel([busy, busy, "42"]) as model:
        spec = ModelSpec("big", base_url=model.base_url, max_retries=2)
        async with opening(project, spec) as opened:
            outcome = await opened.run(request())
    assert outcome.result.sample.reward == 1.0


async def test_a_scripted_model_is_not_tried_again(project: Path) -> None:
    """It would say the same."""
    (project / "the_policy.py").write_text("def reply(request, call):\n    raise OSError('down')\n")
    async with opening(project, ModelSpec(SCRIPTED.path, max_retries=9)) as opened:
        outcome = await opened.run(request())
    assert outcome.usage.failed_calls == 1


async def test_a_driver_may_be_asked_for_by_name(project: Path) -> None:
    """A backend in the entrypoint does not decide it then."""
    served = ENTRYPOINT + (
        "\nfrom osmosis_ai.rollout.server import create_rollout_server\n"
        "app = create_rollout_server(backend=backend)\n"
    )
    (project / "main.py").write_text(served)
    async with opening(project, driver="process") as opened:
        assert opened.description.startswith("process ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "main.py has no ExecutionBackend named `backend`. To run in this process"),
        ("backend = 'mine'", "no ExecutionBackend named `backend`: its `backend` is a str."),
        (ENTRYPOINT.replace("backend =", "bckend ="), "its LocalBackend is named `bckend`."),
    ],
)
async def test_an_entrypoint_without_a_backend_is_told_what_to_write(
    project: Path, text: str, message: str
) -> None:
    (project / "main.py").write_text(text)
    with pytest.raises(ConfigError) as caught:
        async with opening(project, driver="in-process"):
            pass
    assert message in str(caught.value)
    assert "backend = LocalBackend(workflow=" in str(caught.value)
    assert caught.value.key == "entrypoint"


async def test_a_misspelt_backend_is_told_before_what_its_server_said(project: Path) -> None:
    """Who forgot a letter is not helped by advice to write an `app`."""
    (project / "main.py").write_text(ENTRYPOINT.replace("backend =", "bckend ="))
    with pytest.raises(BackendError) as caught:
        async with opening(project):
            pass
    first, second, *rest = str(caught.value).splitlines()
    assert first == (
        "main.py has no ExecutionBackend named `backend`: its LocalBackend is named `bckend`."
    )
    assert second.startswith("As a server of its own it fails: the server of ")
    assert len(rest) == 1
    assert "neither listens nor has an `app`" in rest[0]
    with pytest.raises(BackendError, match=r"^the server of"):
        async with opening(project, driver="process"):
            pass


async def test_an_entrypoint_without_a_backend_gets_a_process(project: Path) -> None:
    served = ENTRYPOINT.replace("backend =", "mine =") + (
        "\nfrom osmosis_ai.rollout.server import create_rollout_server\n"
        "app = create_rollout_server(backend=mine)\n"
    )
    (project / "main.py").write_text(served)
    async with opening(project) as opened:
        assert opened.description.startswith("process ")
        outcome = await opened.run(request())
    assert outcome.result.sample.reward == 1.0


async def test_an_unknown_driver_is_refused(project: Path) -> None:
    with pytest.raises(ConfigError, match="driver is 'carrier pigeon'; choose") as caught:
        async with opening(project, driver="carrier pigeon"):
            pass
    assert caught.value.key == "driver"


@pytest.mark.parametrize("driver", [None, "http"])
async def test_a_running_server_runs_the_rollouts(
    project: Path, driver: str | None, tmp_path: Path
) -> None:
    """The entrypoint is its own affair: here, there is none."""
    backend = LocalBackend(workflow=ChatWorkflow, grader=ExactMatchGrader)
    app = create_rollout_server(backend=backend, configure_logging=False, api_key="secret")
    (project / "main.py").unlink()
    with serve(app) as url:
        given = {"driver": driver, "server_url": url, "server_api_key": "secret"}
        async with opening(project, **given) as opened:
            assert opened.description == f"http, {url}"
            outcome = await opened.run(request())
    assert outcome.result.sample.reward == 1.0


async def test_a_server_elsewhere_is_told_where_we_are(
    project: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It cannot reach a listener of this machine alone, and a run of timeouts says less."""
    backend = LocalBackend(workflow=ChatWorkflow, grader=ExactMatchGrader)
    with serve(create_rollout_server(backend=backend, configure_logging=False)) as url:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        here = f"http://127.0.0.1:{port}"
        listener = ListenerSpec.parse(f"0.0.0.0:{port}", advertise_url=here)
        async with opening(project, server_url=url, listener=listener) as opened:
            outcome = await opened.run(request())
        assert outcome.result.sample.reward == 1.0
        assert "--advertise-url" not in caplog.text
    with pytest.raises(BackendError):
        async with opening(project, server_url="http://no-such-machine.invalid"):
            pass
    assert "give --listen and --advertise-url" in caplog.text


@pytest.mark.parametrize(("driver", "url"), [("http", None), ("in-process", "http://localhost")])
async def test_a_driver_that_does_not_go_with_a_server_is_refused(
    project: Path, driver: str, url: str | None
) -> None:
    with pytest.raises(ConfigError, match="go together"):
        async with opening(project, driver=driver, server_url=url):
            pass


async def test_a_model_that_nothing_answers_for_is_refused(project: Path) -> None:
    """Without a base_url it is LiteLLM's to know, which is not installed here."""
    with pytest.raises(MissingExtraError, match=r"osmosis-ai\[litellm\]") as caught:
        async with opening(project, ModelSpec("gpt")):
            pass
    assert "model_path without `[model] base_url`" in str(caught.value)


def test_a_model_spec_names_its_kind_of_client(project: Path) -> None:
    assert isinstance(load_model(ModelSpec("scripted:math:sqrt")), ScriptedClient)
    compatible = load_model(ModelSpec("big", base_url="http://localhost/v1"))
    assert isinstance(compatible, OpenAICompatibleClient)


@pytest.mark.parametrize(
    ("agent", "grader", "seconds"),
    [(450, 150, 660), (None, 150, 3600), (450, None, 3600), (0, 150, 3600), (450, -1, 3600)],
)
def test_a_deadline_is_the_requests_own_and_a_minute(
    agent: float | None, grader: float | None, seconds: float
) -> None:
    """Where the request sets one half only, there is nothing to add up."""
    timed = request().model_copy(update={"agent_timeout_sec": agent, "grader_timeout_sec": grader})
    assert deadline_sec(timed) == seconds
    assert FALLBACK_DEADLINE_SEC == 3600
