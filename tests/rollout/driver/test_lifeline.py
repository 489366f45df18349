"""What a driver has started ends with it, also where it was killed and could stop nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from osmosis_ai.rollout.driver.lifeline import end_group

# The second of the two ignores what asks it to end.
CHILDREN = """
import subprocess, sys
code = "import signal, time; signal.signal(signal.SIGTERM, signal.{0}); print(flush=True); " \\
    "time.sleep(60)"
for kind in ("SIG_DFL", "SIG_IGN"):
    child = subprocess.Popen([sys.executable, "-c", code.format(kind)], stdout=subprocess.PIPE)
    child.stdout.readline()
"""
SERVED = """
from osmosis_ai.rollout import LocalBackend
from osmosis_ai.rollout.server import create_rollout_server
from osmosis_ai.testing import EchoWorkflow

app = create_rollout_server(backend=LocalBackend(workflow=EchoWorkflow))
"""
EVALUATION = """
import asyncio, sys
from pathlib import Path
from osmosis_ai.rollout.driver.server_process import start_server

async def main(folder):
    async with start_server(
        folder / "main.py", project_path=folder, import_roots=[folder],
        artifact_root=folder / "run/rollouts",
    ) as server:
        print(server.process.pid, flush=True)
        await asyncio.Event().wait()

asyncio.run(main(Path(sys.argv[1])))
"""
LONG = [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"]


def is_gone(group: int) -> bool:
    """Whether nobody but the dead that wait for init is left of a process group."""
    listed = subprocess.run(
        ["ps", "-eo", "pgid=,stat="], capture_output=True, text=True, check=True
    )
    rows = [line.split() for line in listed.stdout.splitlines()]
    return not any(int(pgid) == group and not stat.startswith("Z") for pgid, stat in rows)


def becomes_gone(group: int, *, patience_sec: float = 60) -> bool:
    ends = time.monotonic() + patience_sec
    while time.monotonic() < ends:
        if is_gone(group):
            return True
        time.sleep(0.2)
    return False


def test_a_killed_evaluation_leaves_nothing_running(tmp_path: Path) -> None:
    """Neither the server, nor what it has started, nor a child that ignores SIGTERM."""
    (tmp_path / "main.py").write_text(CHILDREN + SERVED)
    command = [sys.executable, "-c", EVALUATION, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as evaluation:
        assert evaluation.stdout is not None
        group = int(evaluation.stdout.readline())
        assert not is_gone(group)
        evaluation.kill()
    assert becomes_gone(group)


def test_a_server_that_blocks_ends_all_the_same(tmp_path: Path) -> None:
    """A stopped process runs no thread of its own, and sees no SIGTERM."""
    (tmp_path / "main.py").write_text(SERVED)
    command = [sys.executable, "-c", EVALUATION, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as evaluation:
        assert evaluation.stdout is not None
        group = int(evaluation.stdout.readline())
        os.killpg(group, signal.SIGSTOP)
        evaluation.kill()
    assert becomes_gone(group)


def test_a_group_that_ends_when_it_is_told_to_is_not_killed() -> None:
    with (
        subprocess.Popen(LONG, start_new_session=True, stdout=subprocess.PIPE) as child,
        ThreadPoolExecutor() as threads,
    ):
        assert child.stdout is not None
        child.stdout.readline()
        # At once: the dead that nobody has waited for count as a group.
        ended = threads.submit(child.wait)
        lifeline, ours = os.pipe()
        os.close(ours)
        program = [sys.executable, "-m", end_group.__module__, str(lifeline), str(child.pid)]
        subprocess.run(program, pass_fds=[lifeline], check=True)
        os.close(lifeline)
        assert ended.result(20) == -signal.SIGTERM


def test_a_group_that_does_not_is_killed_when_patience_ends() -> None:
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + LONG[2]
    command = [sys.executable, "-c", deaf]
    with subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        end_group(child.pid, patience_sec=0.1)
        assert child.wait(20) == -signal.SIGKILL


def test_a_group_that_is_gone_is_left_alone() -> None:
    with subprocess.Popen(["true"], start_new_session=True) as child:
        child.wait(20)
    end_group(child.pid)
