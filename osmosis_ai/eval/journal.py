"""The journal of a run: records on disk before anything relies on them, and read line by line."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from osmosis_ai.errors import RunError
from osmosis_ai.eval.record import Record, parse_record, to_line


def read_records(path: Path) -> Iterator[Record]:
    """The records of a journal in the order in which they were written; none where it is absent.

    A last line without its newline was never acknowledged and is left out. Any other line that
    is not a record raises RunError with its number.
    """
    if not path.exists():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            try:
                yield parse_record(line)
            except ValueError as error:
                raise RunError(
                    f"{path}, line {number}: {error}. This line was damaged or written by "
                    "something else: mend or remove it, or start over with --fresh."
                ) from error


def drop_torn_line(path: Path) -> int:
    """Cut off a last line that has no newline; returns how many bytes that took."""
    if not path.exists():
        return 0
    with path.open("r+b") as file:
        end = sum(len(line) for line in file if line.endswith(b"\n"))
        torn = file.seek(0, os.SEEK_END) - end
        if torn:
            file.truncate(end)
            os.fsync(file.fileno())
    return torn


@asynccontextmanager
async def open_journal(
    path: Path, *, sync: Callable[[int], None] = os.fsync
) -> AsyncIterator[Journal]:
    """A journal to append to; what was handed over is on disk when the block ends."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    # A thread of its own: users' code may fill the event loop's.
    with ThreadPoolExecutor(1, thread_name_prefix="journal") as thread:
        journal = Journal(_JournalFile(path, file, os.fstat(file).st_size, sync))
        writer = asyncio.create_task(journal.write_batches(thread))
        try:
            yield journal
        finally:
            journal.close()
            await writer
            os.close(file)


@dataclass(slots=True)
class Journal:
    """Appends records; what has gathered while one write was on its way is the next write."""

    _file: _JournalFile
    _waiting: list[_Line] = field(default_factory=list)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _closing: bool = False
    _error: RunError | None = None

    async def append(self, record: Record) -> None:
        """Return when the record would survive a power cut; RunError where the disk refuses it.

        A record that was handed over is written also where the caller is cancelled meanwhile.
        """
        await self._put(to_line(record))

    async def flush(self) -> None:
        """Return when all records that were handed over are written, or refused."""
        try:
            await self._put(b"")
        except RunError:  # whoever appended has been told
            return

    def close(self) -> None:
        """Ask the writer to end when all is written."""
        self._closing = True
        self._wake.set()

    async def write_batches(self, thread: ThreadPoolExecutor) -> None:
        """Write until closed, with one fsync for each batch, before any of it is acknowledged."""
        while self._waiting or not self._closing:
            await self._wake.wait()
            self._wake.clear()
            batch, self._waiting = self._waiting, []
            if batch and self._error is None:
                await self._write([line.data for line in batch], thread)
            for line in batch:
                line.settle(self._error)

    async def _put(self, data: bytes) -> None:
        line = _Line(data, asyncio.get_running_loop().create_future())
        self._waiting.append(line)
        self._wake.set()
        await line.written

    async def _write(self, lines: list[bytes], thread: ThreadPoolExecutor) -> None:
        try:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(thread, self._file.write, b"".join(lines))
        except OSError as error:
            self._error = RunError(
                f"{self._file.path} cannot be written: {error.strerror}. What it holds is safe: "
                "when the disk takes it again, the same command goes on from there."
            )


@dataclass(slots=True)
class _Line:
    data: bytes
    written: asyncio.Future[None]

    def settle(self, error: RunError | None) -> None:
        if self.written.done():
            return  # cancelled: nobody waits any more
        if error is None:
            self.written.set_result(None)
        else:
            self.written.set_exception(error)


@dataclass(slots=True)
class _JournalFile:
    path: Path
    descriptor: int
    size: int
    sync: Callable[[int], None]

    def write(self, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self.descriptor, rest) :]
            self.sync(self.descriptor)
        except OSError:
            # Half a line must not run into one that is written later.
            os.ftruncate(self.descriptor, self.size)
            raise
        self.size += len(data)
