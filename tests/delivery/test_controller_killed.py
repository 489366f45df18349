"""A controller that is killed at any moment gets every answer after all, and the same ones."""

from __future__ import annotations

import json
import os
import random
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.delivery.asking import KEY
from tests.delivery.processes import free_port, hear, nursery, say
from tests.delivery.receiver import read_log

HERE = Path(__file__).parent
KILLS = 40
ROLLOUTS = 1200


def plans(seed: int) -> Iterator[dict[str, Any]]:
    """How each life ends, and for how many rollouts it asks; the last one ends by itself."""
    draw = random.Random(seed)
    for life in range(KILLS):
        rollouts = ROLLOUTS * (life + 1) // KILLS
        how = (
            {"after_taken": draw.randint(1, 40)}
            if life % 2
            else {"after_sec": draw.uniform(0.05, 0.5)}
        )
        yield {"seed": f"{seed} {life}", "rollouts": rollouts, **how}
    yield {"seed": f"{seed} last", "rollouts": ROLLOUTS}


async def test_forty_kills_of_the_controller_lose_nothing_and_run_nothing_twice(
    tmp_path: Path,
) -> None:
    taken, port = tmp_path / "taken.log", free_port()
    server = (HERE / "server_process.py", str(tmp_path), str(port))
    controller = (HERE / "controller_process.py", str(taken), f"http://127.0.0.1:{port}")
    deaths: list[int] = []
    async with nursery(*server) as serving, nursery(*controller) as controlling:
        await say(serving, {})
        alive = (await hear(serving))["pid"]
        for plan in plans(seed=7):
            await say(controlling, plan)
            await hear(controlling)
            deaths.append((await hear(controlling))["died_of"])
        os.kill(alive, signal.SIGTERM)
        assert (await hear(serving))["died_of"] in (0, -signal.SIGTERM)
    # A life may be over before its time, when there was nothing left to ask for.
    assert deaths[-1] == 0
    assert deaths.count(-signal.SIGKILL) >= KILLS * 3 // 4
    assert set(deaths) <= {0, -signal.SIGKILL}
    check(read_log(taken))
    executions = Counter((tmp_path / "executions.log").read_text().split())
    assert set(executions) == {f"r{number:04}" for number in range(ROLLOUTS)}
    assert set(executions.values()) == {1}, "a rollout was executed twice"


def check(lines: list[dict[str, str]]) -> None:
    """Each rollout has one answer of each kind, whoever took it and how often."""
    answers: dict[str, str] = {}
    for line in lines:
        assert line["key"] == f"{line['id']}/{line['kind']}"
        assert line["auth"] == f"Bearer {KEY}"
        assert answers.setdefault(line["key"], line["body"]) == line["body"]
    assert len(answers) == 2 * ROLLOUTS
    for body in map(json.loads, answers.values()):
        assert (body["status"], body["no_result"]) == ("success", None)
    assert len(lines) > len(answers), "no answer came twice, so nothing was proved"
