"""JSON files that are there as a whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import orjson

from osmosis_ai.rollout.safe_json import make_safe


def write_json(path: Path, value: Any) -> None:
    """Replace a file by a JSON document; it is on disk when this returns."""
    document = make_safe(value).value
    data = orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    temporary = path.with_name(f".{path.name}.tmp")
    with open(temporary, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
