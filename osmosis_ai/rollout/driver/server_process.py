"""ServerProcess: a rollout server that is started here, and ends with all it has started."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
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
_JOURNAL_VARIABLE = "_OSMOSIS_ROLLOUT_JOURNAL"
_POLL_SEC = 0.05
_HOST = "127.0.0.1"


def free_port() -> int:
    """A port that is free now."""
    with socket.create_server((_HOST, 0)) as free:
        port: int = free.getsockname()[1]
        return port


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
    choose_port: Callable[[], int] = free_port,
) -> AsyncIterator[ServerProcess]:
    """Start the server of an entrypoint and wait until it answers; stop its group at the end.

    It runs in `project_path`. What it prints is added to `server.log` beside `artifact_root`.
    Where somebody else has taken its port meanwhile, it is started once more on another. Raises
    BackendError with the end of that log where it does not come up.
    """
    artifact_root.parent.mkdir(parents=True, exist_ok=True)
    launch = _Launch(
        entrypoint,
        command=(str(python), *_LAUNCHER, *map(_absolute, (entrypoint, *import_roots))),
        project_path=project_path,
        log=artifact_root.parent / "server.log",
        variables={
            **_inherited(Path(python)),
            ARTIFACT_ROOT_VARIABLE: _absolute(artifact_root),
            # It ends with its run, and what was cut off runs again: nobody waits for old answers.
            _JOURNAL_VARIABLE: "off",
            "PYTHONUNBUFFERED": "1",
        },
        start_patience_sec=start_patience_sec,
        stop_patience_sec=stop_patience_sec,
    )
    async with AsyncExitStack() as stack:
        yield await _start(launch, stack, choose_port)


_LAUNCHER = ("-m", "osmosis_ai.rollout.driver.serve")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Launch:
    """How a server is started, whatever its port."""

    entrypoint: Path = field(kw_only=False)
    command: Sequence[str]
    project_path: Path
    log: Path
    variables: Mapping[str, str]
    start_patience_sec: float
    stop_patience_sec: float

    @asynccontextmanager
    async def at(self, port: int) -> AsyncIterator[ServerProcess]:
        """The server at a port, up and ours."""
        instance_id, log = secrets.token_hex(16), LogSink(self.log)
        variables = {PORT_VARIABLE: str(port), _INSTANCE_ID_VARIABLE: instance_id}
        # The server's side holds the end that is read, and sees when this process is gone.
        lifeline, ours = os.pipe()
        try:
            process = await _spawn(
                self.command,
                lifeline,
                log,
                cwd=self.project_path,
                variables={**self.variables, **variables},
            )
            server = ServerProcess(f"http://{_HOST}:{port}", self.entrypoint, process, log)
            try:
                await _until_up(server, instance_id, self.start_patience_sec)
                yield server
            finally:
                await _stop(process, self.stop_patience_sec)
        finally:
            os.close(lifeline)
            os.close(ours)


async def _start(
    launch: _Launch, stack: AsyncExitStack, choose_port: Callable[[], int]
) -> ServerProcess:
    port = choose_port()
    try:
        return await stack.enter_async_context(launch.at(port))
    except BackendError:
        if not _is_taken(port):
            raise
    return await stack.enter_async_context(launch.at(choose_port()))


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


def _is_taken(port: int) -> bool:
    try:
        socket.create_server((_HOST, port)).close()
    except OSError:
        return True
    return False


def _ending(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {-code}"
