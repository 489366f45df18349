"""ServerProcess: a rollout server that is started here, and ends with all it has started."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from osmosis_ai.environment import outside_variables
from osmosis_ai.errors import BackendError
from osmosis_ai.log_file import LogSink
from osmosis_ai.rollout.artifacts import ARTIFACT_ROOT_VARIABLE
from osmosis_ai.rollout.client.server_client import open_server_client
from osmosis_ai.rollout.driver.serve import LIFELINE_VARIABLE, PORT_VARIABLE

START_PATIENCE_SEC = 90.0
"""How long a server may take until it answers."""

STOP_PATIENCE_SEC = 5.0
"""How long a server that was told to end is waited for."""

_INSTANCE_ID_VARIABLE = "_OSMOSIS_ROLLOUT_INSTANCE_ID"
_POLL_SEC = 0.05


@dataclass(frozen=True, slots=True)
class ServerProcess:
    """A running server, and where it writes."""

    url: str
    entrypoint: Path
    process: asyncio.subprocess.Process
    log: LogSink

    async def wait(self) -> BackendError:
        """Wait until the server has ended, and say so with its last words."""
        code = await self.process.wait()
        return self.problem(f"ended with {_ending(code)}")

    def problem(self, what: str) -> BackendError:
        """An error that shows the server's last words."""
        return BackendError(
            f"the server of {self.entrypoint} {what}. Its log, {self.log.path}, ends:\n"
            f"{self.log.last_words()}"
        )


@asynccontextmanager
async def start_server(
    entrypoint: Path,
    *,
    project_path: Path,
    import_roots: Sequence[Path],
    artifact_root: Path,
    python: str | Path = sys.executable,
    start_patience_sec: float = START_PATIENCE_SEC,
    stop_patience_sec: float = STOP_PATIENCE_SEC,
) -> AsyncIterator[ServerProcess]:
    """Start the server of an entrypoint and wait until it answers; stop its group at the end.

    It runs in `project_path`. What it prints is added to `server.log` beside `artifact_root`.
    Raises BackendError with the end of that log where it does not come up.
    """
    port, instance_id = _free_port(), secrets.token_hex(16)
    variables = {
        PORT_VARIABLE: str(port),
        ARTIFACT_ROOT_VARIABLE: _absolute(artifact_root),
        _INSTANCE_ID_VARIABLE: instance_id,
        "PYTHONUNBUFFERED": "1",
    }
    arguments = [_absolute(path) for path in (entrypoint, *import_roots)]
    artifact_root.parent.mkdir(parents=True, exist_ok=True)
    log = LogSink(artifact_root.parent / "server.log")
    # The server's side holds the end that is read, and sees when this process is gone.
    lifeline, ours = os.pipe()
    try:
        process = await _spawn(
            [str(python), *_LAUNCHER, *arguments],
            lifeline,
            log,
            cwd=project_path,
            variables={**_inherited(Path(python)), **variables},
        )
        server = ServerProcess(f"http://127.0.0.1:{port}", entrypoint, process, log)
        try:
            await _until_up(server, instance_id, start_patience_sec)
            yield server
        finally:
            await _stop(process, stop_patience_sec)
    finally:
        os.close(lifeline)
        os.close(ours)


_LAUNCHER = ("-m", "osmosis_ai.rollout.driver.serve")


async def _spawn(
    command: Sequence[str], lifeline: int, log: LogSink, *, cwd: Path, variables: Mapping[str, str]
) -> asyncio.subprocess.Process:
    with log.writable() as output:
        return await asyncio.create_subprocess_exec(
            *command,
            cwd=cwd,
            env={**variables, LIFELINE_VARIABLE: str(lifeline)},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=[lifeline],
            start_new_session=True,
        )


def _inherited(python: Path) -> dict[str, str]:
    """Our variables; in another environment its own programs come first, and nothing of ours."""
    if python == Path(sys.executable):
        return {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    programs = python.parent
    path = os.pathsep.join([str(programs), os.environ.get("PATH", os.defpath)])
    return {**outside_variables(), "VIRTUAL_ENV": str(programs.parent), "PATH": path}


async def _until_up(server: ServerProcess, instance_id: str, patience_sec: float) -> None:
    """Return when our own server answers: another one may have had the port first."""
    ended = asyncio.create_task(server.wait())
    answers = asyncio.create_task(_answers(server.url, instance_id))
    try:
        await asyncio.wait(
            {ended, answers}, timeout=patience_sec, return_when=asyncio.FIRST_COMPLETED
        )
        if ended.done():
            raise ended.result()
        if not answers.done():
            raise server.problem(f"does not answer after {patience_sec:g} s")
    finally:
        ended.cancel()
        answers.cancel()


async def _answers(url: str, instance_id: str) -> None:
    async with open_server_client(url, api_key=None) as client:
        while True:
            with suppress(BackendError):
                if (await client.health()).get("instance_id") == instance_id:
                    return
            await asyncio.sleep(_POLL_SEC)


async def _stop(process: asyncio.subprocess.Process, patience_sec: float) -> None:
    """End the whole group: the server, and what it has started and left behind."""
    if process.returncode is None:
        _signal_group(process.pid, signal.SIGTERM)
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), patience_sec)
    _signal_group(process.pid, signal.SIGKILL)
    await process.wait()


def _signal_group(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, number)


def _absolute(path: Path) -> str:
    return os.path.abspath(path)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port


def _ending(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {-code}"
