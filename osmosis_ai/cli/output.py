"""What a command answers, in the mode that was asked for: envelopes, plain lines, or tables."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

import orjson
from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from osmosis_ai.cli.mode import Mode
from osmosis_ai.rollout.safe_json import make_safe

WIDE = 160
"""Columns where the output is no terminal and nobody says: nothing has to be folded."""


NOTE_CHARS = 40
"""Where fewer are left beside the values, notes have no column of their own."""


@dataclass(frozen=True, slots=True)
class Fact:
    """A value, what it is, and what has to be said with it: its denominator, mostly."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """Facts that belong together."""

    title: str
    facts: Sequence[Fact]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a list."""

    title: str
    right: bool = False
    """Aligned to the right, as numbers are."""
    folds: bool = False
    """Broken over lines where there is no room; the others never are."""
    least_width: int = 0
    """Left out where the terminal has fewer columns."""


def print_detail(data: Mapping[str, Any], sections: Sequence[Section], *, mode: Mode) -> None:
    """Answer with one thing."""
    if mode is Mode.JSON:
        _print_json({"data": data})
    else:
        print_sections(sections, mode=mode)


def print_operation(
    operation: str,
    *,
    status: str,
    resource: Mapping[str, Any],
    message: str,
    next_steps: Sequence[Mapping[str, str]],
    sections: Sequence[Section],
    mode: Mode,
) -> None:
    """Answer with what was done, what came of it, and what to do next."""
    if mode is Mode.JSON:
        _print_json(
            {
                "status": status,
                "operation": operation,
                "resource": resource,
                "message": message,
                "next_steps_structured": list(next_steps),
            }
        )
        return
    print_sections(sections, mode=mode)
    steps = [f"{step['description']}: {step['command']}" for step in next_steps]
    if mode is Mode.PLAIN:
        print("\n".join([message, *steps]))
        return
    console().print(Text(f"\n{message}"))
    for step in steps:  # a command is left whole, to be copied
        console().print(Text(step), soft_wrap=True)


def print_list(
    items: Sequence[Mapping[str, Any]],
    rows: Sequence[Sequence[str]],
    columns: Sequence[Column],
    *,
    total: int,
    empty: str,
    mode: Mode,
    more: str = "--all shows all",
) -> None:
    """Answer with the first of `total` things; `more` says how to see the others."""
    has_more = len(items) < total
    if mode is Mode.JSON:
        after = len(items) if has_more else None
        page = {"total_count": total, "has_more": has_more, "next_offset": after}
        _print_json({"items": list(items), **page})
    elif mode is Mode.PLAIN:
        for row in rows:
            print("\t".join(" ".join(cell.split()) for cell in row))
    elif not rows:
        console().print(Text(empty), soft_wrap=True)
    else:
        _print_table(rows, columns)
        if has_more:
            console().print(Text(f"{len(items)} of {total}; {more}", style="dim"))


def print_sections(
    sections: Sequence[Section],
    *,
    mode: Mode,
    file: IO[str] | None = None,
    with_titles: bool = False,
) -> None:
    """Facts for a person, or a line for each; plain lines have no titles unless asked for."""
    if mode is not Mode.PLAIN:
        out = console(file)
        for section in sections:
            out.print(_block(section, width=out.width))
        return
    for section in sections:
        if with_titles:
            print(section.title, file=file)
        for fact in section.facts:
            note = f" ({fact.note})" if fact.note else ""
            print(f"{fact.label}: {fact.value}{note}", file=file)


def console(file: IO[str] | None = None) -> Console:
    """A console on a stream, as wide as its terminal; on stdout unless said."""
    file = file or sys.stdout
    wide = None if file.isatty() or "COLUMNS" in os.environ else WIDE
    return Console(file=file, width=wide, highlight=False)


def _print_json(content: Mapping[str, Any]) -> None:
    document = make_safe({"schema_version": 1, **content}).value
    print(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode())


def _block(section: Section, *, width: int) -> Group:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    has_notes = _has_notes(section, width)
    if has_notes:
        grid.add_column(style="dim", overflow="fold")
    for fact in section.facts:
        value, note = Text(fact.value), Text(fact.note, style="dim")
        cells = [value, note] if has_notes else [value.append("  ").append_text(note)]
        grid.add_row(Text(fact.label), *cells)
    return Group(Text(section.title, style="bold"), Padding(grid, (0, 0, 0, 2), expand=False))


def _has_notes(section: Section, width: int) -> bool:
    """Whether a column of notes leaves each value whole: a path that is folded cannot be copied."""
    values = max((len(fact.label) + len(fact.value) for fact in section.facts), default=0)
    return any(fact.note for fact in section.facts) and values + NOTE_CHARS <= width


def _print_table(rows: Sequence[Sequence[str]], columns: Sequence[Column]) -> None:
    out = console()
    shown = [index for index, column in enumerate(columns) if column.least_width <= out.width]
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    for index in shown:
        column = columns[index]
        table.add_column(
            column.title,
            justify="right" if column.right else "left",
            overflow="fold",
            no_wrap=not column.folds,
        )
    for row in rows:
        table.add_row(*(Text(row[index]) for index in shown))
    out.print(table)
