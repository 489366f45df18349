"""The GSM8K example counts exactly what the recordings say, on all of their rows."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from examples.gsm8k.rollouts.gsm8k.main import final_number
from examples.gsm8k.run import MODELS, count_passed, evaluate, find_data, make_workspace

RUN = Path(__file__).parents[2] / "examples/gsm8k/run.py"


@pytest.fixture
def data() -> Path:
    """The data set and the recordings; .ci/run does not accept that they are absent."""
    found = find_data()
    if found is None:
        pytest.skip("there is no GSM8K data: set GSM8K_DIR, see examples/gsm8k/README.md")
    return found


def read_lines(path: Path) -> list[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def test_every_model_passes_as_often_as_it_was_marked_correct(data: Path, tmp_path: Path):
    done = subprocess.run(
        [sys.executable, RUN, tmp_path], capture_output=True, text=True, check=False, timeout=280
    )
    assert done.returncode == 0, done.stderr
    recorded = read_lines(data / "model_solutions.jsonl")
    marks = {model: [line[model]["is_correct"] for line in recorded] for model in MODELS}
    assert done.stdout.splitlines() == [f"{name} {sum(m)}/1319" for name, m in marks.items()]
    for model in MODELS:
        records = read_lines(tmp_path / f".osmosis/evals/{model}/records.jsonl")
        rewards = {record["row"]: record["reward"] for record in records}
        assert [rewards[row] for row in range(1319)] == [float(mark) for mark in marks[model]]


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
