"""A run that is killed, anywhere and again and again, ends as one that never was."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.eval.journal import read_records
from tests.eval.demo import make_demo

QUESTIONS = [f"question {number}" for number in range(27)] + ["broken", "judge", "unreachable"]
ITEMS = 2 * len(QUESTIONS)
IN_FLIGHT = 8

POLICY = '''
import os
import time
from pathlib import Path

LOG = Path(__file__).parents[2] / "calls.log"


def reply(request, call):
    """Repeats the question; wrong on odd attempts. Each call is a line of the log."""
    with open(LOG, "a") as log:
        log.write(f"{call.row} {call.attempt}\\n")
    time.sleep(0.002)
    question = request["messages"][-1]["content"]
    if question == "unreachable":
        raise RuntimeError("the model is down")
    return question if call.attempt % 2 == 0 else question + "!"
'''

Item = tuple[int, int]


@dataclass
class Legs:
    """One workspace, and processes that work on its runs until they are killed."""

    root: Path
    config: Path
    process: subprocess.Popen[str]

    def folder(self, name: str) -> Path:
        return self.root / ".osmosis" / "evals" / name

    def records(self, name: str) -> set[Item]:
        """The items that are done; the journal can be read whatever happened to its writer."""
        journal = self.folder(name) / "records.jsonl"
        return {(record.row, record.attempt) for record in read_records(journal)}

    def summary(self, name: str) -> bytes:
        return (self.folder(name) / "summary.json").read_bytes()

    def calls(self) -> list[Item]:
        log = self.root / "calls.log"
        lines = log.read_text().splitlines() if log.exists() else []
        return [(int(row), int(attempt)) for row, attempt in (line.split() for line in lines)]

    def run(self, name: str, *flags: str, **moment: Any) -> dict[str, Any]:
        args = ["eval", "run", str(self.config), "--name", name, "-n", "2", "--json", *flags]
        leg = {"args": args, "journal": str(self.folder(name) / "records.jsonl"), **moment}
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(leg) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def go_on(self, name: str, **moment: Any) -> int:
        """One more leg of a run: it calls the model for nothing that was done, and loses none."""
        done, before = self.records(name), len(self.calls())
        code = self.run(name, **moment)["code"]
        called = Counter(self.calls()[before:])
        assert not done & called.keys(), "an item that was done was paid for twice"
        assert set(called.values()) <= {1}
        assert done <= self.records(name), "a record was lost"
        missing = called.keys() - self.records(name)
        assert len(missing) <= IN_FLIGHT, "more was lost than was in flight"
        return code


@pytest.fixture(scope="module")
def legs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Legs]:
    root = tmp_path_factory.mktemp("ws")
    config = make_demo(root, *QUESTIONS)
    (root / "rollouts/demo/policy.py").write_text(POLICY)
    with _runner() as process:
        made = Legs(root, config, process)
        assert made.run("whole")["code"] == 0
        assert len(made.calls()) == ITEMS - 2, "a broken workflow calls no model"
        yield made


@contextmanager
def _runner() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.eval.kill_runner"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=os.environ) as process:
        yield process
        process.communicate()


STEPS = [
    ("open .run.json.tmp", 1),
    ("os.rename run.json", 1),
    ("open records.jsonl", 1),
    ("open calls.log", 1),
    ("write a record", 1),
    ("write the other half", 2),
    # The line that was torn just now is cut off, and not yet for good.
    ("sync the journal", 1),
    ("sync the journal", 2),
    ("acknowledge", 1),
    ("os.mkdir a rollout", 3),
    ("os.rename sample.json", 4),
    ("os.rename trajectory.json", 4),
    ("open .summary.json.tmp", 1),
    ("os.rename summary.json", 1),
    ("open .timing.json.tmp", 1),
    ("os.rename timing.json", 1),
]
"""What a run does with files, in an order in which each still comes."""


def test_a_run_killed_at_each_step_ends_as_one_that_never_was(legs: Legs) -> None:
    before = len(legs.calls())
    for step, count in STEPS:
        code = legs.go_on("steps", step=step, count=count)
        assert code == -signal.SIGKILL, f"the run never came to: {step}"
    assert legs.go_on("steps") == 0
    assert legs.summary("steps") == legs.summary("whole")
    assert len(legs.calls()) - before <= ITEMS + IN_FLIGHT * len(STEPS)


def test_a_run_killed_at_any_instant_ends_as_one_that_never_was(legs: Legs) -> None:
    """50 kills at instants that a seed chooses, as shares of the time a whole run takes."""
    dice, kills, name = random.Random(5), 0, ""
    whole_sec = legs.run("timed")["seconds"]
    while kills < 50 or name:
        name = name or f"instants-{kills}"
        # The last run is led to its end.
        moment = {"after_sec": dice.random() * whole_sec} if kills < 50 else {}
        code = legs.go_on(name, **moment)
        assert code in (0, -signal.SIGKILL)
        kills += code != 0
        if code == 0:
            assert legs.summary(name) == legs.summary("whole")
            name = ""


@pytest.mark.parametrize(
    ("step", "archived"), [("os.rename fresh", False), ("open .run.json.tmp", True)]
)
def test_a_fresh_start_that_is_killed_loses_no_run(legs: Legs, step: str, archived: bool) -> None:
    """The old run is where it was or in the archive, whole, and never half in each."""
    if not legs.folder("fresh").exists():
        assert legs.run("fresh")["code"] == 0
    before = set(legs.folder("fresh").parent.glob("fresh.archive-*"))
    code = legs.run("fresh", "--fresh", step=step, count=1)["code"]
    assert code == -signal.SIGKILL
    made = set(legs.folder("fresh").parent.glob("fresh.archive-*")) - before
    assert len(made) == archived
    kept = made.pop() if made else legs.folder("fresh")
    assert (kept / "summary.json").read_bytes() == legs.summary("whole")
    assert legs.run("fresh", "--fresh")["code"] == 0
    assert legs.summary("fresh") == legs.summary("whole")
