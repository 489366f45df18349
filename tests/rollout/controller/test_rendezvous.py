"""Where a server's answers meet whoever waits for them."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import aiohttp
import pytest

from osmosis_ai.rollout.controller.endpoint import Callbacks
from osmosis_ai.rollout.controller.listener import Controller
from osmosis_ai.rollout.controller.model.scripted import ScriptedClient
from osmosis_ai.rollout.controller.rendezvous import Answer
from osmosis_ai.testing import Gate

COMPLETION = {"status": "success", "rollout_id": "r1"}
GRADE = {"status": "success", "rollout_id": "r1", "sample": {"messages": [], "reward": 0.5}}


def a_controller() -> Controller:
    return Controller(ScriptedClient(lambda request, call: "42"))


async def post(
    http: aiohttp.ClientSession, url: str, body: Any, *, key: str | None
) -> tuple[int, Any]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    async with http.post(url, data=data, headers=headers) as answer:
        return answer.status, await answer.json()


async def complete(http: aiohttp.ClientSession, callbacks: Callbacks, body: Any) -> tuple[int, Any]:
    return await post(http, callbacks.completion_url, body, key=callbacks.api_key)


async def grade(http: aiohttp.ClientSession, callbacks: Callbacks, body: Any) -> tuple[int, Any]:
    return await post(http, callbacks.grader_url, body, key=callbacks.api_key)


async def test_both_answers_meet_whoever_waits(http: aiohttp.ClientSession) -> None:
    with a_controller() as controller:
        callbacks = controller.open_rollout("r1").expect_callbacks()
        waiting = asyncio.create_task(callbacks.rendezvous.grade())
        assert await complete(http, callbacks, COMPLETION) == (200, {})
        completion = await callbacks.rendezvous.completion()
        assert not waiting.done()
        assert await grade(http, callbacks, GRADE) == (200, {})
        graded = await waiting
    assert completion is not None
    assert completion.status == "success"
    assert graded.sample is not None
    assert graded.sample.reward == 0.5


async def test_an_answer_before_anybody_waits_is_not_lost(http: aiohttp.ClientSession) -> None:
    with a_controller() as controller:
        callbacks = controller.open_rollout("r1").expect_callbacks()
        await complete(http, callbacks, COMPLETION)
        await grade(http, callbacks, GRADE)
        assert await callbacks.rendezvous.completion() is not None
        assert (await callbacks.rendezvous.grade()).status == "success"


async def test_a_lost_completion_does_not_keep_anybody_waiting(
    http: aiohttp.ClientSession,
) -> None:
    with a_controller() as controller:
        callbacks = controller.open_rollout("r1").expect_callbacks()
        waiting = asyncio.create_task(callbacks.rendezvous.completion())
        await grade(http, callbacks, GRADE)
        assert await waiting is None


async def test_the_same_answer_twice_is_acknowledged_twice_and_taken_once(
    http: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    """The first acknowledgement may have been lost."""
    taken: list[Answer] = []

    async def commit(answer: Answer) -> None:
        taken.append(answer)

    with a_controller() as controller:
        callbacks = controller.open_rollout("r1").expect_callbacks(commit=commit)
        for _ in range(2):
            assert await complete(http, callbacks, COMPLETION) == (200, {})
            assert await grade(http, callbacks, GRADE) == (200, {})
    assert [type(answer).__name__ for answer in taken] == [
        "RolloutCompleteRequest",
        "GraderCompleteRequest",
    ]
    assert caplog.messages == []


async def test_of_two_answers_the_first_counts(
    http: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    """The second is acknowledged, since nothing would change by sending it again, and logged."""
    with a_controller() as controller:
        callbacks = controller.open_rollout("r1").expect_callbacks()
        assert await complete(http, callbacks, COMPLETION) == (200, {})
        failed = {**COMPLETION, "status": "failure"}
        assert await complete(http, callbacks, failed) == (200, {})
        completion = await callbacks.rendezvous.completion()
    assert completion is not None
    assert completion.status == "success"
    assert caplog.messages == [
        "rollout r1: a second completion answer says something else; the first one counts"
    ]


async def test_an_answer_is_acknowledged_when_it_is_committed(
    http: aiohttp.ClientSession,
) -> None:
    """And not before: an acknowledged answer is never sent again."""
    gate = Gate()

    async def commit(answer: Answer) -> None:
        await gate.pass_through()

    with a_controller() as controller:
        callbacks = controller.open_rollout("r1").expect_callbacks(commit=commit)
        posting = asyncio.create_task(grade(http, callbacks, GRADE))
        waiting = asyncio.create_task(callbacks.rendezvous.grade())
        await gate.reached.wait()
        assert not posting.done()
        assert not waiting.done()
        gate.opened.set()
        assert await posting == (200, {})
        await waiting


async def test_a_duplicate_waits_for_the_commit_of_the_original(
    http: aiohttp.ClientSession,
) -> None:
    gate, commits = Gate(), 0

    async def commit(answer: Answer) -> None:
        nonlocal commits
        commits += 1
        await gate.pass_through()

    with a_controller() as controller:
        callbacks = controller.open_rollout("r1").expect_callbacks(commit=commit)
        posts = [asyncio.create_task(grade(http, callbacks, GRADE)) for _ in range(2)]
        await gate.reached.wait()
        gate.opened.set()
        assert await asyncio.gather(*posts) == [(200, {}), (200, {})]
    assert commits == 1


async def test_a_commit_that_fails_leaves_the_answer_open(http: aiohttp.ClientSession) -> None:
    """A full disk: the server is told to come again, and then the answer is taken."""
    disk = [OSError("disk full"), None]

    async def commit(answer: Answer) -> None:
        if error := disk.pop(0):
            raise error

    with a_controller() as controller:
        callbacks = controller.open_rollout("r1").expect_callbacks(commit=commit)
        status, body = await grade(http, callbacks, GRADE)
        assert status == 503
        assert body["error"]["message"] == "the answer cannot be kept now: disk full"
        assert await grade(http, callbacks, GRADE) == (200, {})
        await callbacks.rendezvous.grade()


@pytest.mark.parametrize("key", [None, "wrong"])
async def test_the_callback_key_is_wanted(http: aiohttp.ClientSession, key: str | None) -> None:
    with a_controller() as controller:
        endpoint = controller.open_rollout("r1")
        callbacks = endpoint.expect_callbacks()
        for other in (key, endpoint.api_key):
            assert (await post(http, callbacks.grader_url, GRADE, key=other))[0] == 401
            assert (await post(http, callbacks.completion_url, COMPLETION, key=other))[0] == 401


async def test_the_callback_key_opens_no_model(http: aiohttp.ClientSession) -> None:
    """Two keys: a rollout server that leaks one does not give away the other."""
    with a_controller() as controller:
        endpoint = controller.open_rollout("r1")
        callbacks = endpoint.expect_callbacks()
        url = f"{endpoint.chat_completions_url}/chat/completions"
        assert (await post(http, url, {}, key=callbacks.api_key))[0] == 401


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "not JSON"),
        (b"[]", "must be a JSON object"),
        ({**GRADE, "rollout_id": "r2"}, "this URL belongs to rollout 'r1'"),
        ({**GRADE, "rollout_id": 5}, "not a grader answer"),
        ({**GRADE, "status": "pending"}, "'pending' is not an end of a rollout"),
        ({**GRADE, "status": "running"}, "not a grader answer"),
        ({**GRADE, "sample": {"reward": "high"}}, "not a grader answer"),
        ({"rollout_id": "r1"}, "not a grader answer"),
    ],
)
async def test_a_wrong_answer_is_refused(
    http: aiohttp.ClientSession, body: Any, message: str
) -> None:
    with a_controller() as controller:
        callbacks = controller.open_rollout("r1").expect_callbacks()
        status, answer = await grade(http, callbacks, body)
        assert status == 422
        assert message in answer["error"]["message"]
        assert await grade(http, callbacks, GRADE) == (200, {})


@pytest.mark.parametrize("status", ["queued", "running", "grading", "unknown", "odd"])
async def test_only_an_end_of_the_workflow_is_taken(
    http: aiohttp.ClientSession, status: str
) -> None:
    with a_controller() as controller:
        callbacks = controller.open_rollout("r1").expect_callbacks()
        assert (await complete(http, callbacks, {**COMPLETION, "status": status}))[0] == 422
        assert (await complete(http, callbacks, {**COMPLETION, "status": "cancelled"}))[0] == 200


async def test_an_answer_without_an_id_is_the_one_of_its_url(http: aiohttp.ClientSession) -> None:
    with a_controller() as controller:
        callbacks = controller.open_rollout("r1").expect_callbacks()
        assert await complete(http, callbacks, {"status": "success"}) == (200, {})


async def test_an_answer_after_the_wait_was_given_up_is_acknowledged(
    http: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with a_controller() as controller:
        callbacks = controller.open_rollout("r1").expect_callbacks()
        waiting = asyncio.create_task(callbacks.rendezvous.grade())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert await grade(http, callbacks, GRADE) == (200, {})
    assert "rollout r1: an answer came after the wait for it" in caplog.messages


async def test_a_server_that_missed_its_acknowledgement_gets_it_after_the_end(
    http: aiohttp.ClientSession,
) -> None:
    """Of a rollout that is closed already; it would try again for nothing."""
    with a_controller() as controller:
        endpoint = controller.open_rollout("r1")
        callbacks = endpoint.expect_callbacks()
        await grade(http, callbacks, GRADE)
        await callbacks.rendezvous.grade()
        endpoint.close()
        assert await grade(http, callbacks, GRADE) == (200, {})
        assert (await complete(http, callbacks, COMPLETION))[0] == 200
        assert (await post(http, callbacks.grader_url, GRADE, key="wrong"))[0] == 401


async def test_acknowledgements_are_kept_for_so_many_ended_rollouts(
    http: aiohttp.ClientSession,
) -> None:
    """And no more: a run may have a million."""
    with Controller(ScriptedClient(lambda request, call: "42"), kept_rendezvous=2) as controller:
        callbacks = []
        for number in range(3):
            with controller.open_rollout(f"r{number}") as endpoint:
                callbacks.append(endpoint.expect_callbacks())
        bodies = [{**GRADE, "rollout_id": f"r{number}"} for number in range(3)]
        statuses = [
            (await grade(http, one, body))[0] for one, body in zip(callbacks, bodies, strict=True)
        ]
    assert statuses == [404, 200, 200]
