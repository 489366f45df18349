"""JSON Schemas of files that people and programs share: `python -m osmosis_ai.eval.schema DIR`."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from osmosis_ai.eval.config import EvalFile
from osmosis_ai.eval.record import Record
from osmosis_ai.eval.run_folder import RunDocument

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def make_schemas() -> Mapping[str, dict[str, Any]]:
    """Each schema by the name of its file."""
    return {
        "eval.schema.json": _schema(EvalFile, "The TOML file of an evaluation"),
        "record.schema.json": _schema(Record, "A line of records.jsonl"),
        "run.schema.json": _schema(RunDocument, "The run.json of a run folder"),
    }


def write_schemas(folder: Path) -> None:
    """Write each of them to its file."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, schema in make_schemas().items():
        (folder / name).write_text(to_text(schema), encoding="utf-8")


def to_text(schema: Mapping[str, Any]) -> str:
    """A schema as its file holds it."""
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def _schema(kind: Any, title: str) -> dict[str, Any]:
    schema = TypeAdapter(kind).json_schema(by_alias=True)
    return {"$schema": DIALECT} | schema | {"title": title}


if __name__ == "__main__":
    write_schemas(Path(sys.argv[1]))
