"""`osmosis rollout outbox`: answers of rollouts that did not reach their controllers."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from osmosis_ai.cli.mode import Misuse, Mode
from osmosis_ai.cli.output import Column, print_list, print_operation
from osmosis_ai.rollout.artifacts import artifact_root
from osmosis_ai.rollout.server import outbox
from osmosis_ai.rollout.server.journal import JOURNAL_FOLDER

PAGE = 50

COLUMNS = (
    Column("rollout"),
    Column("answer"),
    Column("state"),
    Column("since", least_width=80),
    Column("server", least_width=100),
    Column("to", folds=True),
)

Folder = Annotated[
    Path | None,
    typer.Option(
        help="Where the journals are; else .journals below the artifact root.", show_default=False
    ),
]
Ids = Annotated[list[str] | None, typer.Argument(metavar="[ROLLOUT]...", help="Ids of rollouts.")]
All = Annotated[bool, typer.Option("--all", help="Every rollout in the outbox.")]


def list_answers(
    ctx: typer.Context,
    folder: Folder = None,
    limit: Annotated[int, typer.Option(min=1, help="Show so many.")] = PAGE,
    everything: Annotated[bool, typer.Option("--all", help="Show every answer.")] = False,
) -> None:
    """List the answers that have not arrived; servers that run are not disturbed."""
    mode: Mode = ctx.obj
    waiting = list(outbox.list_waiting(_folder(folder)))
    shown = waiting if everything else waiting[:limit]
    print_list(
        [_data(one) for one in shown],
        [_row(one) for one in shown],
        COLUMNS,
        total=len(waiting),
        empty="Every answer has arrived.",
        mode=mode,
    )


def retry(
    ctx: typer.Context, ids: Ids = None, everything: All = False, folder: Folder = None
) -> None:
    """Have the next server post again what was refused or given up."""
    only = _chosen(ids, everything)
    found = asyncio.run(outbox.retry(_folder(folder), only=only))
    _tell(ctx.obj, "retry", found, "owed again: the next server with this folder posts them")


def drop(
    ctx: typer.Context, ids: Ids = None, everything: All = False, folder: Folder = None
) -> None:
    """Erase answers for good: their controllers never get them."""
    only = _chosen(ids, everything)
    found = asyncio.run(outbox.drop(_folder(folder), only=only))
    _tell(ctx.obj, "drop", found, "erased")


def _folder(folder: Path | None) -> Path:
    return folder if folder is not None else Path(artifact_root(), JOURNAL_FOLDER)


def _chosen(ids: list[str] | None, everything: bool) -> list[str] | None:
    if bool(ids) == everything:
        raise Misuse("name rollouts, or say --all")
    return ids or None


def _tell(mode: Mode, word: str, rollout_ids: list[str], done: str) -> None:
    whose = "1 rollout" if len(rollout_ids) == 1 else f"{len(rollout_ids):,} rollouts"
    print_operation(
        f"rollout.outbox.{word}",
        status="success" if rollout_ids else "noop",
        resource={"rollout_ids": rollout_ids},
        message=f"The answers of {whose} are {done}."
        if rollout_ids
        else "There is no such answer.",
        next_steps=[],
        sections=[],
        mode=mode,
    )


def _since(one: outbox.Waiting) -> datetime:
    return datetime.fromtimestamp(one.answer.made_at, UTC)


def _data(one: outbox.Waiting) -> dict[str, Any]:
    return {
        "rollout_id": one.answer.rollout_id,
        "answer": one.answer.kind,
        "state": one.answer.state,
        "since": _since(one).isoformat(timespec="seconds"),
        "to": one.place,
        "bytes": len(one.answer.body),
        "server_is_running": one.is_held,
        "journal": str(one.journal),
    }


def _row(one: outbox.Waiting) -> list[str]:
    return [
        one.answer.rollout_id,
        one.answer.kind,
        one.answer.state,
        f"{_since(one):%Y-%m-%d %H:%M}",
        "running" if one.is_held else "ended",
        one.place,
    ]
