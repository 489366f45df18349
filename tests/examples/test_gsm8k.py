"""The GSM8K example counts exactly what the recordings say, on all of their rows."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from examples.gsm8k.rollouts.gsm8k.main import final_number
from examples.gsm8k.run import MODELS, count_passed, evaluate, find_data, make_workspace

RUN = Path(__file__).parents[2] / "examples/gsm8k/run.py"


@pytest.fixture(scope="module")
def data() -> Path:
    """The data set and the recordings; .ci/run does not accept that they are absent."""
    found = find_data()
    if found is None:
        pytest.skip("there is no GSM8K data: set GSM8K_DIR, see examples/gsm8k/README.md")
    return found


def read_lines(path: Path) -> list[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def measured(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The workspace in which the example has run, in this process, and what it printed."""
    workspace = tmp_path_factory.mktemp("gsm8k")
    done = subprocess.run(
        [sys.executable, RUN, workspace], capture_output=True, text=True, check=False, timeout=280
    )
    assert done.returncode == 0, done.stderr
    return workspace, done.stdout


def test_every_model_passes_as_often_as_it_was_marked_correct(
    data: Path, measured: tuple[Path, str]
):
    workspace, printed = measured
    recorded = read_lines(data / "model_solutions.jsonl")
    marks = {model: [line[model]["is_correct"] for line in recorded] for model in MODELS}
    assert printed.splitlines() == [f"{name} {sum(m)}/1319" for name, m in marks.items()]
    for model in MODELS:
        records = read_lines(workspace / f".osmosis/evals/{model}/records.jsonl")
        rewards = {record["row"]: record["reward"] for record in records}
        assert [rewards[row] for row in range(1319)] == [float(mark) for mark in marks[model]]


VARYING = ("rollout_id", "try")


def by_row(records: Path) -> dict[int, dict[str, Any]]:
    """A journal's records without what differs from run to run."""
    lines = read_lines(records)
    return {
        one["row"]: {
            key: value
            for key, value in one.items()
            if key not in VARYING and not key.endswith("_sec")
        }
        for one in lines
    }


def test_every_driver_measures_the_same(data: Path, measured: tuple[Path, str]):
    """In this process, in one started for the run, and on a server that runs already."""
    workspace, _ = measured
    runs = workspace / ".osmosis/evals"
    with serving(workspace / "rollouts/gsm8k/main.py", data) as url:
        for model in MODELS:
            expected = by_row(runs / model / "records.jsonl")
            assert len(expected) == 1319
            for name, *flags in (("process", "--driver", "process"), ("http", "--server", url)):
                run = f"{model}-{name}"
                evaluate(model, *flags, "--name", run, workspace=workspace, data=data)
                assert by_row(runs / run / "records.jsonl") == expected, name


@contextmanager
def serving(entrypoint: Path, data: Path) -> Iterator[str]:
    """The example's own server, on a free port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = os.environ | {"_OSMOSIS_ROLLOUT_PORT": str(port), "GSM8K_DIR": str(data)}
    command = [sys.executable, "-u", str(entrypoint)]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        assert any("running on" in line for line in server.stderr)
        reader = threading.Thread(target=server.stderr.read)
        reader.start()
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()
            reader.join()


def test_ten_answers_made_wrong_are_ten_fewer(data: Path, tmp_path: Path):
    """The count comes from the completions' text and from nothing else."""
    model = "175b_verification"
    recorded = read_lines(data / "model_solutions.jsonl")
    right = [line[model] for line in recorded if line[model]["is_correct"]]
    for answer in right[::70][:10]:
        steps, final = answer["solution"].rsplit("A: ", 1)
        answer["solution"] = f"{steps}A: {int(final.replace(',', '')) + 1}"
    changed = tmp_path / "data"
    changed.mkdir()
    shutil.copy(data / "test.jsonl", changed)
    lines = "".join(json.dumps(line) + "\n" for line in recorded)
    (changed / "model_solutions.jsonl").write_text(lines, encoding="utf-8")
    make_workspace(tmp_path / "workspace", changed)
    records = evaluate(model, workspace=tmp_path / "workspace", data=changed)
    assert count_passed(records) == (len(right) - 10, 1319)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("She has 3 left.\nA: 18", "18"),
        ("#### 65,960", "65960"),
        ("A: 5.0", "5"),
        ("A: $1,234,567.25.", "1234567.25"),
        ("#### -3", "-3"),
        ("A: -$4", "-4"),
        ("A: .5", "0.5"),
        ("A: 5\nI checked again.\nA: 7", "7"),
        ("A: 1/2", None),
        ("A: 3 billion", None),
        ("A: 1,20", None),
        ("A: .", None),
        ("A:", None),
        ("so the answer is 18", None),
        ("", None),
        (None, None),
        ([{"type": "text", "text": "A: 18"}], None),
    ],
)
def test_the_final_number_is_what_the_last_answer_line_consists_of(text: Any, number: str | None):
    assert final_number(text) == (None if number is None else Decimal(number))
