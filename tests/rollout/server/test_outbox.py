"""What did not arrive can be looked at, owed again, or dropped by hand."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from osmosis_ai.errors import RunError
from osmosis_ai.rollout.server.entry import (
    Accepted,
    Answer,
    AnswerKind,
    AnswerState,
)
from osmosis_ai.rollout.server.journal import (
    Journal,
    is_held,
    open_journal,
)
from osmosis_ai.rollout.server.outbox import drop, list_waiting, retry

BODY = b'{"secret": "in the answer"}'


async def fill(journal: Journal) -> None:
    """Four rollouts: owed, refused, expired, and delivered; the first is graded too."""
    states = dict(
        zip(
            ("a", "b", "c", "d"),
            (AnswerState.OWED, AnswerState.REFUSED, AnswerState.EXPIRED, AnswerState.DELIVERED),
            strict=True,
        )
    )
    for number, (name, state) in enumerate(states.items()):
        await journal.accept(
            Accepted(
                name,
                "digest",
                "http://host:1/done?token=hush",
                "http://grader/x" if name == "a" else None,
                callback_key="hush",
                accepted_at=time.time() + number,
            )
        )
        await journal.answer(Answer(name, AnswerKind.COMPLETION, BODY))
        if state is not AnswerState.OWED:
            journal.settle(name, AnswerKind.COMPLETION, state)
    await journal.answer(Answer("a", AnswerKind.GRADER, BODY))
    await journal.flush()


@pytest.fixture
async def folder(tmp_path: Path) -> Path:
    """A folder with the journal of a server that has ended."""
    journal = open_journal(tmp_path / "one.sqlite3")
    await fill(journal)
    journal.close()
    return tmp_path


def said(folder: Path) -> list[tuple[str, str, str, str]]:
    return [
        (one.answer.rollout_id, one.answer.kind, one.answer.state, one.place)
        for one in list_waiting(folder)
    ]


def on_disk(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.iterdir())


DONE = "http://host:1/done"


async def test_what_has_not_arrived_is_listed_with_where_it_goes(folder: Path) -> None:
    """Without the query of a URL: it may hold a secret."""
    assert said(folder) == [
        ("a", "completion", "owed", DONE),
        ("a", "grader", "owed", "http://grader/x"),
        ("b", "completion", "refused", DONE),
        ("c", "completion", "expired", DONE),
    ]


async def test_looking_does_not_disturb_a_server_that_runs(tmp_path: Path) -> None:
    journal = open_journal(tmp_path / "one.sqlite3")
    await fill(journal)
    assert {one.is_held for one in list_waiting(tmp_path)} == {True}
    await journal.accept(Accepted("e", "digest", "http://host/"))
    journal.close()
    assert {one.is_held for one in list_waiting(tmp_path)} == {False}


async def test_what_a_server_that_runs_owes_is_its_own_business(tmp_path: Path) -> None:
    journal = open_journal(tmp_path / "one.sqlite3")
    await fill(journal)
    for decide in (retry, drop):
        with pytest.raises(RunError, match="belongs to a server that is running: stop"):
            await decide(tmp_path)
    journal.close()


async def test_what_was_given_up_is_owed_again(folder: Path) -> None:
    assert await retry(folder) == ["b", "c"]
    assert [state for _, _, state, _ in said(folder)] == ["owed"] * 4
    assert await retry(folder) == []


async def test_one_rollout_can_be_meant(folder: Path) -> None:
    assert await retry(folder, only=["c", "nobody"]) == ["c"]
    assert [state for _, _, state, _ in said(folder)] == ["owed", "owed", "refused", "owed"]


async def test_what_is_dropped_is_erased_from_the_disk(folder: Path) -> None:
    """The callback key too, when nothing is owed any more."""
    assert await drop(folder) == ["a", "b", "c"]
    assert said(folder) == []
    left = on_disk(folder)
    assert left.count(BODY) == 1  # of the one that was delivered: a controller may ask again
    assert b"hush" not in left.replace(b"token=hush", b"")


async def test_a_folder_without_journals_has_nothing(tmp_path: Path) -> None:
    assert said(tmp_path / "none") == []


async def test_a_journal_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "torn.sqlite3").write_bytes(b"no journal at all" * 100)
    with pytest.raises(RunError, match=r"torn\.sqlite3 cannot be read"):
        said(tmp_path)


async def test_a_journal_without_a_lock_file_is_held_by_nobody(folder: Path) -> None:
    (folder / "one.sqlite3.lock").unlink(missing_ok=True)
    assert not is_held(folder / "one.sqlite3")
