"""What the server owes its controllers, on disk: a promise outlives the process that gave it.

One SQLite file per server, locked while the server lives. A rollout is written before its 202 and
an answer before its first post, so that whoever opens the file next knows what is still owed. One
thread writes; everything that asked in the meantime shares one commit.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import queue
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import TypeVar

from osmosis_ai.errors import RunError
from osmosis_ai.rollout.server import table
from osmosis_ai.rollout.server.entry import Accepted, Answer, AnswerKind, AnswerState, Entry
from osmosis_ai.rollout.server.table import Settled, Statement, Write

JOURNAL_FOLDER = ".journals"
"""Where journals lie below the artifact root."""

KEEP_BODIES_SEC = 900.0
"""How long a delivered answer's bytes are kept, for a controller that asks again elsewhere."""

GATHER_SEC = 0.001
"""How long a commit waits for more to share it, where several came at once before."""

SETTLE_WITHIN_SEC = 0.05
"""How long a note that nobody waits for may go without a commit that it can share."""

PRUNE_EVERY_SEC = 60.0
"""How often what is old is looked for, among all there is."""

WIPE_AFTER_IDLE_SEC = 1.0
"""Idle time after which erased keys are wiped from the write-ahead log too."""


class Journal:
    """One journal file, held under a lock until it is closed."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self.keep_bodies_sec = KEEP_BODIES_SEC
        """How long a delivered answer's bytes are kept."""
        self._lock = lock
        self._prune_at = 0.0
        self._is_busy = False
        self._writes: deque[Write | None] = deque()
        self._is_idle = False
        self._wake_up: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._settled: deque[Settled] = deque()
        self._reader = table.connect(path)
        self._thread = threading.Thread(target=self._write_all, name="journal", daemon=True)
        self._thread.start()

    async def accept(self, accepted: Accepted) -> None:
        """Promise a rollout; returns when that is on disk."""
        await self._commit([(table.ACCEPT, table.accepted_row(accepted))])

    async def answer(self, *answers: Answer) -> None:
        """Write answers down; returns when they are on disk. The first of a kind stays."""
        await self._commit([(table.ANSWER, table.answer_row(answer)) for answer in answers])

    async def redirect(self, accepted: Accepted) -> None:
        """Send a rollout's answers to newer callback URLs.

        All of them are owed again where those are others, else those that were given up.
        """
        urls = (accepted.completion_url, accepted.grader_url)
        await self._commit(
            [
                (table.OWE_AGAIN, (accepted.rollout_id, *urls)),
                (table.REDIRECT, (*urls, accepted.callback_key, accepted.rollout_id)),
                (table.FORGET_KEY, (accepted.rollout_id,)),
            ]
        )

    async def adopt(self, entries: Iterable[Entry]) -> None:
        """Take over what other journals know; what this one knows already stays.

        Answers come together or not at all: two executions of one rollout must not be mixed.
        """
        statements: list[Statement] = []
        for entry in entries:
            accepted = entry.accepted
            statements.append((table.ADOPT, table.accepted_row(accepted)))
            which = table.ADOPT_FIRST_ANSWER
            for answer in entry.answers:
                values = (*table.answer_row(answer), accepted.rollout_id, accepted.digest)
                statements.append((which, values))
                which = table.ADOPT_NEXT_ANSWER
        await self._commit(statements)

    async def owe_again(self, rollout_ids: Iterable[str]) -> None:
        """Owe answers once more that were refused or given up."""
        await self._commit([(table.OWE_LOST, (rollout_id,)) for rollout_id in rollout_ids])

    async def drop(self, rollout_ids: Iterable[str]) -> None:
        """Owe nothing more of these rollouts; their answers and keys are erased."""
        await self._commit(
            [
                (statement, (rollout_id,))
                for rollout_id in rollout_ids
                for statement in (table.DROP, table.FORGET_KEY)
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
        self._put(Write([(table.ANSWER, table.answer_row(answer))]))

    def entries(self) -> list[Entry]:
        """Everything the journal knows, oldest rollout first."""
        return table.read_entries(self._reader)

    def unfinished(self) -> list[Entry]:
        """The rollouts with answers that are missing or owed, oldest first."""
        return table.read_entries(self._reader, table.UNFINISHED)

    def find(self, rollout_id: str) -> Entry | None:
        """What the journal knows of one rollout."""
        entries = table.read_entries(self._reader, "= ?", (rollout_id,))
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
            self._put(Write([]))

    async def _commit(self, statements: Sequence[Statement]) -> None:
        committed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._put(Write(statements, committed))
        await committed

    def _write_all(self) -> None:
        """The writer thread: take what has come, commit it at once, tell those who wait."""
        with closing(table.connect(self.path)) as connection:
            last = False
            while not last:
                batch = self._next_batch(connection)
                last = None in batch
                writes = [write for write in batch if write is not None]
                # After the batch is taken: what was settled before a redirect is written before it.
                settled = [self._settled.popleft() for _ in range(len(self._settled))]
                table.commit_batch(connection, writes, settled)
                self._prune(connection)
            table.prune(connection, self.keep_bodies_sec)
            table.wipe(connection)

    def _put(self, write: Write | None) -> None:
        self._writes.append(write)
        # A thread that is woken costs more than all else about a write: only if it sleeps.
        if self._is_idle:
            self._is_idle = False
            self._wake_up.put(None)

    def _next_batch(self, connection: sqlite3.Connection) -> list[Write | None]:
        if self._is_busy:
            time.sleep(GATHER_SEC)
        self._is_idle = True
        if not self._writes:
            try:
                self._wake_up.get(timeout=WIPE_AFTER_IDLE_SEC)
            except queue.Empty:
                table.wipe(connection)
                self._wake_up.get()
        self._is_idle = False
        batch = [self._writes.popleft() for _ in range(len(self._writes))]
        self._is_busy = len(batch) > 1
        return batch

    def _prune(self, connection: sqlite3.Connection) -> None:
        if time.monotonic() >= self._prune_at:
            table.prune(connection, self.keep_bodies_sec)
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
        return table.read_entries(connection)


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


def _last_write(path: Path) -> float:
    log = path.with_name(path.name + "-wal")
    written = 0.0
    for one in (path, log):
        with suppress(FileNotFoundError):  # another server may be taking it over
            written = max(written, one.stat().st_mtime)
    return written
