"""What a journal promises: it is on disk when it says so, and keys do not stay there."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from osmosis_ai.errors import RunError
from osmosis_ai.rollout.server import journal as journals
from osmosis_ai.rollout.server.entry import (
    Accepted,
    Answer,
    AnswerKind,
    AnswerState,
    idempotency_key,
)
from osmosis_ai.rollout.server.journal import Journal, open_journal
from osmosis_ai.rollout.server.table import KEEP_ROLLOUTS_SEC

KEY = "callback-key-of-a-controller"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journals" / "server.sqlite3"


@pytest.fixture
def journal(path: Path) -> Iterator[Journal]:
    opened = open_journal(path)
    yield opened
    opened.close()


def accepted(rollout_id: str = "r1", grader_url: str | None = "http://c/grader") -> Accepted:
    return Accepted(rollout_id, "digest", "http://c/completion", grader_url, KEY)


def completion(rollout_id: str = "r1", body: bytes = b'{"status":"success"}') -> Answer:
    return Answer(rollout_id, AnswerKind.COMPLETION, body)


def grade(rollout_id: str = "r1") -> Answer:
    return Answer(rollout_id, AnswerKind.GRADER, b'{"reward":1.0}')


def bytes_on_disk(path: Path) -> bytes:
    return b"".join(file.read_bytes() for file in path.parent.iterdir())


async def test_a_rollout_is_on_disk_when_accept_returns(journal: Journal) -> None:
    await journal.accept(accepted())
    (entry,) = journal.entries()
    assert entry.accepted.rollout_id == "r1"
    assert entry.accepted.callback_key == KEY
    assert entry.answers == ()


async def test_answers_are_owed_in_order_until_they_are_settled(journal: Journal) -> None:
    await journal.accept(accepted())
    await journal.answer(grade())
    await journal.answer(completion())
    (entry,) = journal.entries()
    assert [answer.kind for answer in entry.owed] == [AnswerKind.COMPLETION, AnswerKind.GRADER]
    journal.settle("r1", AnswerKind.COMPLETION, AnswerState.DELIVERED)
    await journal.flush()
    (entry,) = journal.entries()
    assert [answer.kind for answer in entry.owed] == [AnswerKind.GRADER]


async def test_the_first_answer_of_a_kind_stays(journal: Journal) -> None:
    """A second answer would contradict one that a controller may have seen."""
    await journal.accept(accepted())
    await journal.answer(completion(body=b"first"))
    await journal.answer(completion(body=b"second"))
    (entry,) = journal.entries()
    assert [answer.body for answer in entry.answers] == [b"first"]


async def test_the_key_is_gone_from_the_disk_when_everything_is_delivered(
    journal: Journal, path: Path
) -> None:
    await journal.accept(accepted())
    await journal.answer(completion(), grade())
    journal.settle("r1", AnswerKind.COMPLETION, AnswerState.DELIVERED)
    await journal.flush()
    assert KEY.encode() in bytes_on_disk(path)
    journal.settle("r1", AnswerKind.GRADER, AnswerState.DELIVERED)
    journal.close()
    assert KEY.encode() not in bytes_on_disk(path)


async def test_the_key_is_wiped_while_the_server_lives_on(journal: Journal, path: Path) -> None:
    """Erasing a row leaves its old page in the write-ahead log until that is emptied."""
    await journal.accept(accepted(grader_url=None))
    await journal.answer(completion())
    journal.settle("r1", AnswerKind.COMPLETION, AnswerState.DELIVERED)
    await journal.flush()
    deadline = time.monotonic() + 30
    while KEY.encode() in bytes_on_disk(path):
        assert time.monotonic() < deadline, "the key is still on the disk"
        await asyncio.sleep(0.05)


async def test_the_key_stays_while_an_answer_is_refused(journal: Journal) -> None:
    """A refused answer can be retried by hand, and that needs the key."""
    await journal.accept(accepted(grader_url=None))
    await journal.answer(completion())
    journal.settle("r1", AnswerKind.COMPLETION, AnswerState.REFUSED)
    await journal.flush()
    (entry,) = journal.entries()
    assert entry.accepted.callback_key == KEY


async def test_an_unfinished_rollout_keeps_its_key(journal: Journal) -> None:
    """Whoever adopts the journal has to tell the controller that there is no result."""
    await journal.accept(accepted())
    await journal.answer(completion())
    journal.settle("r1", AnswerKind.COMPLETION, AnswerState.DELIVERED)
    await journal.flush()
    (entry,) = journal.entries()
    assert entry.accepted.callback_key == KEY


async def test_newer_urls_make_every_answer_owed_again(journal: Journal) -> None:
    """The controller that got the first ones may be dead; the keys let the new one tell doubles."""
    await journal.accept(accepted())
    await journal.answer(completion(), grade())
    journal.settle("r1", AnswerKind.COMPLETION, AnswerState.DELIVERED)
    journal.settle("r1", AnswerKind.GRADER, AnswerState.EXPIRED)
    await journal.redirect(
        Accepted("r1", "digest", "http://new/completion", "http://new/grader", "new-key")
    )
    (entry,) = journal.entries()
    assert entry.accepted.completion_url == "http://new/completion"
    assert entry.accepted.callback_key == "new-key"
    assert len(entry.owed) == 2


@pytest.mark.parametrize("grader_url", ["http://c/grader", None])
async def test_the_same_urls_leave_what_was_delivered(
    journal: Journal, path: Path, grader_url: str | None
) -> None:
    await journal.accept(accepted())
    await journal.answer(completion(), grade())
    journal.settle("r1", AnswerKind.COMPLETION, AnswerState.DELIVERED)
    journal.settle("r1", AnswerKind.GRADER, AnswerState.REFUSED)
    await journal.redirect(accepted(grader_url=grader_url))
    (entry,) = journal.entries()
    assert [answer.kind for answer in entry.owed] == [AnswerKind.GRADER]
    journal.settle("r1", AnswerKind.GRADER, AnswerState.DELIVERED)
    await journal.redirect(accepted(grader_url=grader_url))
    (entry,) = journal.entries()
    # Nothing is owed, and so no key is kept.
    assert (entry.owed, entry.accepted.callback_key) == ((), None)
    journal.close()
    assert KEY.encode() not in bytes_on_disk(path)


async def test_a_journal_of_a_running_server_cannot_be_opened(journal: Journal, path: Path) -> None:
    with pytest.raises(RunError, match="belongs to a server that is running"):
        open_journal(path)
    assert journals.is_held(path)


async def test_what_was_written_is_there_for_the_next_server(path: Path) -> None:
    first = open_journal(path)
    await first.accept(accepted())
    first.close()
    assert not journals.is_held(path)
    second = open_journal(path)
    assert [entry.accepted.rollout_id for entry in second.entries()] == ["r1"]
    second.close()


async def test_only_the_owner_can_read_a_journal(journal: Journal, path: Path) -> None:
    await journal.accept(accepted())
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    assert set(modes.values()) == {0o600}


async def test_many_writers_share_commits_and_lose_nothing(journal: Journal) -> None:
    async def one(rollout_id: str) -> None:
        await journal.accept(accepted(rollout_id))
        await journal.answer(completion(rollout_id), grade(rollout_id))

    await asyncio.gather(*(one(f"r{index}") for index in range(300)))
    entries = journal.entries()
    assert {entry.accepted.rollout_id for entry in entries} == {f"r{i}" for i in range(300)}
    assert all(len(entry.owed) == 2 for entry in entries)


async def test_a_failed_write_is_told_and_the_next_one_is_tried(journal: Journal) -> None:
    """What cannot be written must not be promised; a full disk may have room again later."""
    with closing(sqlite3.connect(journal.path)) as other:
        other.execute("DROP TABLE answer")
    with pytest.raises(RunError, match="the journal cannot be written: no such table"):
        await journal.answer(completion())
    await journal.accept(accepted())


async def test_a_row_that_no_table_takes_is_told_and_the_next_one_is_tried(
    journal: Journal,
) -> None:
    with pytest.raises(RunError, match="cannot be written"):
        await journal.accept(accepted("\ud800"))
    await journal.accept(accepted())
    assert [entry.accepted.rollout_id for entry in journal.entries()] == ["r1"]


async def test_a_waiter_that_was_cancelled_does_not_stop_the_writer(journal: Journal) -> None:
    waiting = asyncio.ensure_future(journal.accept(accepted()))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await journal.accept(accepted("r2"))
    assert "r2" in {entry.accepted.rollout_id for entry in journal.entries()}


def test_a_loop_that_has_gone_does_not_stop_the_writer(journal: Journal) -> None:
    async def ask() -> None:
        waiting = asyncio.ensure_future(journal.accept(accepted()))
        await asyncio.sleep(0)
        waiting.cancel()

    asyncio.run(ask())
    asyncio.run(journal.accept(accepted("r2")))


async def test_old_bodies_and_rollouts_are_forgotten(path: Path) -> None:
    long_ago = time.time() - 2 * KEEP_ROLLOUTS_SEC
    first = open_journal(path)
    await first.accept(Accepted("old", "d", "http://c", None, KEY, accepted_at=long_ago))
    await first.answer(Answer("old", AnswerKind.COMPLETION, b"{}", made_at=long_ago))
    first.settle("old", AnswerKind.COMPLETION, AnswerState.DELIVERED)
    await first.accept(accepted("owed"))
    first.close()
    second = open_journal(path)
    assert [entry.accepted.rollout_id for entry in second.entries()] == ["owed"]
    second.close()


def test_abandoned_journals_are_found_up_to_an_age(tmp_path: Path) -> None:
    for name in ("new", "old"):
        open_journal(tmp_path / f"{name}.sqlite3").close()
    os.utime(tmp_path / "old.sqlite3", (0, 0))
    assert journals.abandoned_journals(tmp_path, max_age_sec=3600) == [tmp_path / "new.sqlite3"]
    journals.remove_journal(tmp_path / "new.sqlite3")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["old.sqlite3", "old.sqlite3.lock"]


def test_a_key_is_stable_and_different_for_each_answer() -> None:
    keys = {idempotency_key("r1", kind) for kind in AnswerKind}
    assert keys == {"r1/completion", "r1/grader", "r1/result"}


def test_an_id_that_no_header_can_hold_is_named_by_its_digest() -> None:
    key = idempotency_key("r\u00f6llout 1", AnswerKind.GRADER)
    assert len(key) == len("/grader") + 64
    assert key.isascii()


def test_secrets_do_not_show_in_a_repr() -> None:
    assert KEY not in repr(accepted())
