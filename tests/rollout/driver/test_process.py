"""A server that a driver starts: it comes up as ours, shows why it failed, and leaves nothing."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.errors import BackendError
from osmosis_ai.rollout import ExecutionRequest
from osmosis_ai.rollout.controller.listener import Controller
from osmosis_ai.rollout.controller.model.scripted import ScriptedClient
from osmosis_ai.rollout.driver.process import open_process_driver
from osmosis_ai.rollout.driver.serve import LIFELINE_VARIABLE
from osmosis_ai.rollout.driver.server_process import ServerProcess, free_port, start_server

# A child of its own that tells who it is, ignores SIGTERM and would live for a minute.
CHILD = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True);"
    "time.sleep(60)"], stdout=subprocess.PIPE)
child.stdout.readline()
"""
SERVED = """
from osmosis_ai.rollout import LocalBackend
from osmosis_ai.rollout.server import create_rollout_server
from osmosis_ai.testing import EchoWorkflow

app = create_rollout_server(backend=LocalBackend(workflow=EchoWorkflow))
"""
LISTENING = (
    SERVED
    + """
if __name__ == "__main__":
    import os, uvicorn
    uvicorn.run(app, port=int(os.environ["_OSMOSIS_ROLLOUT_PORT"]))
"""
)
DYING = """
import os, signal
from osmosis_ai.rollout import AgentWorkflow, LocalBackend
from osmosis_ai.rollout.server import create_rollout_server

class Dying(AgentWorkflow):
    async def run(self, ctx):
        print("I am going", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

app = create_rollout_server(backend=LocalBackend(workflow=Dying))
"""
REFUSING = """
from contextlib import asynccontextmanager
from fastapi import FastAPI

@asynccontextmanager
async def lifespan(app):
    raise RuntimeError("no database")
    yield

app = FastAPI(lifespan=lifespan)
"""


def starting(folder: Path, text: str, **given: Any) -> AbstractAsyncContextManager[ServerProcess]:
    entrypoint = folder / "project/main.py"
    entrypoint.parent.mkdir(exist_ok=True)
    entrypoint.write_text(text)
    return start_server(
        entrypoint,
        project_path=entrypoint.parent,
        import_roots=[entrypoint.parent],
        artifact_root=folder / "run/rollouts",
        **given,
    )


def group_is_gone(group: int) -> bool:
    """Whether nobody but the dead that wait for init is left of a process group."""
    listed = subprocess.run(
        ["ps", "-eo", "pgid=,stat="], capture_output=True, text=True, check=True
    )
    rows = [line.split() for line in listed.stdout.splitlines()]
    return not any(int(pgid) == group and not stat.startswith("Z") for pgid, stat in rows)


@pytest.mark.parametrize("text", [SERVED, LISTENING], ids=["has an app", "listens"])
async def test_a_file_is_served_or_serves_itself(tmp_path: Path, text: str) -> None:
    async with starting(tmp_path, text) as server:
        assert server.process.returncode is None
    assert server.process.returncode is not None


async def test_the_whole_process_group_ends(tmp_path: Path) -> None:
    """Also a child that the server does not end, and that ignores SIGTERM."""
    async with starting(tmp_path, CHILD + SERVED) as server:
        group = server.process.pid
        assert not group_is_gone(group)
    assert group_is_gone(group)


async def test_a_server_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    text = SERVED + (
        "import signal, uvicorn, os\n"
        "class Deaf(uvicorn.Server):\n"
        "    def handle_exit(self, *_): pass\n"
        "Deaf(uvicorn.Config(app, port=int(os.environ['_OSMOSIS_ROLLOUT_PORT']))).run()\n"
    )
    async with starting(tmp_path, text, stop_patience_sec=0.2) as server:
        pass
    assert server.process.returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("raise LookupError('no such model')", "LookupError: no such model"),
        ("", "neither listens nor has an `app`"),
        (REFUSING, "no database"),
    ],
)
async def test_a_server_that_does_not_come_up_shows_its_log(
    tmp_path: Path, text: str, said: str
) -> None:
    with pytest.raises(BackendError, match=r"ended with exit code \d") as caught:
        async with starting(tmp_path, text):
            pass
    assert said in str(caught.value)
    assert str(tmp_path / "run/server.log") in str(caught.value)
    assert "runpy" not in str(caught.value)


async def test_a_server_that_does_not_come_up_shows_no_others_log(tmp_path: Path) -> None:
    """The start before it failed for a reason that is mended by now."""
    for said in ("first", "second"):
        with pytest.raises(BackendError) as caught:
            async with starting(tmp_path, f"raise LookupError('{said}')"):
                pass
    assert "LookupError: second" in str(caught.value)
    assert "LookupError: first" not in str(caught.value)


async def test_a_server_that_never_answers_is_given_up(tmp_path: Path) -> None:
    text = "import threading\nprint('waiting', flush=True)\nthreading.Event().wait()"
    with pytest.raises(BackendError, match="does not answer after 1 s"):
        async with starting(tmp_path, text, start_patience_sec=1):
            pass


async def test_another_server_on_the_port_is_not_ours(tmp_path: Path) -> None:
    """It says another instance id, or none: rollouts must not go there."""
    text = "import os\nos.environ['_OSMOSIS_ROLLOUT_INSTANCE_ID'] = 'another'\n" + SERVED
    with pytest.raises(BackendError, match="does not answer"):
        async with starting(tmp_path, text, start_patience_sec=3):
            pass


async def test_a_server_of_ones_own_making_may_say_who_it_is_in_a_header(tmp_path: Path) -> None:
    text = (
        "import os\n"
        "from fastapi import FastAPI, Response\n"
        "app = FastAPI()\n"
        "@app.get('/health')\n"
        "def health(response: Response):\n"
        "    mine = os.environ['_OSMOSIS_ROLLOUT_INSTANCE_ID']\n"
        "    response.headers['x-osmosis-rollout-instance-id'] = mine\n"
    )
    async with starting(tmp_path, text) as server:
        assert server.process.returncode is None


async def test_a_port_that_was_taken_meanwhile_is_left_to_its_owner(tmp_path: Path) -> None:
    """Between the choice of a port and the start of a server anybody may have it."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        free = free_port()
        ports = [free, taken.getsockname()[1]]
        async with starting(tmp_path, SERVED, choose_port=ports.pop) as server:
            assert server.url == f"http://127.0.0.1:{free}"
    assert "ddress already in use" in (tmp_path / "run/server.log").read_text()


async def test_a_port_is_not_changed_without_end(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(BackendError, match="ended with exit code 3"):
            async with starting(tmp_path, SERVED, choose_port=lambda: port):
                pass


async def test_a_server_that_dies_ends_the_run_with_its_last_words(tmp_path: Path) -> None:
    entrypoint = tmp_path / "main.py"
    entrypoint.write_text(DYING)
    with Controller(ScriptedClient(lambda request, call: "42")) as controller:
        async with open_process_driver(
            entrypoint,
            controller=controller,
            project_path=tmp_path,
            import_roots=[tmp_path],
            artifact_root=tmp_path / "rollouts",
        ) as driver:
            prompt = [{"role": "user", "content": "?"}]
            with pytest.raises(BackendError, match=r"(?s)ended with signal 9.*I am going"):
                await driver.run(ExecutionRequest(id="r1", prompt=prompt))


def test_a_server_ends_with_whoever_started_it(tmp_path: Path) -> None:
    """A killed evaluation stops nobody: the end of its pipe does."""
    entrypoint = tmp_path / "main.py"
    entrypoint.write_text(
        "import signal, sys, threading\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"
        "print('up', flush=True)\nsignal.pause()\n"
    )
    lifeline, ours = os.pipe()
    with subprocess.Popen(
        [sys.executable, "-m", "osmosis_ai.rollout.driver.serve", entrypoint],
        env={**os.environ, LIFELINE_VARIABLE: str(lifeline)},
        pass_fds=[lifeline],
        start_new_session=True,
        stdout=subprocess.PIPE,
    ) as server:
        os.close(lifeline)
        assert server.stdout is not None
        assert server.stdout.readline() == b"up\n"
        os.close(ours)
        assert server.wait(20) == 7


def test_a_server_that_nobody_holds_lives_as_long_as_it_wants(tmp_path: Path) -> None:
    entrypoint = tmp_path / "main.py"
    entrypoint.write_text("raise SystemExit(3)")
    command = [sys.executable, "-m", "osmosis_ai.rollout.driver.serve", entrypoint]
    assert subprocess.run(command, check=False).returncode == 3
