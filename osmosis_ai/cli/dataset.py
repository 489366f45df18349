"""`osmosis dataset validate` and `preview`: a data set before anything runs on it."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from osmosis_ai.cli.mode import Mode
from osmosis_ai.cli.output import Column, Fact, Section, print_detail, print_list
from osmosis_ai.cli.results import short_path
from osmosis_ai.errors import ConfigError
from osmosis_ai.eval.config import find_workspace
from osmosis_ai.eval.dataset import find_dataset, load_dataset, load_rows
from osmosis_ai.eval.row import Row
from osmosis_ai.eval.selection import select_rows
from osmosis_ai.eval.validation import validate_dataset
from osmosis_ai.rollout.safe_json import dump_json, safe_text

PREVIEW_ROWS = 5

CELL_CHARS = 300
"""What is shown of a cell; `--json` shows all of it."""

File = Annotated[
    str, typer.Argument(metavar="FILE", help="A data set, as `experiment.dataset` names it.")
]


def validate(
    ctx: typer.Context,
    file: File,
    local: Annotated[
        bool, typer.Option("--local", help="Leave out the rules that only hosted runs have.")
    ] = False,
) -> None:
    """Check a data set against every rule of the format."""
    mode: Mode = ctx.obj
    path = _find(file)
    if local:
        rows = load_dataset(path).total_rows
        title = f"{short_path(path)} can be used on this machine"
        print_detail({"path": str(path), "rows": rows}, [Section(title, [_rows(rows)])], mode=mode)
        return
    found = validate_dataset(path)
    data = {
        "path": str(found.path),
        "rows": found.rows,
        "columns": list(found.columns),
        "mode": found.mode,
    }
    facts = [
        _rows(found.rows),
        Fact("Columns", ", ".join(found.columns)),
        Fact("Mode", found.mode),
    ]
    print_detail(data, [Section(f"{found.path} can be used", facts)], mode=mode)


def _rows(count: int) -> Fact:
    return Fact("Rows", f"{count:,}")


def preview(
    ctx: typer.Context,
    file: File,
    rows: Annotated[int, typer.Option(min=1, help="Show so many.")] = PREVIEW_ROWS,
) -> None:
    """Show the first rows as rollouts get them."""
    mode: Mode = ctx.obj
    dataset = load_dataset(_find(file))
    selection = select_rows(None, limit=rows, total=dataset.total_rows)
    shown = list(islice(load_rows(dataset, selection), rows))
    print_list(
        [_data(row) for row in shown],
        [_cells(row) for row in shown],
        COLUMNS,
        total=dataset.total_rows,
        empty="",
        mode=mode,
        more="--rows N shows more",
    )


COLUMNS = (
    Column("row", right=True),
    Column("prompt", folds=True),
    Column("label", folds=True),
    Column("metadata", folds=True, least_width=70),
)


def _find(name: str) -> Path:
    """From here where there is such a file, else from the workspace."""
    here = Path(name)
    if here.exists():
        return here
    try:
        return Path(short_path(find_dataset(name, workspace=find_workspace(Path()))))
    except ConfigError:  # no workspace: the name can only be meant as a path
        return here


def _data(row: Row) -> dict[str, Any]:
    return {
        "row": row.index,
        "prompt": row.prompt,
        "label": row.label,
        "metadata": row.metadata,
        "item": row.key,
    }


def _cells(row: Row) -> list[str]:
    prompt = " | ".join(f"{message['role']}: {message['content']}" for message in row.prompt)
    metadata = "" if row.metadata is None else dump_json(row.metadata).data.decode()
    return [str(row.index), *map(_shortened, (prompt, row.label or "", metadata))]


def _shortened(text: str) -> str:
    text = safe_text(text)
    return text if len(text) <= CELL_CHARS else f"{text[:CELL_CHARS]}... ({len(text):,} characters)"
