"""The journal: on disk before it is acknowledged, and read back line by line."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from osmosis_ai.errors import RunError
from osmosis_ai.eval.journal import drop_torn_line, open_journal, read_records
from osmosis_ai.eval.record import to_line
from tests.eval.full_disk import file_size_limit
from tests.eval.test_record import RECORD


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "records.jsonl"


async def test_an_append_returns_when_the_line_is_in_the_file(path: Path) -> None:
    async with open_journal(path) as journal:
        await journal.append(RECORD)
        assert list(read_records(path)) == [RECORD]


async def test_many_appends_are_all_written_in_order(path: Path) -> None:
    records = [replace(RECORD, row=row) for row in range(200)]
    async with open_journal(path) as journal:
        await asyncio.gather(*(journal.append(record) for record in records))
    assert list(read_records(path)) == records


async def test_a_second_session_appends(path: Path) -> None:
    for row in range(2):
        async with open_journal(path) as journal:
            await journal.append(replace(RECORD, row=row))
    assert [record.row for record in read_records(path)] == [0, 1]


async def test_what_has_gathered_costs_one_sync(path: Path) -> None:
    """Each sync of a disk takes milliseconds, and sixty-four rollouts may end at once."""
    syncs: list[int] = []
    async with open_journal(path, sync=syncs.append) as journal:
        await asyncio.gather(*(journal.append(RECORD) for _ in range(64)))
        assert len(syncs) == 1


async def test_nothing_is_acknowledged_before_it_is_on_the_disk(path: Path) -> None:
    reached, allowed = threading.Event(), threading.Event()

    def sync(descriptor: int) -> None:
        reached.set()
        assert allowed.wait(30)

    async with open_journal(path, sync=sync) as journal:
        append = asyncio.create_task(journal.append(RECORD))
        await asyncio.to_thread(reached.wait, 30)
        assert not append.done()
        allowed.set()
        await append


async def test_a_record_is_written_also_when_its_caller_is_cancelled(path: Path) -> None:
    """The rollout has ended and may have cost money: it must not run again."""
    async with open_journal(path) as journal:
        append = asyncio.create_task(journal.append(RECORD))
        await asyncio.sleep(0)
        append.cancel()
        await journal.flush()
        assert list(read_records(path)) == [RECORD]
    assert append.cancelled()


async def test_a_disk_that_is_full_is_one_sentence_and_loses_nothing(path: Path) -> None:
    """A file-size limit stands for the disk; what was acknowledged stays whole."""
    async with open_journal(path) as journal:
        await journal.append(RECORD)
        with (
            file_size_limit(len(to_line(RECORD)) + 10),
            pytest.raises(RunError, match=r"records.jsonl cannot be written: File too large"),
        ):
            await journal.append(RECORD)
        with pytest.raises(RunError):
            await journal.append(RECORD)
        await journal.flush()
    assert (drop_torn_line(path), list(read_records(path))) == (0, [RECORD])


def test_a_journal_that_is_not_there_has_no_records(path: Path) -> None:
    assert list(read_records(path)) == []
    assert drop_torn_line(path) == 0


def test_a_torn_last_line_is_left_out_and_cut_off(path: Path) -> None:
    """It was never acknowledged: its rollout runs again."""
    path.write_bytes(to_line(RECORD) + to_line(RECORD)[:50])
    assert list(read_records(path)) == [RECORD]
    assert drop_torn_line(path) == 50
    assert path.read_bytes() == to_line(RECORD)
    assert drop_torn_line(path) == 0


def test_a_damaged_line_is_an_error_with_its_number(path: Path) -> None:
    """Skipped, it would be a rollout that silently runs twice, or is never counted."""
    path.write_bytes(to_line(RECORD) + b"\x00\x00\n" + to_line(RECORD))
    with pytest.raises(RunError, match=r"records.jsonl, line 2: .*start over with --fresh"):
        list(read_records(path))
