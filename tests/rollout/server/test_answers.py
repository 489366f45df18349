"""What a controller is told of each rollout: the golden cases of the callback protocol."""

from __future__ import annotations

import logging
import re
from typing import Any

import pytest

from osmosis_ai.rollout.agent_workflow import AgentWorkflowOutput
from osmosis_ai.rollout.context import AgentWorkflowContext, GraderContext, get_rollout_context
from osmosis_ai.rollout.grader import NoResult
from tests.rollout.receiver import reply
from tests.rollout.server.serving import answer, exact, local, serving

SUCCESS = {
    "status": "success",
    "rollout_id": "r",
    "extra_fields": None,
    "err_message": None,
    "err_category": None,
    "err_summary": None,
    "phase": "workflow",
    "no_result": None,
}
BARE_FAILURE = {
    "status": "failure",
    "rollout_id": "r",
    "sample": None,
    "err_message": None,
    "err_category": None,
    "err_summary": None,
    "phase": "grader",
    "no_result": None,
}


async def nothing(ctx: GraderContext) -> None:
    """A grader that leaves no reward."""


async def boom(ctx: Any) -> Any:
    raise ValueError("boom")


async def test_a_graded_rollout_gives_two_answers() -> None:
    async with serving() as site:
        said = await site.start()
        assert (said.status, said.body) == (202, {})
        completion, grade = await site.answers()
    assert completion == SUCCESS
    assert grade == {
        "status": "success",
        "rollout_id": "r",
        "sample": {
            "messages": [
                {"role": "user", "content": "2 + 2"},
                {"role": "assistant", "content": "4"},
            ],
            "label": "4",
            "reward": 1.0,
            "remove_sample": False,
            "metrics": {},
            "extra_fields": {},
        },
        "err_message": None,
        "err_category": None,
        "err_summary": None,
        "phase": "grader",
        "no_result": None,
    }


async def test_answers_come_in_order_with_the_controllers_key() -> None:
    async with serving() as site:
        await site.start(llm_api_key="model-key")
        await site.answers()
        posts = site.receiver.posts
    assert [post.path for post in posts] == ["/r/completion", "/r/grader"]
    for post in posts:
        assert post.headers["authorization"] == "Bearer controller-key"
        assert post.headers["content-type"] == "application/json"


async def test_without_a_key_answers_carry_none() -> None:
    async with serving() as site:
        await site.start(controller_api_key=None)
        await site.answers()
        assert all("authorization" not in post.headers for post in site.receiver.posts)


async def test_each_answer_has_a_key_that_tells_repeated_ones() -> None:
    """Stable for one rollout and kind, so that a controller counts each answer once."""
    async with serving(None, reply(500), reply(503)) as site:
        await site.start("r-1")
        await site.start("r-2 ü")
        await site.receiver.wait_for(lambda receiver: len(receiver.posts) == 6)
        keys: dict[str, set[str]] = {}
        for post in site.receiver.posts:
            keys.setdefault(post.path, set()).add(post.headers["idempotency-key"])
    assert keys["/r-1/completion"] == {"r-1/completion"}
    assert keys["/r-1/grader"] == {"r-1/grader"}
    assert [len(one) for one in keys.values()] == [1, 1, 1, 1]
    assert len(set.union(*keys.values())) == 4


async def test_metadata_alone_is_something_to_grade_by() -> None:
    async def by_metadata(ctx: GraderContext) -> None:
        assert ctx.metadata == {"right": "4"}
        ctx.set_reward(0.5)

    async with serving(local(grade=by_metadata)) as site:
        await site.start(label=None, metadata={"right": "4"})
        _, grade = await site.answers()
    assert grade["sample"]["reward"] == 0.5


async def test_without_label_and_metadata_nothing_is_graded() -> None:
    async with serving() as site:
        await site.start(label=None)
        completion, grade = await site.answers()
        assert await site.status() == {
            "rollout_id": "r",
            "status": "success",
            "reward": None,
            "err_message": None,
        }
    assert completion == SUCCESS
    assert grade == BARE_FAILURE


async def test_without_a_grader_nothing_is_graded() -> None:
    async with serving(local(grade=None)) as site:
        await site.start()
        completion, grade = await site.answers()
    assert completion == SUCCESS
    assert grade == BARE_FAILURE


async def test_a_failed_workflow_says_why_and_is_not_graded() -> None:
    async with serving(local(run=boom)) as site:
        await site.start()
        completion, grade = await site.answers()
        status = await site.status()
    summary = completion["err_summary"]
    assert re.fullmatch(r"ValueError: boom \(.*test_answers\.py:\d+, in boom\)", summary)
    assert completion == {
        **SUCCESS,
        "status": "failure",
        "err_message": "boom",
        "err_category": "validation_error",
        "err_summary": summary,
    }
    assert grade == BARE_FAILURE
    assert (status["status"], status["err_message"]) == ("failure", "boom")


async def test_a_removed_sample_is_a_success_without_a_reward() -> None:
    async def remove(ctx: GraderContext) -> None:
        assert ctx.sample is not None
        ctx.set_reward(0.5)
        ctx.sample.remove_sample = True
        ctx.sample.metrics["bad"] = float("nan")

    async with serving(local(grade=remove)) as site:
        await site.start()
        _, grade = await site.answers()
        status = await site.status()
    assert grade["status"] == "success"
    sample = grade["sample"]
    assert (sample["remove_sample"], sample["reward"], sample["metrics"]) == (True, None, {})
    assert "metrics.bad" in " ".join(sample["extra_fields"]["made_safe"])
    assert (status["status"], status["reward"]) == ("success", None)


async def test_a_grader_that_leaves_no_reward_fails_and_keeps_the_sample() -> None:
    """A missing reward is never a 0."""
    async with serving(local(grade=nothing)) as site:
        await site.start()
        completion, grade = await site.answers()
        status = await site.status()
    assert completion == SUCCESS
    assert grade["status"] == "failure"
    assert grade["sample"]["reward"] is None
    assert grade["err_message"] == "Sample has no reward after grading"
    assert "call ctx.set_reward(...) in grade()" in grade["err_summary"]
    assert grade["err_category"] == "validation_error"
    assert (status["status"], status["reward"]) == ("failure", None)
    assert status["err_message"] == "Sample has no reward after grading"


async def test_a_reward_of_a_failed_grade_is_not_sent() -> None:
    async def late(ctx: GraderContext) -> None:
        ctx.set_reward(1.0)
        raise RuntimeError("then it failed")

    async with serving(local(grade=late)) as site:
        await site.start()
        _, grade = await site.answers()
    assert (grade["status"], grade["sample"]["reward"]) == ("failure", None)
    assert (grade["err_message"], grade["err_category"]) == ("then it failed", "agent_error")


async def test_without_a_grader_url_there_is_one_answer() -> None:
    graded = []

    async def grade(ctx: GraderContext) -> None:
        graded.append(ctx)

    async with serving(local(grade=grade)) as site:
        await site.start(grader_callback_url=None)
        await site.receiver.wait_for(lambda receiver: receiver.posts)
        status = await site.status()
    assert [post.path for post in site.receiver.posts] == ["/r/completion"]
    assert status["status"] == "success"
    assert graded == []


async def test_an_answer_without_a_result_says_so() -> None:
    async def judge(ctx: GraderContext) -> None:
        raise NoResult("the judge is away")

    async with serving(local(grade=judge)) as site:
        await site.start()
        _, grade = await site.answers()
    assert grade["no_result"] == "the judge is away"


async def test_a_success_without_a_sample_has_nothing_to_grade() -> None:
    async def silent(ctx: AgentWorkflowContext[Any]) -> AgentWorkflowOutput:
        return AgentWorkflowOutput(messages=None)

    async with serving(local(run=silent, grade=nothing)) as site:
        await site.start()
        completion, grade = await site.answers()
    assert completion == SUCCESS
    assert (grade["status"], grade["sample"]) == ("failure", None)


async def test_text_and_numbers_are_made_safe_and_marked() -> None:
    """Broken text of a model's must not cost the reward."""

    async def broken(ctx: AgentWorkflowContext[Any]) -> AgentWorkflowOutput:
        messages = [{"role": "assistant", "content": "4\ud800", "score": float("inf")}]
        return AgentWorkflowOutput(messages=messages, metrics={"turns": 1})

    async def one(ctx: GraderContext) -> None:
        assert ctx.sample is not None
        ctx.sample.metrics["huge"] = 2**80
        ctx.sample.extra_fields["set"] = {1}
        ctx.set_reward(1)

    async with serving(local(run=broken, grade=one)) as site:
        await site.start()
        _, grade = await site.answers()
    sample = grade["sample"]
    assert sample["reward"] == 1.0
    assert sample["messages"][0]["content"] == "4\ufffd"
    assert sample["metrics"] == {"turns": 1.0}
    made_safe = " ".join(sample["extra_fields"]["made_safe"])
    for place in ("messages[0].content", "messages[0].score", "metrics.huge", "extra_fields.set"):
        assert place in made_safe


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        ({"llm_api_key": "model-key"}, "model-key"),
        ({}, "controller-key"),
        ({"controller_api_key": None}, None),
    ],
)
async def test_a_rollout_runs_in_its_context(
    keys: dict[str, Any], key: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OSMOSIS_API_KEY", raising=False)
    seen: list[Any] = []

    async def look(ctx: Any) -> Any:
        seen.append(get_rollout_context())
        return await (exact(ctx) if isinstance(ctx, GraderContext) else answer(ctx))

    async with serving(local(run=look, grade=look)) as site:
        await site.start(chat_completions_url="http://policy/v1", **keys)
        await site.answers()
    assert seen[0] is seen[1]
    context = seen[0]
    assert (context.chat_completions_url, context.rollout_id) == ("http://policy/v1", "r")
    assert context.api_key == key


async def test_a_rollout_without_an_id_is_given_one() -> None:
    async with serving() as site:
        for _ in range(2):
            assert (await site.start(None)).status == 202
        await site.receiver.wait_for(lambda receiver: len(receiver.posts) == 4)
        ids = {post.body["rollout_id"] for post in site.receiver.posts}
    assert len(ids) == 2
    assert all(len(rollout_id) == 32 for rollout_id in ids)


async def test_keys_are_in_no_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    refusals = [reply(400, {"you said": "Bearer controller-key"})] * 2
    async with serving(local(run=boom), *refusals) as site:
        await site.start(llm_api_key="model-key")
        await site.answers()
        await site.start(llm_api_key="", controller_api_key="another-key")
    assert "did not arrive" in caplog.text
    for key in ("controller-key", "model-key", "another-key"):
        assert key not in caplog.text
