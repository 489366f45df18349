"""The tables of a journal, and every statement that reads or writes them."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from osmosis_ai.errors import RunError
from osmosis_ai.rollout.server.entry import Accepted, Answer, AnswerKind, AnswerState, Entry

SCHEMA_VERSION = 1

KEEP_ROLLOUTS_SEC = 24 * 3600.0
"""How long a journal remembers that a rollout was done, so that nobody runs it again."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS rollout (
  id TEXT PRIMARY KEY, digest TEXT NOT NULL, completion_url TEXT, grader_url TEXT,
  callback_key TEXT, accepted_at REAL NOT NULL, lease_token TEXT
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS answer (
  rollout_id TEXT NOT NULL, kind TEXT NOT NULL, state TEXT NOT NULL, made_at REAL NOT NULL,
  body BLOB NOT NULL, PRIMARY KEY (rollout_id, kind)
);
"""

ACCEPT = "INSERT OR REPLACE INTO rollout VALUES (?, ?, ?, ?, ?, ?, ?)"
ADOPT = "INSERT OR IGNORE INTO rollout VALUES (?, ?, ?, ?, ?, ?, ?)"
ADOPT_FIRST_ANSWER = """
INSERT INTO answer SELECT ?1, ?2, ?3, ?4, ?5 FROM rollout WHERE id = ?6 AND digest = ?7
  AND NOT EXISTS (SELECT 1 FROM answer WHERE rollout_id = ?6)
"""
# After a first answer that was taken.
ADOPT_NEXT_ANSWER = """
INSERT INTO answer SELECT ?1, ?2, ?3, ?4, ?5 FROM rollout WHERE id = ?6 AND digest = ?7
  AND changes() > 0
"""
ANSWER = "INSERT OR IGNORE INTO answer VALUES (?, ?, ?, ?, ?)"
_SHARED = (ACCEPT, ANSWER)
REDIRECT = """
UPDATE rollout SET completion_url = ?, grader_url = coalesce(?, grader_url), callback_key = ?
  WHERE id = ?
"""
OWE_AGAIN = """
UPDATE answer SET state = 'owed' WHERE rollout_id = ?1 AND length(body) > 0 AND (
  state IN ('refused', 'expired') OR state = 'delivered' AND EXISTS (
    SELECT 1 FROM rollout WHERE id = ?1 AND (completion_url <> ?2 OR ?3 <> ifnull(grader_url, ''))
  )
)
"""
OWE_LOST = """
UPDATE answer SET state = 'owed' WHERE rollout_id = ? AND state IN ('refused', 'expired')
"""
DROP = """
UPDATE answer SET state = 'dropped', body = x'' WHERE rollout_id = ? AND state <> 'delivered'
"""
UNFINISHED = """
IN (SELECT id FROM rollout WHERE
  (SELECT count(*) FROM answer WHERE rollout_id = id)
    < 1 + (completion_url IS NOT NULL AND grader_url IS NOT NULL)
  OR EXISTS (SELECT 1 FROM answer WHERE rollout_id = id AND state = 'owed' AND length(body) > 0))
"""
SETTLE = "UPDATE answer SET state = ? WHERE rollout_id = ? AND kind = ?"
FORGET_KEY = """
UPDATE rollout SET callback_key = NULL WHERE id = ?
  AND (SELECT count(*) FROM answer WHERE rollout_id = id AND state IN ('delivered', 'dropped'))
    >= 1 + (grader_url IS NOT NULL)
"""
_PRUNE_BODIES = """
UPDATE answer SET body = x''
  WHERE (state IN ('delivered', 'dropped') OR kind = 'result') AND made_at < ? AND length(body) > 0
"""
# A rollout without answers is running, however old it is.
_PRUNE_ROLLOUTS = """
DELETE FROM rollout WHERE accepted_at < ?
  AND EXISTS (SELECT 1 FROM answer WHERE rollout_id = id)
  AND NOT EXISTS (
    SELECT 1 FROM answer WHERE rollout_id = id AND state = 'owed' AND kind <> 'result'
  )
"""
_PRUNE_ANSWERS = """
DELETE FROM answer WHERE made_at < ? AND NOT EXISTS (SELECT 1 FROM rollout WHERE id = rollout_id)
"""


Statement = tuple[str, Sequence[Any]]

Settled = tuple[str, str, str]
"""The state that an answer has come to, its rollout and its kind."""


@dataclass(slots=True)
class Write:
    """Statements of one request, and the future that waits for their commit."""

    statements: Sequence[Statement]
    committed: asyncio.Future[None] | None = None


def connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA secure_delete = ON")
        _prepare(connection, path)
    except BaseException:  # whatever the file is: a connection left open would hold it
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Make the tables of a new journal; RunError for one that is laid out otherwise."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version == SCHEMA_VERSION:
        return
    if version != 0:
        raise RunError(
            f"the journal {path} was written by another version of this package; let that one "
            "deliver what it owes, or move the file away"
        )
    connection.executescript(_SCHEMA)
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def commit_batch(
    connection: sqlite3.Connection, batch: Sequence[Write], settled: Sequence[Settled]
) -> None:
    error: Exception | None = None
    try:
        connection.execute("BEGIN IMMEDIATE")
        if settled:
            connection.executemany(SETTLE, settled)
            connection.executemany(FORGET_KEY, {(rollout_id,) for _, rollout_id, _ in settled})
        for statement, rows in _grouped(one for write in batch for one in write.statements):
            connection.executemany(statement, rows)
        connection.execute("COMMIT")
    except Exception as exc:
        # A full disk's, most likely, or a row's that no table takes: those who wait hear of it, and
        # the next batch is tried anew. The thread must live, or everybody would wait for ever.
        error = exc
        with suppress(sqlite3.OperationalError):  # it may have failed before it began
            connection.execute("ROLLBACK")
    _tell([write.committed for write in batch if write.committed is not None], error)


def _grouped(statements: Iterable[Statement]) -> Iterable[tuple[str, list[Sequence[Any]]]]:
    """Statements in an order that comes to the same, with the rows that share one.

    A rollout is accepted before it is answered; any other statement stays where it is.
    """
    groups: list[tuple[str, list[Sequence[Any]]]] = []
    shared: dict[str, list[Sequence[Any]]] = {}
    for statement, row in statements:
        if statement not in _SHARED:
            shared.clear()
            groups.append((statement, [row]))
            continue
        if not shared:
            for each in _SHARED:
                shared[each] = []
                groups.append((each, shared[each]))
        shared[statement].append(row)
    return groups


def _tell(futures: Sequence[asyncio.Future[None]], error: Exception | None) -> None:
    """Resolve futures in the loops they belong to, with one wake-up for each loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for future in futures:
        by_loop.setdefault(future.get_loop(), []).append(future)
    for loop, group in by_loop.items():
        # A loop that is closed has nobody left who waits.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(_resolve, group, error)


def _resolve(futures: Sequence[asyncio.Future[None]], error: Exception | None) -> None:
    for future in futures:
        if future.done():
            continue
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(RunError(f"the journal cannot be written: {error}"))


def prune(connection: sqlite3.Connection, keep_bodies_sec: float) -> None:
    """Forget what is old."""
    now = time.time()
    with suppress(sqlite3.OperationalError):  # a full disk, most likely: the next time does it
        connection.execute(_PRUNE_BODIES, (now - keep_bodies_sec,))
        connection.execute(_PRUNE_ROLLOUTS, (now - KEEP_ROLLOUTS_SEC,))
        connection.execute(_PRUNE_ANSWERS, (now - keep_bodies_sec,))


def wipe(connection: sqlite3.Connection) -> None:
    """Empty the write-ahead log of what was erased."""
    with suppress(sqlite3.OperationalError):  # a full disk, or a reader: the next wipe does it
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def accepted_row(accepted: Accepted) -> tuple[Any, ...]:
    return (
        accepted.rollout_id,
        accepted.digest,
        accepted.completion_url,
        accepted.grader_url,
        accepted.callback_key,
        accepted.accepted_at,
        accepted.lease_token,
    )


def answer_row(answer: Answer) -> tuple[Any, ...]:
    # Plain strings: sqlite3 searches for an adapter of everything else.
    kind, state = answer.kind.value, answer.state.value
    return (answer.rollout_id, kind, state, answer.made_at, answer.body)


def read_entries(
    connection: sqlite3.Connection, which: str = "IS NOT NULL", values: Sequence[str] = ()
) -> list[Entry]:
    """The entries whose id is `which`, a condition in SQL."""
    accepted = [
        Accepted(*row)
        for row in connection.execute(
            f"SELECT * FROM rollout WHERE id {which} ORDER BY accepted_at, id", values
        )
    ]
    answers: dict[str, list[Answer]] = {}
    if not accepted:
        return []
    # By kind: a completion goes before its grader's answer.
    for owner, kind, state, made_at, body in connection.execute(
        f"SELECT * FROM answer WHERE rollout_id {which} ORDER BY kind", values
    ):
        answer = Answer(owner, AnswerKind(kind), body, AnswerState(state), made_at)
        answers.setdefault(owner, []).append(answer)
    return [Entry(one, tuple(answers.get(one.rollout_id, ()))) for one in accepted]
