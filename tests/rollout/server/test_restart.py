"""A server that begins delivers what earlier ones owed, and runs none of it again."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.errors import RunError
from osmosis_ai.rollout.protocol import encode_completion
from osmosis_ai.rollout.server.app import build_app
from osmosis_ai.rollout.server.entry import (
    Accepted,
    Answer,
    AnswerKind,
    AnswerState,
    Entry,
)
from osmosis_ai.rollout.server.history import History
from osmosis_ai.rollout.server.journal import (
    Journal,
    lock_journal,
    open_journal,
)
from osmosis_ai.rollout.server.recipient import Outcome
from osmosis_ai.rollout.server.restart import MAX_AGE_SEC, ended_from
from osmosis_ai.rollout.types import ExecutionResult, RolloutStatus
from tests.rollout.receiver import OK, Hang, receiving, reply
from tests.rollout.server.serving import QUICK, Counting, Site, local, serving


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "server.sqlite3"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The artifact root of the servers of a test."""
    monkeypatch.setenv("_OSMOSIS_ROLLOUT_ARTIFACT_ROOT", str(tmp_path))
    return tmp_path


def crash_image(path: Path) -> Path:
    """The journal as a server would leave it that is killed in this moment."""
    image = path.with_name(f"image-of-{path.name}")
    with closing(sqlite3.connect(path)) as living, closing(sqlite3.connect(image)) as copy:
        living.backup(copy)
    return image


def states(path: Path) -> list[str]:
    """What the journal of a server that lives says of its answers."""
    with closing(sqlite3.connect(path)) as connection:
        return [state for (state,) in connection.execute("SELECT state FROM answer")]


def journals(root: Path) -> list[Path]:
    return sorted((root / ".journals").glob("*.sqlite3"))


def break_file(path: Path) -> None:
    path.write_bytes(b"no database" * 1000)


async def start_again(site: Site, **fields: Any) -> int:
    """The status of the answer to the same request, from a controller that is elsewhere now."""
    return (await site.start(**fields)).status


async def test_answers_that_did_not_arrive_are_delivered_by_the_next_server(path: Path) -> None:
    run = Counting()
    async with receiving(Hang, Hang) as controller:
        where = {
            "completion_callback_url": f"{controller.url}/c",
            "grader_callback_url": f"{controller.url}/g",
        }
        async with serving(local(run=run), journal=path, drain_limits=QUICK) as site:
            await site.start(**where)
            await controller.wait_for(lambda receiver: receiver.at("/c"))
        first = len(controller.posts)
        async with serving(local(run=run), journal=path):
            await controller.wait_for(lambda receiver: receiver.at("/g"))
    posts = controller.posts[first:]
    assert [post.path for post in posts] == ["/c", "/c", "/g"]
    assert posts[-1].body["sample"]["reward"] == 1.0
    assert {post.headers["authorization"] for post in posts} == {"Bearer controller-key"}
    assert posts[0].headers["idempotency-key"] == controller.posts[0].headers["idempotency-key"]
    assert posts[0].raw == controller.posts[0].raw
    assert run.runs == 1


async def test_a_rollout_that_its_server_did_not_survive_is_no_result(path: Path) -> None:
    run = Counting(asyncio.Event())
    async with serving(local(run=run), journal=path) as site:
        await site.start()
        await run.started.wait()
        image = crash_image(path)
        async with serving(local(run=run), journal=image) as second:
            completion, grade = await site.answers()
            assert (await second.status())["status"] == "failure"
            assert "restarted" in (await second.status())["err_message"]
        assert (completion["status"], completion["no_result"]) == ("failure", "server_restarted")
        assert (grade["status"], grade["no_result"]) == ("failure", "server_restarted")
        assert grade["sample"] is None
        assert run.go_on is not None
        run.go_on.set()
    assert run.runs == 1


async def test_a_completion_stands_when_only_the_grade_was_missing(path: Path) -> None:
    gate = asyncio.Event()

    async def grade(ctx: Any) -> None:
        await gate.wait()
        ctx.set_reward(1.0)

    async with serving(local(grade=grade), journal=path) as site:
        await site.start()
        await site.receiver.wait_for(lambda receiver: receiver.at("/r/completion"))
        image = crash_image(path)
        async with serving(local(grade=grade), journal=image) as second:
            completion, grade_answer = await site.answers()
            status = await second.status()
        gate.set()
    assert completion["status"] == "success"
    assert grade_answer["no_result"] == "server_restarted"
    assert (status["status"], status["reward"]) == ("success", None)


async def test_a_known_rollout_is_not_run_again_and_its_answers_go_to_the_newest_urls(
    path: Path,
) -> None:
    """Delivered ones too: the controller that took them may be dead."""
    run = Counting()
    async with serving(local(run=run), journal=path) as site:
        await site.start()
        await site.answers()
    async with serving(local(run=run), journal=path) as site:
        assert await start_again(site) == 202
        completion, grade = await site.answers()
        assert (completion["status"], grade["sample"]["reward"]) == ("success", 1.0)
        assert (await site.status())["reward"] == 1.0
        assert await start_again(site, label="other content") == 409
    assert run.runs == 1


async def test_who_asks_many_times_in_one_moment_gets_the_same_answers_in_order(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A controller that starts anew may well ask for everything twice."""
    async with serving(journal=path) as site:
        await site.start()
        await site.answers()
    async with serving(journal=path) as site:
        assert await asyncio.gather(*(start_again(site) for _ in range(5))) == [202] * 5
        await site.answers()
    posts = site.receiver.posts
    assert [post.path for post in posts[:2]] == ["/r/completion", "/r/grader"]
    assert len({(post.headers["idempotency-key"], post.raw) for post in posts}) == 2
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


async def test_who_asks_for_a_grade_of_an_earlier_server_too_late_is_told(path: Path) -> None:
    async with serving(journal=path) as site:
        await site.start(grader_callback_url=None)
        await site.receiver.wait_for(lambda receiver: receiver.posts)
    async with serving(journal=path) as site:
        for _ in range(2):
            assert await start_again(site) == 202
        completion, grade = await site.answers()
    assert completion["status"] == "success"
    assert "without a grader callback" in grade["no_result"]


async def test_what_is_no_longer_kept_is_gone_and_still_not_run_again(path: Path) -> None:
    run = Counting()
    async with serving(local(run=run), journal=path) as site:
        await site.start()
        await site.answers()
    async with serving(local(run=run), journal=path, history=History(retention_sec=0.0)) as site:
        said = await site.start()
        assert said.status == 410
        assert "give it another id" in said.body["detail"]
        assert (await site.status())["status"] == "unknown"
        assert (await site.start(label="other content")).status == 409
    # The server that told it no longer has taken it off the disk at its end.
    async with serving(local(run=run), journal=path) as site:
        assert (await site.start()).status == 410
    assert run.runs == 1


async def test_a_grade_is_delivered_without_the_completion_that_arrived(path: Path) -> None:
    async with (
        serving(journal=path, drain_limits=QUICK) as site,
        receiving(OK, Hang) as controller,
    ):
        await site.start(
            completion_callback_url=f"{controller.url}/c",
            grader_callback_url=f"{controller.url}/g",
        )
        await controller.wait_for(lambda receiver: receiver.at("/g"))
        while "delivered" not in states(path):
            await site.status()
        image = crash_image(path)
        async with serving(journal=image):
            await controller.wait_for(lambda receiver: len(receiver.at("/g")) == 2)
    assert len(controller.at("/c")) == 1


def test_a_rollout_whose_completion_was_never_written_is_unknown(path: Path) -> None:
    """The disk was full, and the server died before it could be said again."""
    journal = open_journal(path)
    grade = Answer("r", AnswerKind.GRADER, b"{}")
    entry = Entry(Accepted("r", "d", "http://c", "http://g"), (grade,))
    ended = ended_from(entry, journal=journal, retention_sec=900)
    assert ended.outcome == Outcome(RolloutStatus.UNKNOWN)
    journal.close()


async def test_a_server_without_a_journal_of_the_old_one_runs_it_again(tmp_path: Path) -> None:
    run = Counting()
    for name in ("a", "b"):
        async with serving(local(run=run), journal=tmp_path / name) as site:
            await site.start()
            await site.answers()
    assert run.runs == 2


async def owe(path: Path, url: str, *rollout_ids: str, digest: str = "d") -> None:
    """Leave a journal behind that owes a completion for each id."""
    journal = open_journal(path)
    for rollout_id in rollout_ids:
        await journal.accept(Accepted(rollout_id, digest, f"{url}/{rollout_id}"))
        result = ExecutionResult(status=RolloutStatus.FAILURE, err_message=path.stem)
        body = encode_completion(rollout_id, result)
        await journal.answer(Answer(rollout_id, AnswerKind.COMPLETION, body))
    journal.close()


async def test_journals_that_nobody_holds_are_taken_over(root: Path) -> None:
    async with receiving() as controller:
        folder = root / ".journals"
        await owe(folder / "20260101T000000Z-1-a.sqlite3", controller.url, "a", "both")
        await owe(folder / "20260102T000000Z-1-a.sqlite3", controller.url, "b", "both")
        async with serving(journal="auto"):
            (own,) = journals(root)
            await controller.wait_for(lambda receiver: len(receiver.posts) == 3)
    by_path = {post.path: post.body["err_message"] for post in controller.posts}
    # Of one that both know, the newest counts.
    assert by_path == {
        "/a": "20260101T000000Z-1-a",
        "/b": "20260102T000000Z-1-a",
        "/both": "20260102T000000Z-1-a",
    }
    assert not own.exists()


async def test_a_journal_that_is_held_or_old_or_broken_is_left_alone(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = root / ".journals"
    async with receiving() as controller:
        for name in ("held", "old", "broken", "newer"):
            await owe(folder / f"{name}.sqlite3", controller.url, name)
        held = open_journal(folder / "held.sqlite3")
        long_ago = time.time() - MAX_AGE_SEC - 60
        os.utime(folder / "old.sqlite3", (long_ago, long_ago))
        break_file(folder / "broken.sqlite3")
        with closing(sqlite3.connect(folder / "newer.sqlite3")) as newer:
            newer.execute("PRAGMA user_version = 99")
        async with serving(journal="auto") as site:
            await site.start()
            await site.answers()
        held.close()
    assert controller.posts == []
    assert [path.stem for path in journals(root)] == ["broken", "held", "newer", "old"]
    for name in ("broken", "newer"):
        assert f"{name}.sqlite3 is not taken over" in caplog.text


async def test_of_two_journals_that_know_a_rollout_one_gives_all_answers(tmp_path: Path) -> None:
    """Two executions of one rollout may contradict each other."""

    def answers(mark: bytes) -> list[Answer]:
        return [Answer("r", kind, mark) for kind in (AnswerKind.COMPLETION, AnswerKind.GRADER)]

    own = open_journal(tmp_path / "own")
    asked = Accepted("r", "d", "http://c", "http://g")
    await own.accept(asked)
    await own.answer(answers(b"own")[0])
    other = open_journal(tmp_path / "other")
    await other.accept(asked)
    await other.answer(*answers(b"other"))
    await own.adopt(other.entries())
    assert [answer.body for answer in own.entries()[0].answers] == [b"own"]

    unfinished = open_journal(tmp_path / "unfinished")
    await unfinished.accept(asked)
    await unfinished.adopt(other.entries())
    assert [answer.body for answer in unfinished.entries()[0].answers] == [b"other", b"other"]

    otherwise = open_journal(tmp_path / "otherwise")
    await otherwise.accept(Accepted("r", "another digest", "http://c", "http://g"))
    await otherwise.adopt(other.entries())
    assert otherwise.entries()[0].answers == ()
    for journal in (own, other, unfinished, otherwise):
        journal.close()


async def test_a_servers_own_journal_stays_while_something_is_owed(root: Path) -> None:
    async with receiving(Hang) as controller:
        url = f"{controller.url}/c"
        async with serving(journal="auto", drain_limits=QUICK) as site:
            await site.start(completion_callback_url=url, grader_callback_url=None)
            await controller.wait_for(lambda receiver: receiver.posts)
        assert len(journals(root)) == 1
        async with serving(journal="auto"):
            await controller.wait_for(lambda receiver: len(receiver.posts) == 2)
    assert journals(root) == []


async def start(journal: Any) -> None:
    """Begin and end a server's life, with the errors of its start as they are."""
    app = build_app(local(), journal=journal)
    async with app.router.lifespan_context(app):
        pass


async def test_a_file_that_is_named_is_kept_and_must_be_usable(path: Path) -> None:
    async with serving(journal=str(path)) as site:
        await site.start()
        await site.answers()
        with pytest.raises(RunError, match="belongs to a server that is running"):
            await start(path)
    await start(path)
    break_file(path)
    for unusable in (path, path / "below-a-file"):
        with pytest.raises(RunError, match="cannot be opened"):
            await start(unusable)


async def test_a_root_that_cannot_be_written_costs_a_warning(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (root / ".journals").write_text("in the way")
    async with serving(journal="auto") as site:
        await site.start()
        await site.answers()
    assert "answers are not kept over a restart" in caplog.text


async def test_a_variable_turns_the_journal_off(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_OSMOSIS_ROLLOUT_JOURNAL", "off")
    async with serving(journal="auto") as site:
        await site.start()
        await site.answers()
        assert not (root / ".journals").exists()


async def test_a_journal_that_cannot_be_read_stops_the_start(path: Path) -> None:
    journal = open_journal(path)
    with closing(sqlite3.connect(path)) as other:
        other.execute("DROP TABLE answer")
    with pytest.raises(RunError, match="cannot be read"):
        await start(journal)


async def test_an_answer_that_was_refused_is_not_posted_by_the_next_server(path: Path) -> None:
    async with serving(None, reply(404), reply(410), journal=path) as site:
        await site.start()
        await site.answers()
    async with serving(journal=path) as site:
        assert (await site.status())["reward"] == 1.0
        assert site.receiver.posts == []
    journal = open_journal(path)
    assert {answer.state for answer in journal.entries()[0].answers} == {AnswerState.REFUSED}
    journal.close()


async def test_what_a_journal_holds_of_a_rollout_that_is_unknown_to_it_is_nothing(
    path: Path,
) -> None:
    async with serving(journal=path) as site:
        assert (await site.status("nobody"))["status"] == "unknown"


class Forgetful(Journal):
    """Knows nobody, as one whose entries are pruned before the history's."""

    def find(self, rollout_id: str) -> None:
        return None


async def test_a_rollout_that_the_journal_forgot_first_is_known_from_memory(path: Path) -> None:
    journal = lock_journal(path, Forgetful)
    run = Counting()
    async with serving(local(run=run), journal=journal) as site:
        await site.start()
        await site.answers()
        assert await start_again(site) == 202
        assert await start_again(site, label="other") == 409
    assert run.runs == 1
