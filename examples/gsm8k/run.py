"""Evaluate the four replayed models on GSM8K and print `NAME PASSED/TOTAL` for each of them.

`python run.py [WORKSPACE]`: the workspace is made in that directory and kept, else in a temporary
one. The data is read from the directory that GSM8K_DIR names, or from the shared one beside this
repository; none of it is copied into the repository.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

MODELS = ("6b_finetuning", "6b_verification", "175b_finetuning", "175b_verification")
SYSTEM_PROMPT = "Solve the problem step by step. End with a line `A: <the final number>`."
EXAMPLE = Path(__file__).resolve().parent
DEFAULT_DATA = EXAMPLE.parents[1] / "../shared/data/gsm8k"


def main() -> None:
    """Evaluate and print, a line as soon as its model is done."""
    data = find_data()
    if data is None:
        sys.exit(f"no GSM8K data in {DEFAULT_DATA.resolve()}: set GSM8K_DIR, see README.md")
    with tempfile.TemporaryDirectory() as temporary:
        workspace = Path(sys.argv[1] if len(sys.argv) > 1 else temporary)
        make_workspace(workspace, data)
        for model in MODELS:
            passed, total = count_passed(evaluate(model, workspace=workspace, data=data))
            print(f"{model} {passed}/{total}", flush=True)


def find_data() -> Path | None:
    """The directory with the test file and the recorded solutions, or None."""
    data = Path(os.environ.get("GSM8K_DIR") or DEFAULT_DATA).resolve()
    return data if (data / "test.jsonl").is_file() else None


def make_workspace(workspace: Path, data: Path) -> None:
    """Put the rollout, the rows and one config for each model into a directory."""
    skip = shutil.ignore_patterns("__pycache__")
    shutil.copytree(EXAMPLE / "rollouts", workspace / "rollouts", ignore=skip, dirs_exist_ok=True)
    (workspace / "data").mkdir(exist_ok=True)
    with (workspace / "data/gsm8k.jsonl").open("w", encoding="utf-8") as rows:
        rows.writelines(json.dumps(row) + "\n" for row in read_rows(data))
    config = (EXAMPLE / "configs/eval/gsm8k.toml").read_text(encoding="utf-8")
    configs = workspace / "configs/eval"
    configs.mkdir(parents=True, exist_ok=True)
    for model in MODELS:
        text = config.replace(f"model_{MODELS[0]}", f"model_{model}")
        (configs / f"{model}.toml").write_text(text, encoding="utf-8")


def read_rows(data: Path) -> Iterator[dict[str, str]]:
    """The test set's problems as rows; the whole reference solution is the label."""
    with (data / "test.jsonl").open(encoding="utf-8") as problems:
        for problem in map(json.loads, problems):
            yield {
                "system_prompt": SYSTEM_PROMPT,
                "user_prompt": problem["question"],
                "ground_truth": problem["answer"],
            }


def evaluate(model: str, *flags: str, workspace: Path, data: Path) -> Path:
    """Run one model's evaluation with the command line, and return its journal.

    `flags` are those of `osmosis eval run`, such as `--driver process`.
    """
    osmosis = Path(sys.executable).with_name("osmosis")
    command = [str(osmosis), "eval", "run", str(workspace / f"configs/eval/{model}.toml"), *flags]
    environment = os.environ | {"GSM8K_DIR": str(data)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"evaluating {model} failed:\n{done.stdout}{done.stderr}")
    return workspace / f".osmosis/evals/{model}/records.jsonl"


def count_passed(records: Path) -> tuple[int, int]:
    """How many rows have a reward of 1.0, and how many there are; a row's last try counts."""
    with records.open(encoding="utf-8") as lines:
        rewards = {record["row"]: record["reward"] for record in map(json.loads, lines)}
    return sum(reward == 1.0 for reward in rewards.values()), len(rewards)


if __name__ == "__main__":
    main()
