"""What the server owes its controllers, on disk: a promise outlives the process that gave it.

One SQLite file per server, locked while the server lives. A rollout is written before its 202 and
an answer before its first post, so that whoever opens the file next knows what is still owed. One
thread writes; everything that asked in the meantime shares one commit.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import queue
import re
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from osmosis_ai.errors import RunError

JOURNAL_FOLDER = ".journals"
"""Where journals lie below the artifact root."""

SCHEMA_VERSION = 1

KEEP_BODIES_SEC = 900.0
"""How long a delivered answer's bytes are kept, for a controller that asks again elsewhere."""

KEEP_ROLLOUTS_SEC = 24 * 3600.0
"""How long a journal remembers that a rollout was done, so that nobody runs it again."""

GATHER_SEC = 0.001
"""How long a commit waits for more to share it, where several came at once before."""

SETTLE_WITHIN_SEC = 0.05
"""How long a note that nobody waits for may go without a commit that it can share."""

PRUNE_EVERY_SEC = 60.0
"""How often what is old is looked for, among all there is."""

WIPE_AFTER_IDLE_SEC = 1.0
"""Idle time after which erased keys are wiped from the write-ahead log too."""

# What may stand in a header as it is; any other id is named by its digest.
_PLAIN_ID = re.compile(r"[A-Za-z0-9._~-]{1,200}")


class AnswerKind(StrEnum):
    """Which answer of a rollout."""

    COMPLETION = "completion"
    GRADER = "grader"
    RESULT = "result"
    """Both in one, for whoever polls."""


class AnswerState(StrEnum):
    """How far an answer has come."""

    OWED = "owed"
    DELIVERED = "delivered"
    REFUSED = "refused"
    EXPIRED = "expired"
    DROPPED = "dropped"


@dataclass(frozen=True, slots=True)
class Accepted:
    """A rollout the server has promised to run, and where its answers go."""

    rollout_id: str
    digest: str
    completion_url: str | None = None
    grader_url: str | None = None
    callback_key: str | None = field(default=None, repr=False)
    accepted_at: float = field(default_factory=time.time)
    lease_token: str | None = field(default=None, repr=False)
    """What opens the result of a rollout that is polled."""

    def is_elsewhere(self, newer: Accepted) -> bool:
        """Whether a newer request wants an answer at another place than this one."""
        return self.completion_url != newer.completion_url or newer.grader_url not in (
            None,
            self.grader_url,
        )


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer as it is posted: the same bytes and key however often.

    A body that is empty is no longer kept.
    """

    rollout_id: str
    kind: AnswerKind
    body: bytes = field(repr=False)
    state: AnswerState = AnswerState.OWED
    made_at: float = field(default_factory=time.time)


@dataclass(frozen=True, slots=True)
class Entry:
    """A rollout as the journal knows it."""

    accepted: Accepted
    answers: tuple[Answer, ...]

    @property
    def owed(self) -> tuple[Answer, ...]:
        """The answers still to be delivered, in order."""
        return tuple(answer for answer in self.answers if answer.state is AnswerState.OWED)

    @property
    def missing(self) -> tuple[AnswerKind, ...]:
        """The answers that were promised and never made, in order."""
        if self.accepted.completion_url is None:
            promised = [AnswerKind.RESULT]
        elif self.accepted.grader_url is None:
            promised = [AnswerKind.COMPLETION]
        else:
            promised = [AnswerKind.COMPLETION, AnswerKind.GRADER]
        made = {answer.kind for answer in self.answers}
        return tuple(kind for kind in promised if kind not in made)


class Journal:
    """One journal file, held under a lock until it is closed."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self.keep_bodies_sec = KEEP_BODIES_SEC
        """How long a delivered answer's bytes are kept."""
        self._lock = lock
        self._prune_at = 0.0
        self._is_busy = False
        self._writes: deque[_Write | None] = deque()
        self._is_idle = False
        self._wake_up: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._settled: deque[_Settled] = deque()
        self._reader = _connect(path)
        self._thread = threading.Thread(target=self._write_all, name="journal", daemon=True)
        self._thread.start()

    async def accept(self, accepted: Accepted) -> None:
        """Promise a rollout; returns when that is on disk."""
        await self._commit([(_ACCEPT, _accepted_row(accepted))])

    async def answer(self, *answers: Answer) -> None:
        """Write answers down; returns when they are on disk. The first of a kind stays."""
        await self._commit([(_ANSWER, _answer_row(answer)) for answer in answers])

    async def redirect(self, accepted: Accepted, *, again: bool = True) -> None:
        """Send a rollout's answers to newer callback URLs.

        All of them are owed `again`, or only those that were given up.
        """
        where = (accepted.completion_url, accepted.grader_url, accepted.callback_key)
        await self._commit(
            [
                (_REDIRECT, (*where, accepted.rollout_id)),
                (_OWE_AGAIN if again else _OWE_LOST, (accepted.rollout_id,)),
            ]
        )

    async def adopt(self, entries: Iterable[Entry]) -> None:
        """Take over what other journals know; what this one knows already stays.

        Answers come together or not at all: two executions of one rollout must not be mixed.
        """
        statements: list[_Statement] = []
        for entry in entries:
            accepted = entry.accepted
            statements.append((_ADOPT, _accepted_row(accepted)))
            which = _ADOPT_FIRST_ANSWER
            for answer in entry.answers:
                values = (*_answer_row(answer), accepted.rollout_id, accepted.digest)
                statements.append((which, values))
                which = _ADOPT_NEXT_ANSWER
        await self._commit(statements)

    async def owe_again(self, rollout_ids: Iterable[str]) -> None:
        """Owe answers once more that were refused or given up."""
        await self._commit([(_OWE_LOST, (rollout_id,)) for rollout_id in rollout_ids])

    async def drop(self, rollout_ids: Iterable[str]) -> None:
        """Owe nothing more of these rollouts; their answers and keys are erased."""
        await self._commit(
            [
                (statement, (rollout_id,))
                for rollout_id in rollout_ids
                for statement in (_DROP, _FORGET_KEY)
            ]
        )

    def settle(self, rollout_id: str, kind: AnswerKind, state: AnswerState) -> None:
        """Note that an answer needs no further post.

        Not waited for: where the note is lost, one post more is made under the same key.
        """
        self._settled.append((state.value, rollout_id, kind.value))
        if len(self._settled) == 1:
            asyncio.get_running_loop().call_later(SETTLE_WITHIN_SEC, self._write_settled)

    def note(self, answer: Answer) -> None:
        """Write an answer down that could not be before it was posted; not waited for."""
        self._put(_Write([(_ANSWER, _answer_row(answer))]))

    def entries(self) -> list[Entry]:
        """Everything the journal knows, oldest rollout first."""
        return _read_entries(self._reader)

    def unfinished(self) -> list[Entry]:
        """The rollouts with answers that are missing or owed, oldest first."""
        return _read_entries(self._reader, _UNFINISHED)

    def find(self, rollout_id: str) -> Entry | None:
        """What the journal knows of one rollout."""
        entries = _read_entries(self._reader, "= ?", (rollout_id,))
        return entries[0] if entries else None

    async def flush(self) -> None:
        """Return when everything asked for so far is on disk."""
        await self._commit([])

    def close(self, *, remove: bool = False) -> None:
        """Write what is left, wipe what is settled off the disk and give up the lock.

        With `remove` the files go too, before anyone else can take the lock.
        """
        if not self._thread.is_alive():
            return
        self._put(None)
        self._thread.join()
        self._reader.close()
        if remove:
            remove_journal(self.path)
        os.close(self._lock)

    def _write_settled(self) -> None:
        if self._settled:
            self._put(_Write([]))

    async def _commit(self, statements: Sequence[_Statement]) -> None:
        committed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._put(_Write(statements, committed))
        await committed

    def _write_all(self) -> None:
        """The writer thread: take what has come, commit it at once, tell those who wait."""
        with closing(_connect(self.path)) as connection:
            last = False
            while not last:
                batch = self._next_batch(connection)
                if not batch:  # woken for what it had already taken
                    continue
                last = None in batch
                writes = [write for write in batch if write is not None]
                # After the batch is taken: what was settled before a redirect is written before it.
                settled = [self._settled.popleft() for _ in range(len(self._settled))]
                _commit_batch(connection, writes, settled)
                self._prune(connection)
            _prune(connection, self.keep_bodies_sec)
            _wipe(connection)

    def _put(self, write: _Write | None) -> None:
        self._writes.append(write)
        # A thread that is woken costs more than all else about a write: only if it sleeps.
        if self._is_idle:
            self._is_idle = False
            self._wake_up.put(None)

    def _next_batch(self, connection: sqlite3.Connection) -> list[_Write | None]:
        if self._is_busy:
            time.sleep(GATHER_SEC)
        self._is_idle = True
        if not self._writes:
            try:
                self._wake_up.get(timeout=WIPE_AFTER_IDLE_SEC)
            except queue.Empty:
                _wipe(connection)
                self._wake_up.get()
        self._is_idle = False
        batch = [self._writes.popleft() for _ in range(len(self._writes))]
        self._is_busy = len(batch) > 1
        return batch

    def _prune(self, connection: sqlite3.Connection) -> None:
        if time.monotonic() >= self._prune_at:
            _prune(connection, self.keep_bodies_sec)
            self._prune_at = time.monotonic() + PRUNE_EVERY_SEC


J = TypeVar("J", bound=Journal)


def open_journal(path: Path) -> Journal:
    """Open or create a journal and lock it, as `lock_journal` does."""
    return lock_journal(path, Journal)


def lock_journal(path: Path, journal_class: type[J]) -> J:
    """Open or create a journal and lock it.

    Raises RunError where another server holds it, and where it cannot be opened or is no journal.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(lock_path(path), os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as exc:
        raise RunError(f"the journal {path} cannot be opened: {exc}") from exc
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        return journal_class(path, lock)
    except BlockingIOError as exc:
        os.close(lock)
        raise RunError(f"the journal {path} belongs to a server that is running") from exc
    except (OSError, sqlite3.Error) as exc:
        os.close(lock)
        raise RunError(f"the journal {path} cannot be opened: {exc}") from exc
    except RunError:
        os.close(lock)
        raise


def abandoned_journals(folder: Path, *, max_age_sec: float) -> list[Path]:
    """Journals in a folder that were written to within an age; their locks are not tried."""
    oldest = time.time() - max_age_sec
    found = [path for path in folder.glob("*.sqlite3") if _last_write(path) >= oldest]
    return sorted(found)


def remove_journal(path: Path) -> None:
    """Delete a journal's files."""
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    lock_path(path).unlink(missing_ok=True)


def lock_path(path: Path) -> Path:
    """The file whose lock says that a server holds the journal."""
    return path.with_name(path.name + ".lock")


def read_journal(path: Path) -> list[Entry]:
    """Everything in a journal, whoever holds it; raises sqlite3.Error where it is unreadable."""
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
        return _read_entries(connection)


def is_held(path: Path) -> bool:
    """Whether a running server holds a journal."""
    try:
        lock = os.open(lock_path(path), os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def idempotency_key(rollout_id: str, kind: AnswerKind) -> str:
    """The key under which an answer is posted: the same for every post of it."""
    if not _PLAIN_ID.fullmatch(rollout_id):
        rollout_id = hashlib.sha256(rollout_id.encode()).hexdigest()
    return f"{rollout_id}/{kind}"


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

_ACCEPT = "INSERT OR REPLACE INTO rollout VALUES (?, ?, ?, ?, ?, ?, ?)"
_ADOPT = "INSERT OR IGNORE INTO rollout VALUES (?, ?, ?, ?, ?, ?, ?)"
_ADOPT_FIRST_ANSWER = """
INSERT INTO answer SELECT ?1, ?2, ?3, ?4, ?5 FROM rollout WHERE id = ?6 AND digest = ?7
  AND NOT EXISTS (SELECT 1 FROM answer WHERE rollout_id = ?6)
"""
# After a first answer that was taken.
_ADOPT_NEXT_ANSWER = """
INSERT INTO answer SELECT ?1, ?2, ?3, ?4, ?5 FROM rollout WHERE id = ?6 AND digest = ?7
  AND changes() > 0
"""
_ANSWER = "INSERT OR IGNORE INTO answer VALUES (?, ?, ?, ?, ?)"
_SHARED = (_ACCEPT, _ANSWER)
_REDIRECT = """
UPDATE rollout SET completion_url = ?, grader_url = coalesce(?, grader_url), callback_key = ?
  WHERE id = ?
"""
_OWE_AGAIN = """
UPDATE answer SET state = 'owed' WHERE rollout_id = ? AND state <> 'dropped' AND length(body) > 0
"""
_OWE_LOST = """
UPDATE answer SET state = 'owed' WHERE rollout_id = ? AND state IN ('refused', 'expired')
"""
_DROP = """
UPDATE answer SET state = 'dropped', body = x'' WHERE rollout_id = ? AND state <> 'delivered'
"""
_UNFINISHED = """
IN (SELECT id FROM rollout WHERE
  (SELECT count(*) FROM answer WHERE rollout_id = id)
    < 1 + (completion_url IS NOT NULL AND grader_url IS NOT NULL)
  OR EXISTS (SELECT 1 FROM answer WHERE rollout_id = id AND state = 'owed' AND length(body) > 0))
"""
_SETTLE = "UPDATE answer SET state = ? WHERE rollout_id = ? AND kind = ?"
_FORGET_KEY = """
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


_Statement = tuple[str, Sequence[Any]]

_Settled = tuple[str, str, str]
"""The state that an answer has come to, its rollout and its kind."""


@dataclass(slots=True)
class _Write:
    """Statements of one request, and the future that waits for their commit."""

    statements: Sequence[_Statement]
    committed: asyncio.Future[None] | None = None


def _connect(path: Path) -> sqlite3.Connection:
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


def _commit_batch(
    connection: sqlite3.Connection, batch: Sequence[_Write], settled: Sequence[_Settled]
) -> None:
    error: sqlite3.Error | None = None
    try:
        connection.execute("BEGIN IMMEDIATE")
        if settled:
            connection.executemany(_SETTLE, settled)
            connection.executemany(_FORGET_KEY, {(rollout_id,) for _, rollout_id, _ in settled})
        for statement, rows in _grouped(one for write in batch for one in write.statements):
            connection.executemany(statement, rows)
        connection.execute("COMMIT")
    except sqlite3.Error as exc:
        # A full disk, most likely: those who wait hear of it, and the next batch is tried anew.
        error = exc
        with suppress(sqlite3.OperationalError):  # it may have failed before it began
            connection.execute("ROLLBACK")
    _tell([write.committed for write in batch if write.committed is not None], error)


def _grouped(statements: Iterable[_Statement]) -> Iterable[tuple[str, list[Sequence[Any]]]]:
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


def _tell(futures: Sequence[asyncio.Future[None]], error: sqlite3.Error | None) -> None:
    """Resolve futures in the loops they belong to, with one wake-up for each loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for future in futures:
        by_loop.setdefault(future.get_loop(), []).append(future)
    for loop, group in by_loop.items():
        # A loop that is closed has nobody left who waits.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(_resolve, group, error)


def _resolve(futures: Sequence[asyncio.Future[None]], error: sqlite3.Error | None) -> None:
    for future in futures:
        if future.done():
            continue
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(RunError(f"the journal cannot be written: {error}"))


def _prune(connection: sqlite3.Connection, keep_bodies_sec: float) -> None:
    """Forget what is old."""
    now = time.time()
    with suppress(sqlite3.OperationalError):  # a full disk, most likely: the next time does it
        connection.execute(_PRUNE_BODIES, (now - keep_bodies_sec,))
        connection.execute(_PRUNE_ROLLOUTS, (now - KEEP_ROLLOUTS_SEC,))
        connection.execute(_PRUNE_ANSWERS, (now - keep_bodies_sec,))


def _wipe(connection: sqlite3.Connection) -> None:
    """Empty the write-ahead log of what was erased."""
    with suppress(sqlite3.OperationalError):  # a full disk, or a reader: the next wipe does it
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def _accepted_row(accepted: Accepted) -> tuple[Any, ...]:
    return (
        accepted.rollout_id,
        accepted.digest,
        accepted.completion_url,
        accepted.grader_url,
        accepted.callback_key,
        accepted.accepted_at,
        accepted.lease_token,
    )


def _answer_row(answer: Answer) -> tuple[Any, ...]:
    # Plain strings: sqlite3 searches for an adapter of everything else.
    kind, state = answer.kind.value, answer.state.value
    return (answer.rollout_id, kind, state, answer.made_at, answer.body)


def _read_entries(
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


def _last_write(path: Path) -> float:
    log = path.with_name(path.name + "-wal")
    written = 0.0
    for one in (path, log):
        with suppress(FileNotFoundError):  # another server may be taking it over
            written = max(written, one.stat().st_mtime)
    return written
