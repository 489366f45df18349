"""A server that is killed at any moment loses no answer, doubles none and runs nothing twice."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from tests.delivery.asking import KEY, ask_until_accepted
from tests.delivery.processes import free_port, hear, nursery, say
from tests.delivery.receiver import Receiver, read_log

SERVER = Path(__file__).with_name("server_process.py")
STEPS = [
    f"{when} {what}" for what in ("accept", "answer", "settle") for when in ("before", "after")
]
KILLS_AT_EACH_STEP = 7
KILLS_AT_RANDOM = 18
ROLLOUTS = 2010


def plans(seed: int) -> Iterator[dict[str, Any]]:
    """How each life ends; the last one does not."""
    draw = random.Random(seed)
    made: list[dict[str, Any]] = [
        {"step": step, "count": draw.randint(1, 25)} for step in STEPS * KILLS_AT_EACH_STEP
    ]
    made += [{"after_sec": draw.uniform(0.02, 0.5)} for _ in range(KILLS_AT_RANDOM)]
    draw.shuffle(made)
    yield from made
    yield {}


@asynccontextmanager
async def serving(app: web.Application) -> AsyncIterator[str]:
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def test_sixty_kills_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    taken, port = tmp_path / "taken.log", free_port()
    ids = [f"r{number:04}" for number in range(ROLLOUTS)]
    lives = list(plans(seed=4))
    share = -(-ROLLOUTS // len(lives))
    deaths: list[int] = []
    alive = 0
    async with (
        serving(Receiver(taken, seed="4").app()) as controller,
        aiohttp.ClientSession() as session,
        nursery(SERVER, str(tmp_path), str(port)) as server,
        asyncio.TaskGroup() as asking,
    ):
        for number, plan in enumerate(lives):
            await say(server, plan)
            alive = (await hear(server))["pid"]
            for rollout_id in ids[number * share : (number + 1) * share]:
                asking.create_task(
                    ask_until_accepted(session, f"http://127.0.0.1:{port}", controller, rollout_id)
                )
            if plan:
                deaths.append((await hear(server))["died_of"])
        await all_taken(taken, ids)
        os.kill(alive, signal.SIGTERM)
        assert (await hear(server))["died_of"] in (0, -signal.SIGTERM)
    assert deaths == [-signal.SIGKILL] * 60
    check(read_log(taken), ids)
    check_executions(tmp_path, read_log(taken))


async def all_taken(log: Path, ids: list[str]) -> None:
    """Wait for both answers of each rollout."""
    deadline = asyncio.get_running_loop().time() + 120
    while len({line["key"] for line in read_log(log)}) < 2 * len(ids):
        assert asyncio.get_running_loop().time() < deadline, "some answers never came"
        await asyncio.sleep(0.2)


def check(lines: list[dict[str, str]], ids: list[str]) -> None:
    """Each rollout has one answer of each kind, and these agree."""
    answers: dict[str, dict[str, str]] = {}
    for line in lines:
        assert line["key"] == f"{line['id']}/{line['kind']}"
        assert line["auth"] == f"Bearer {KEY}"
        # A repeated answer says what the first one said, to the byte.
        assert (
            answers.setdefault(line["id"], {}).setdefault(line["kind"], line["body"])
            == (line["body"])
        )
    assert set(answers) == set(ids)
    outcomes: Counter[tuple[str, Any]] = Counter()
    for both in answers.values():
        completion, grade = json.loads(both["completion"]), json.loads(both["grader"])
        outcomes[completion["status"], grade["no_result"]] += 1
        if grade["status"] == "success":
            assert completion["status"] == "success"
            assert grade["sample"]["reward"] == 1.0
        else:
            assert grade["no_result"] == "server_restarted"
    # Both happened, and often: a rollout that came to its end, and one that a kill struck.
    assert outcomes["success", None] > ROLLOUTS / 5
    assert outcomes["failure", "server_restarted"] > 60


def check_executions(folder: Path, lines: list[dict[str, str]]) -> None:
    executions = Counter((folder / "executions.log").read_text().split())
    assert set(executions.values()) == {1}, "a rollout was executed twice"
    for line in lines:
        if line["kind"] == "completion" and json.loads(line["body"])["status"] == "success":
            assert executions[line["id"]] == 1
    assert len(lines) > 2 * len(executions), "no answer came twice, so nothing was proved"
