"""Answers and the controllers that do not take them, or are elsewhere by now."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.rollout.http import HttpClient
from tests.rollout.programs import limited
from tests.rollout.receiver import OK, Close, Hang, Receiver, receiving, reply
from tests.rollout.server.serving import answer, local, no_sleep, serving


async def test_a_passing_failure_costs_no_answer() -> None:
    async with serving(None, reply(500), Close, reply(429), OK, reply(503)) as site:
        await site.start()
        await site.answers()
        paths = [post.path for post in site.receiver.posts]
        assert paths == ["/r/completion"] * 4 + ["/r/grader"]
        await site.receiver.wait_for(lambda receiver: len(receiver.posts) == 6)
        assert (await site.status())["reward"] == 1.0


@pytest.mark.parametrize("failures", [[reply(500)] * 5, [reply(404)]])
async def test_an_answer_that_cannot_arrive_is_logged_and_costs_nothing_else(
    failures: list[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    async with serving(None, *failures) as site:
        await site.start()
        _, grade = await site.answers()
        status = await site.status()
    assert grade["sample"]["reward"] == 1.0
    assert (status["status"], status["reward"]) == ("success", 1.0)
    (record,) = caplog.records
    assert "rollout r: its completion answer did not arrive" in record.getMessage()
    assert str(len(failures)) in record.getMessage()


async def test_a_controller_that_hangs_holds_an_answer_for_so_long_only() -> None:
    client = HttpClient(timeout_sec=0.05, attempts=2, sleep=no_sleep)
    async with serving(None, Hang, Hang, client=client) as site:
        await site.start()
        await site.answers()
        assert len(site.receiver.at("/r/completion")) == 2


async def test_a_slot_is_held_until_the_answers_are_given() -> None:
    """The next rollout would otherwise fill memory with answers nobody takes."""
    started: list[str] = []

    async def note(ctx: Any) -> Any:
        started.append(ctx.metadata["id"])
        return await answer(ctx)

    async with serving(local(run=note, workflow_config=limited(1)), Hang) as site:
        await site.start("a", metadata={"id": "a"})
        await site.start("b", metadata={"id": "b"})
        await site.receiver.wait_for(lambda receiver: receiver.posts)
        assert started == ["a"]
        assert (await site.status("b"))["status"] == "queued"
        site.receiver.drop_connections()
        await site.answers("b")
    assert started == ["a", "b"]


async def repeat_elsewhere(site: Any, elsewhere: Receiver, **fields: Any) -> Any:
    """The same request from a controller that was started anew, on another port."""
    return await site.start(
        completion_callback_url=f"{elsewhere.url}/completion",
        grader_callback_url=f"{elsewhere.url}/grader",
        controller_api_key="new-key",
        **fields,
    )


async def test_answers_under_way_go_to_a_controller_that_was_started_anew() -> None:
    runs: list[Any] = []

    async def note(ctx: Any) -> Any:
        runs.append(ctx)
        return await answer(ctx)

    async with serving(local(run=note), Hang) as site, receiving() as elsewhere:
        await site.start()
        await site.receiver.wait_for(lambda receiver: receiver.posts)
        assert (await repeat_elsewhere(site, elsewhere)).status == 202
        await elsewhere.wait_for(lambda receiver: len(receiver.posts) == 2)
    assert [post.path for post in elsewhere.posts] == ["/completion", "/grader"]
    assert all(post.headers["authorization"] == "Bearer new-key" for post in elsewhere.posts)
    assert elsewhere.posts[0].headers["idempotency-key"] == "r/completion"
    assert len(runs) == 1


async def test_answers_that_did_not_arrive_go_there_when_the_rollout_is_over() -> None:
    async with serving(None, reply(404), reply(410)) as site, receiving() as elsewhere:
        await site.start()
        await site.answers()
        assert (await repeat_elsewhere(site, elsewhere)).status == 202
        await elsewhere.wait_for(lambda receiver: len(receiver.posts) == 2)
    assert [post.path for post in elsewhere.posts] == ["/completion", "/grader"]
    assert elsewhere.posts[1].body["sample"]["reward"] == 1.0


async def test_a_request_that_names_no_grader_url_leaves_it_as_it_was() -> None:
    async with serving(None, reply(404), reply(404)) as site, receiving() as elsewhere:
        await site.start()
        await site.answers()
        await site.start(
            completion_callback_url=f"{elsewhere.url}/completion", grader_callback_url=None
        )
        await elsewhere.wait_for(lambda receiver: receiver.posts)
        await site.receiver.wait_for(lambda receiver: len(receiver.at("/r/grader")) == 2)


async def test_answers_that_arrived_are_not_sent_again() -> None:
    async with serving() as site, receiving() as elsewhere:
        await site.start()
        await site.answers()
        assert (await repeat_elsewhere(site, elsewhere)).status == 202
        assert (await site.status())["reward"] == 1.0
    assert elsewhere.posts == []
    assert len(site.receiver.posts) == 2


async def test_an_answer_that_is_stranded_goes_there_while_the_rollout_runs_on() -> None:
    gate = asyncio.Event()

    async def grade(ctx: Any) -> None:
        await gate.wait()
        ctx.set_reward(1.0)

    async with serving(local(grade=grade), reply(404)) as site, receiving() as elsewhere:
        await site.start()
        await site.receiver.wait_for(lambda receiver: receiver.posts)
        await site.receiver.wait_for(lambda _: site.receiver.posts)
        for _ in range(2):  # a controller may well ask twice
            await repeat_elsewhere(site, elsewhere)
        await elsewhere.wait_for(lambda receiver: receiver.at("/completion"))
        gate.set()
        await elsewhere.wait_for(lambda receiver: receiver.at("/grader"))
    assert [post.path for post in elsewhere.posts] == ["/completion", "/grader"]


async def test_who_asks_for_a_grade_too_late_is_told_that_there_is_none() -> None:
    """A controller that waits for it would wait for ever."""
    async with serving() as site, receiving() as elsewhere:
        await site.start(grader_callback_url=None)
        await site.receiver.wait_for(lambda receiver: receiver.posts)
        while (await site.status())["status"] != "success":
            pass
        for _ in range(2):
            await repeat_elsewhere(site, elsewhere)
        await elsewhere.wait_for(lambda receiver: receiver.posts)
    (grade,) = elsewhere.posts
    assert (grade.path, grade.body["status"], grade.body["sample"]) == ("/grader", "failure", None)
    assert "without a grader callback" in grade.body["no_result"]


async def test_who_asks_for_a_grade_while_the_workflow_runs_is_told_at_its_end() -> None:
    gate = asyncio.Event()

    async def run(ctx: Any) -> Any:
        await gate.wait()
        return await answer(ctx)

    async with serving(local(run=run)) as site:
        await site.start(grader_callback_url=None)
        assert (await site.start()).status == 202
        gate.set()
        completion, grade = await site.answers()
    assert completion["status"] == "success"
    assert "without a grader callback" in grade["no_result"]


async def acknowledged(root: Path, monkeypatch: pytest.MonkeyPatch, *acks: bytes) -> Any:
    """The trajectory of a rollout whose controller acknowledges its answers like this."""
    monkeypatch.setenv("_OSMOSIS_ROLLOUT_ARTIFACT_ROOT", str(root))
    async with serving(None, *acks) as site:
        await site.start()
        await site.answers()
    return json.loads(_read(root / "r" / "trajectory.json"))


def _read(path: Path) -> bytes:
    return path.read_bytes()


def _calls(tokens: int) -> dict[str, Any]:
    call = {"prompt_tokens": tokens}
    return {"trajectory": {"model_name": "m", "samples": {"s": {"llm_call_metrics": [call]}}}}


async def test_the_report_of_an_acknowledgement_is_archived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = await acknowledged(tmp_path, monkeypatch, reply(200, _calls(7)))
    assert document["steps"][1]["metrics"] == {"prompt_tokens": 7}
    assert document["agent"]["model_name"] == "m"


@pytest.mark.parametrize(
    ("second", "tokens"), [(_calls(8), 8), ({}, 7), ({"trajectory": {"samples": 1}}, 7)]
)
async def test_the_latest_well_formed_report_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, second: Any, tokens: int
) -> None:
    acks = [reply(200, _calls(7)), reply(200, second)]
    document = await acknowledged(tmp_path, monkeypatch, *acks)
    assert document["steps"][1]["metrics"] == {"prompt_tokens": tokens}


async def test_an_acknowledgement_may_be_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    acks = [b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfine", reply(201, ["ok"])]
    document = await acknowledged(tmp_path, monkeypatch, *acks)
    assert document["final_metrics"] == {"total_steps": 2}
