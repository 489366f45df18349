"""With a journal an answer is on disk before it is posted, and posted until it is taken."""

from __future__ import annotations

import asyncio
import json
import stat
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.errors import RunError
from osmosis_ai.rollout.http import HttpClient
from osmosis_ai.rollout.server.entry import (
    Accepted,
    Answer,
    AnswerState,
)
from osmosis_ai.rollout.server.journal import (
    Journal,
    lock_journal,
    open_journal,
)
from tests.rollout.programs import limited
from tests.rollout.receiver import OK, Hang, receiving, reply
from tests.rollout.server.serving import QUICK, Counting, local, no_sleep, serving

MODEL_KEY = "key-of-the-model"
CALLBACK_KEY = "key-of-the-callbacks"


class Clock:
    """A clock that the pauses between attempts turn on."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal" / "server.sqlite3"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The artifact root of the servers of a test."""
    monkeypatch.setenv("_OSMOSIS_ROLLOUT_ARTIFACT_ROOT", str(tmp_path))
    return tmp_path


def states(path: Path) -> list[AnswerState]:
    journal = open_journal(path)
    found = [answer.state for entry in journal.entries() for answer in entry.answers]
    journal.close()
    return found


def bytes_on_disk(path: Path) -> bytes:
    return b"".join(file.read_bytes() for file in path.parent.iterdir())


async def test_a_slot_is_free_when_the_answers_are_on_disk(path: Path) -> None:
    """A controller that hangs holds up nobody else's rollout."""
    backend = local(workflow_config=limited(1))
    async with serving(backend, Hang, journal=path, drain_limits=QUICK) as site:
        await site.start("a")
        await site.receiver.wait_for(lambda receiver: receiver.at("/a/completion"))
        await site.start("b")
        await site.answers("b")
        assert not site.receiver.at("/a/grader")  # in order: its completion has not arrived


async def test_an_answer_is_posted_until_its_window_is_over(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    client = HttpClient(sleep=clock.sleep, clock=clock)
    refusals = [reply(503)] * 100
    async with serving(
        None, *refusals, client=client, journal=path, delivery_window_sec=600
    ) as site:
        await site.start(grader_callback_url=None)
        # A pause of a minute at most: some fifteen attempts in ten of them.
        await site.receiver.wait_for(lambda receiver: len(receiver.posts) > 12)
    attempts = len(site.receiver.posts)
    assert attempts < 25
    assert 600 <= clock.now < 661
    assert f"(attempt {attempts})" in caplog.text
    assert states(path) == [AnswerState.EXPIRED]


async def test_a_window_of_nothing_still_means_five_attempts(path: Path) -> None:
    async with serving(None, *[reply(503)] * 9, journal=path, delivery_window_sec=0) as site:
        await site.start(grader_callback_url=None)
        await site.receiver.wait_for(lambda receiver: len(receiver.posts) == 5)
    assert len(site.receiver.posts) == 5


async def test_answers_that_arrived_go_to_the_newest_urls_too(path: Path) -> None:
    """Whoever took them may be dead; the Idempotency-Key tells doubles."""
    run = Counting()
    async with serving(local(run=run), journal=path) as site, receiving() as elsewhere:
        await site.start()
        await site.answers()
        for _ in range(2):  # the second request is as the first: nothing is owed there any more
            said = await site.start(
                completion_callback_url=f"{elsewhere.url}/c",
                grader_callback_url=f"{elsewhere.url}/g",
                controller_api_key="new-key",
            )
            assert said.status == 202
            await elsewhere.wait_for(lambda receiver: len(receiver.posts) == 2)
    assert [post.path for post in elsewhere.posts] == ["/c", "/g"]
    assert {post.headers["authorization"] for post in elsewhere.posts} == {"Bearer new-key"}
    assert [post.raw for post in elsewhere.posts] == [post.raw for post in site.receiver.posts]
    assert run.runs == 1


async def test_answers_on_their_way_go_to_the_newest_urls_at_once(path: Path) -> None:
    async with serving(None, Hang, journal=path) as site, receiving() as elsewhere:
        await site.start()
        await site.receiver.wait_for(lambda receiver: receiver.posts)
        for _ in range(2):
            await site.start(
                completion_callback_url=f"{elsewhere.url}/c",
                grader_callback_url=f"{elsewhere.url}/g",
            )
        await elsewhere.wait_for(lambda receiver: receiver.at("/g"))
    assert [post.path for post in elsewhere.posts] == ["/c", "/g"]
    assert len(site.receiver.posts) == 1


async def test_an_answer_that_is_faster_than_the_note_of_its_new_place_is_posted_once(
    path: Path,
) -> None:
    gate = asyncio.Event()

    class Slow(Journal):
        async def redirect(self, accepted: Accepted) -> None:
            await gate.wait()
            await super().redirect(accepted)

    run = Counting(asyncio.Event())
    journal = lock_journal(path, Slow)
    async with serving(local(run=run), journal=journal) as site, receiving() as elsewhere:
        await site.start()
        urls = {
            "completion_callback_url": f"{elsewhere.url}/c",
            "grader_callback_url": f"{elsewhere.url}/g",
        }
        again = asyncio.create_task(site.start(**urls))
        await run.started.wait()
        assert run.go_on is not None
        run.go_on.set()
        while not elsewhere.at("/g"):
            await site.status()
            if len(site.receiver.posts) == 2:  # it was not yet told of the new place
                break
        gate.set()
        assert (await again).status == 202
        await elsewhere.wait_for(lambda receiver: receiver.at("/g"))
    assert [post.path for post in elsewhere.posts] == ["/c", "/g"]
    assert states(path) == [AnswerState.DELIVERED] * 2


async def test_what_was_refused_is_posted_again_for_who_asks_again(path: Path) -> None:
    """The controller has been mended; what it took already it is spared."""
    async with serving(None, OK, reply(410), journal=path) as site:
        await site.start()
        await site.answers()
        await site.start()
        await site.receiver.wait_for(lambda receiver: len(receiver.posts) == 3)
    assert [post.path for post in site.receiver.posts] == [
        "/r/completion",
        "/r/grader",
        "/r/grader",
    ]
    assert states(path) == [AnswerState.DELIVERED] * 2


async def test_two_who_ask_at_once_get_each_answer_once(path: Path) -> None:
    async with serving(journal=path) as site, receiving() as elsewhere:
        await site.start()
        await site.answers()
        urls = {
            "completion_callback_url": f"{elsewhere.url}/c",
            "grader_callback_url": f"{elsewhere.url}/g",
        }
        await asyncio.gather(*(site.start(**urls) for _ in range(8)))
        await elsewhere.wait_for(lambda receiver: receiver.at("/g"))
    assert sorted({post.path for post in elsewhere.posts}) == ["/c", "/g"]
    assert states(path) == [AnswerState.DELIVERED] * 2


async def test_who_asks_again_while_an_answer_is_written_gets_it_once(path: Path) -> None:
    commit, writing = asyncio.Event(), asyncio.Event()

    class Slow(Journal):
        async def answer(self, *answers: Answer) -> None:
            writing.set()
            await commit.wait()
            await super().answer(*answers)

    async with serving(journal=lock_journal(path, Slow)) as site:
        await site.start()
        await writing.wait()
        assert (await site.start()).status == 202
        commit.set()
        await site.answers()
    assert [post.path for post in site.receiver.posts] == ["/r/completion", "/r/grader"]


async def test_a_report_that_comes_late_is_put_into_the_trajectory(root: Path, path: Path) -> None:
    """With a journal the trajectory is written before the answers have arrived."""

    def calls(tokens: int) -> bytes:
        call = {"prompt_tokens": tokens}
        report = {"model_name": "m", "samples": {"s": {"llm_call_metrics": [call]}}}
        return reply(200, {"trajectory": report})

    def document() -> Any:
        return json.loads((root / "r" / "trajectory.json").read_bytes())

    async with serving(None, Hang, calls(7), calls(8), journal=path) as site:
        await site.start()
        while (await site.status())["status"] != "success":
            pass
        assert "metrics" not in document()["steps"][1]
        site.receiver.drop_connections()
        await site.answers()
    assert document()["steps"][1]["metrics"] == {"prompt_tokens": 8}
    assert document()["agent"]["model_name"] == "m"
    assert document()["final_metrics"] == {"total_prompt_tokens": 8, "total_steps": 2}


class Failing(Journal):
    """Cannot write what it is told not to."""

    accepts = answers = redirects = True

    async def accept(self, accepted: Accepted) -> None:
        self._check(self.accepts)
        await super().accept(accepted)

    async def answer(self, *answers: Answer) -> None:
        self._check(self.answers)
        await super().answer(*answers)

    async def redirect(self, accepted: Accepted) -> None:
        self._check(self.redirects)
        await super().redirect(accepted)

    def _check(self, works: bool) -> None:
        if not works:
            raise RunError("the journal cannot be written: disk full")


async def test_a_rollout_that_cannot_be_written_down_is_not_started(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = Counting()
    journal = lock_journal(path, Failing)
    journal.accepts = False
    async with serving(local(run=run), journal=journal) as site:
        said = await asyncio.gather(site.start(), site.start(), site.start("other"))
        assert {(one.status, one.headers["Retry-After"]) for one in said} == {(503, "5")}
        assert "cannot write its journal" in said[0].body["detail"]
        assert (await site.status())["status"] == "unknown"
        assert run.runs == 0
        journal.accepts = True
        assert (await site.start()).status == 202
        await site.answers()
    assert run.runs == 1
    assert "disk full" in caplog.text


async def test_an_answer_that_cannot_be_written_down_is_posted_all_the_same(path: Path) -> None:
    """The next server must not say otherwise: it is written when it has arrived."""
    journal = lock_journal(path, Failing)
    journal.answers = False
    async with serving(journal=journal) as site:
        await site.start()
        await site.answers()
        assert (await site.status())["reward"] == 1.0
    assert states(path) == [AnswerState.DELIVERED] * 2


async def test_an_unwritten_answer_that_did_not_arrive_is_kept_for_who_asks_again(
    path: Path,
) -> None:
    journal = lock_journal(path, Failing)
    journal.answers = False
    refusals = [reply(503)] * 10
    async with serving(None, *refusals, journal=journal) as site, receiving() as elsewhere:
        await site.start()
        await site.receiver.wait_for(lambda receiver: len(receiver.posts) == 10)
        while (await site.status())["status"] != "success":
            pass
        journal.answers = True
        await site.start(
            completion_callback_url=f"{elsewhere.url}/c",
            grader_callback_url=f"{elsewhere.url}/g",
        )
        await elsewhere.wait_for(lambda receiver: len(receiver.posts) == 2)
    assert states(path) == [AnswerState.DELIVERED] * 2


async def test_new_urls_that_cannot_be_written_down_are_not_taken(path: Path) -> None:
    journal = lock_journal(path, Failing)
    async with serving(journal=journal) as site:
        await site.start()
        await site.answers()
        journal.redirects = False
        assert (await site.start(grader_callback_url=None)).status == 503


async def test_an_answer_that_a_cancellation_strikes_is_given_all_the_same(path: Path) -> None:
    """It may strike between the answer and its commit."""

    class Striking(Journal):
        async def answer(self, *answers: Answer) -> None:
            await super().answer(*answers)
            if strikes:
                strikes.pop()
                await backend.cancel_rollouts(all=True)
                await asyncio.sleep(0)

    strikes = [1]
    backend = local()
    async with serving(backend, journal=lock_journal(path, Striking)) as site:
        await site.start()
        completion, grade = await site.answers()
    assert completion["status"] == "success"
    assert (grade["status"], grade["sample"]) == ("failure", None)


async def test_the_callback_key_is_on_disk_while_an_answer_is_undelivered_and_no_longer(
    path: Path,
) -> None:
    async with serving(None, Hang, journal=path) as site:
        await site.start(controller_api_key=CALLBACK_KEY, llm_api_key=MODEL_KEY)
        await site.receiver.wait_for(lambda receiver: receiver.posts)
        assert CALLBACK_KEY.encode() in bytes_on_disk(path)
        assert {stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()} == {0o600}
        site.receiver.drop_connections()
        await site.answers()
    assert CALLBACK_KEY.encode() not in bytes_on_disk(path)
    assert b"r" in bytes_on_disk(path)


async def test_the_models_key_is_never_on_disk(path: Path) -> None:
    run = Counting(asyncio.Event())
    async with serving(local(run=run), journal=path) as site:
        await site.start("a", llm_api_key=MODEL_KEY)
        await run.started.wait()
        polled = {"completion_callback_url": None, "grader_callback_url": None}
        assert (await site.start("b", llm_api_key=MODEL_KEY, **polled)).status == 202
        assert MODEL_KEY.encode() not in bytes_on_disk(path)
        assert run.go_on is not None
        run.go_on.set()
        await site.answers("a")
        assert MODEL_KEY.encode() not in bytes_on_disk(path)


async def test_a_server_that_ends_gives_its_answers_some_time(path: Path) -> None:
    client = HttpClient(sleep=no_sleep)
    async with serving(None, reply(503), reply(503), client=client, journal=path) as site:
        await site.start()
    assert [post.path for post in site.receiver.posts] == ["/r/completion"] * 3 + ["/r/grader"]
    assert states(path) == [AnswerState.DELIVERED] * 2


async def test_what_does_not_arrive_until_the_end_is_left_to_the_next_server(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(None, Hang, journal=path, drain_limits=QUICK) as site:
        await site.start()
        await site.receiver.wait_for(lambda receiver: receiver.posts)
    assert "1 rollouts have answers that did not arrive yet" in caplog.text
    assert states(path) == [AnswerState.OWED] * 2
