"""The published schemas: current, and true of real files."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from osmosis_ai.eval.config import load_config
from osmosis_ai.eval.evaluation import evaluate
from osmosis_ai.eval.schema import make_schemas, to_text
from tests.eval.demo import make_demo

ROOT = Path(__file__).parents[2]
SCHEMAS = ROOT / "docs" / "schemas"
CONFIGS = sorted((ROOT / "examples").glob("**/configs/eval/*.toml"))


def validator(name: str) -> Draft202012Validator:
    schema: dict[str, Any] = json.loads((SCHEMAS / f"{name}.schema.json").read_text("utf-8"))
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def test_the_published_schemas_are_current(tmp_path: Path) -> None:
    """Written anew by `python -m osmosis_ai.eval.schema docs/schemas`."""
    command = [sys.executable, "-m", "osmosis_ai.eval.schema", str(tmp_path / "made")]
    subprocess.run(command, check=True, timeout=60)
    made = {file.name: file.read_text("utf-8") for file in (tmp_path / "made").iterdir()}
    assert made == {name: to_text(schema) for name, schema in make_schemas().items()}
    assert made == {file.name: file.read_text("utf-8") for file in SCHEMAS.iterdir()}


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_the_examples_are_valid(config: Path) -> None:
    validator("eval").validate(tomllib.loads(config.read_text("utf-8")))


def test_the_examples_are_found() -> None:
    assert len(CONFIGS) >= 2


@pytest.mark.parametrize(
    "change",
    [{"evaluation": {"n": 0}}, {"evaluation": {"tries": 1}}, {"model": {"base_url": "x"}}],
)
def test_a_faulty_file_is_not(change: dict[str, Any]) -> None:
    document = tomllib.loads(CONFIGS[0].read_text("utf-8"))
    assert not validator("eval").is_valid(document | change)


async def test_the_files_of_a_run_are_valid(tmp_path: Path) -> None:
    await evaluate(load_config(make_demo(tmp_path, "one", "broken", "judge", "unreachable")))
    folder = tmp_path / ".osmosis" / "evals" / "demo"
    records = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    assert len(records) == 4
    for record in records:
        validator("record").validate(record)
        assert set(record) == set(make_schemas()["record.schema.json"]["properties"])
    assert not validator("record").is_valid(records[0] | {"outcome": "fine"})
    validator("run").validate(json.loads((folder / "run.json").read_text()))
