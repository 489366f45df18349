"""The outbox: answers on disk that did not arrive, looked at and decided on by a person."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from osmosis_ai.errors import RunError
from osmosis_ai.rollout.http import Target
from osmosis_ai.rollout.server.entry import (
    Answer,
    AnswerKind,
    AnswerState,
    Entry,
)
from osmosis_ai.rollout.server.journal import (
    Journal,
    is_held,
    open_journal,
    read_journal,
)

WAITING = (AnswerState.OWED, AnswerState.REFUSED, AnswerState.EXPIRED)
"""States of an answer that has not arrived."""

LOST = (AnswerState.REFUSED, AnswerState.EXPIRED)
"""States of an answer that nobody posts any more."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """An answer that has not arrived, and whose it is."""

    journal: Path
    is_held: bool
    """Whether the server that owes it is running."""
    entry: Entry = field(repr=False)
    answer: Answer

    @property
    def place(self) -> str:
        """Where it goes, without what may be secret in it."""
        accepted = self.entry.accepted
        is_grade = self.answer.kind is AnswerKind.GRADER
        url = accepted.grader_url if is_grade else accepted.completion_url
        return Target(url or "").place if url else "its poll"


def list_waiting(folder: Path) -> Iterator[Waiting]:
    """What has not arrived of all the journals in a folder, oldest first in each.

    Servers that run are not disturbed. RunError where a journal cannot be read.
    """
    for path in sorted(folder.glob("*.sqlite3")):
        held = is_held(path)
        for entry in _read(path):
            for answer in entry.answers:
                if answer.state in WAITING and answer.kind is not AnswerKind.RESULT:
                    yield Waiting(path, held, entry, answer)


async def retry(folder: Path, *, only: Collection[str] | None = None) -> list[str]:
    """Owe again what was refused or given up, for the next server to post; returns whose it is.

    `only` names rollouts; None means all. Raises RunError where a server that runs owes some of it.
    """
    return await _decide(folder, only, states=LOST, drop=False)


async def drop(folder: Path, *, only: Collection[str] | None = None) -> list[str]:
    """Erase what has not arrived, and owe it no more; returns whose it was.

    As `retry`, for answers that are owed too.
    """
    return await _decide(folder, only, states=WAITING, drop=True)


async def _decide(
    folder: Path, only: Collection[str] | None, *, states: Collection[AnswerState], drop: bool
) -> list[str]:
    by_journal: dict[Path, dict[str, None]] = {}
    for one in list_waiting(folder):
        rollout_id = one.answer.rollout_id
        if one.answer.state in states and (only is None or rollout_id in only):
            by_journal.setdefault(one.journal, {})[rollout_id] = None
    for path, rollout_ids in by_journal.items():
        with closing(_open(path)) as journal:
            await (journal.drop(rollout_ids) if drop else journal.owe_again(rollout_ids))
    return [rollout_id for rollout_ids in by_journal.values() for rollout_id in rollout_ids]


def _open(path: Path) -> Journal:
    if is_held(path):
        raise RunError(
            f"the journal {path.name} belongs to a server that is running: stop the server first, "
            "or ask it for the same rollout again, and it posts the answers anew"
        )
    return open_journal(path)


def _read(path: Path) -> list[Entry]:
    try:
        return read_journal(path)
    except sqlite3.Error as exc:
        raise RunError(f"the journal {path} cannot be read: {exc}") from exc
