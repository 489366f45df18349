"""Which requests become rollouts, which are refused and how, and which mean one that is there."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from osmosis_ai.rollout.backend.base import ExecutionBackend
from tests.rollout.programs import limited
from tests.rollout.server.serving import Site, answer, local, serving


class Full(ExecutionBackend):
    """A backend whose queue is full."""

    async def execute(self, *args: Any, **kwargs: Any) -> None:
        raise AssertionError("nothing was admitted")

    def has_capacity(self) -> bool:
        return False


async def refusal(site: Site, status: int = 422, **fields: Any) -> Any:
    """What is said of a request that has to be refused."""
    said = await site.start(**fields)
    assert said.status == status
    return said.body["detail"]


async def test_what_is_missing_is_named() -> None:
    """Without any callback URL the rollout is to be polled, and needs an id for that."""
    async with serving() as site:
        said = await site.send("POST", "/rollout", json={})
    assert said.status == 422
    assert {
        (problem["type"], *problem["loc"]) for problem in said.body["detail"]
    } == {
        ("missing", "body", "initial_messages"),
        ("missing", "body", "chat_completions_url"),
        ("missing", "body", "rollout_id"),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rollout_id", ""),
        ("rollout_id", "../x"),
        ("rollout_id", "a/b"),
        ("rollout_id", "a\\b"),
        ("rollout_id", "."),
        ("rollout_id", "a\0b"),
        ("rollout_id", 7),
        ("initial_messages", "x"),
        ("initial_messages", ["x"]),
        ("label", 7),
        ("metadata", []),
        ("llm_api_key", ""),
        ("completion_callback_url", "ftp://x"),
        ("grader_callback_url", "x"),
        ("agent_timeout_sec", "soon"),
        ("grader_timeout_sec", [1]),
        ("extra_fields", 1),
    ],
)
async def test_a_wrong_value_is_named(field: str, value: Any) -> None:
    async with serving() as site:
        (problem,) = await refusal(site, **{field: value})
    assert problem["loc"][:2] == ["body", field]


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), 10**400], ids=["nan", "infinite", "beyond"]
)
async def test_a_timeout_is_finite(value: Any) -> None:
    async with serving() as site:
        (problem,) = await refusal(site, agent_timeout_sec=value)
    assert problem["loc"] == ["body", "agent_timeout_sec"]


async def test_what_was_sent_is_not_sent_back() -> None:
    """It holds keys."""
    async with serving() as site:
        said = await site.start(label=7, controller_api_key="hush", rollout_id="a/b")
    assert said.status == 422
    assert b"hush" not in said.raw


@pytest.mark.parametrize("field", ["completion_callback_url", "grader_callback_url"])
@pytest.mark.parametrize(
    "url", ["http://", "http://user:hush@host/", "http://h:99999/", "http://a..b"]
)
async def test_an_address_that_no_answer_can_go_to_is_refused(field: str, url: str) -> None:
    """Before the rollout runs and its answers are lost."""
    async with serving() as site:
        detail = await refusal(site, **{field: url})
    assert "the answers cannot be posted as asked" in detail
    assert "hush" not in detail


async def test_a_key_that_no_header_can_carry_is_refused() -> None:
    async with serving() as site:
        detail = await refusal(site, controller_api_key="a\r\nX-Other: 1")
    assert "control characters" in detail


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"x", b"[]", b"null", b'"x"', b"7", b"\xff\xfe", b'{"initial_messages": [}',
        b'{"label": "\\ud800"}', b"[" * 100_000, b'{"a": ' + b"1" * 5000 + b"}",
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/rollout", "/rollout/cancel"])
async def test_a_body_that_cannot_be_read_is_refused(path: str, raw: bytes) -> None:
    async with serving() as site:
        said = await site.send("POST", path, data=raw)
    assert said.status == 422
    assert said.body["detail"]


async def test_numbers_of_any_size_are_data() -> None:
    metadata = {"huge": 10**40, "nan": float("nan"), "deep": [[[1]]]}
    seen: list[Any] = []

    async def look(ctx: Any) -> Any:
        seen.append(ctx.metadata)
        return await answer(ctx)

    async with serving(local(run=look)) as site:
        for _ in range(2):
            assert (await site.start(metadata=metadata)).status == 202
        await site.answers()
    assert seen[0]["huge"] == 10**40


async def test_unknown_fields_and_numbers_as_text_are_taken() -> None:
    async with serving() as site:
        assert (await site.start(agent_timeout_sec="30", surprise=1)).status == 202
        await site.answers()


@pytest.mark.parametrize("rollout_id", ["a b", "ü", "...", "a\nb", "a%2Fb", "x" * 300, "🙂"])
async def test_odd_ids_are_ids(rollout_id: str) -> None:
    async with serving() as site:
        said = await site.start(
            rollout_id,
            completion_callback_url=f"{site.receiver.url}/completion",
            grader_callback_url=f"{site.receiver.url}/grader",
        )
        assert said.status == 202
        await site.receiver.wait_for(lambda receiver: len(receiver.posts) == 2)
        assert site.receiver.posts[0].body["rollout_id"] == rollout_id
        (said_of_it,) = [await site.send("POST", "/rollout/cancel", json={"ids": [rollout_id]})]
        assert list(said_of_it.body["dispositions"]) == [rollout_id]


async def test_a_full_queue_says_when_to_come_back() -> None:
    async with serving(Full()) as site:
        said = await site.start()
    assert said.status == 429
    assert said.body == {"detail": "rollout queue is full; retry later"}
    assert said.headers["Retry-After"] == "5"


class Counted:
    """A workflow that waits at a gate and counts its runs."""

    def __init__(self) -> None:
        self.runs = 0
        self.gate = asyncio.Event()

    async def __call__(self, ctx: Any) -> Any:
        self.runs += 1
        await self.gate.wait()
        return await answer(ctx)


SAME: dict[str, Any] = {"metadata": {"a": 1, "b": [1, 2]}, "agent_timeout_sec": 30}


@pytest.mark.parametrize("is_over", [False, True])
async def test_the_same_request_means_the_rollout_that_is_there(is_over: bool) -> None:
    """Nothing is run twice: a controller may repeat a request whose answer it lost."""
    run = Counted()
    async with serving(local(run=run)) as site:
        await site.start(**SAME)
        if is_over:
            run.gate.set()
            await site.answers()
        said = await site.start(agent_timeout_sec=30.0, metadata={"b": [1, 2], "a": 1})
        assert (said.status, said.body) == (202, {})
        run.gate.set()
        await site.answers()
    assert run.runs == 1
    assert len(site.receiver.posts) == 2


@pytest.mark.parametrize("is_over", [False, True])
@pytest.mark.parametrize(
    "change",
    [
        {"initial_messages": []},
        {"label": "5"},
        {"label": None},
        {"metadata": {"a": 2, "b": [1, 2]}},
        {"metadata": {"a": 1, "b": [2, 1]}},
        {"agent_timeout_sec": 31},
        {"grader_timeout_sec": 30},
    ],
)
async def test_another_request_of_the_same_id_is_a_conflict(
    change: dict[str, Any], is_over: bool
) -> None:
    run = Counted()
    async with serving(local(run=run)) as site:
        await site.start(**SAME)
        if is_over:
            run.gate.set()
            await site.answers()
        assert "other content" in await refusal(site, 409, **SAME | change)
        run.gate.set()
        await site.answers()
    assert run.runs == 1


async def test_what_does_not_change_the_rollout_is_no_conflict() -> None:
    async with serving() as site:
        await site.start(**SAME)
        said = await site.start(**SAME, extra_fields={"a": 1}, llm_api_key="other")
        assert said.status == 202


async def test_a_rollout_that_is_there_is_found_while_the_queue_is_full() -> None:
    class OneAlone(Full):
        taken = False

        async def execute(self, *args: Any, **kwargs: Any) -> None:
            pass

        def has_capacity(self) -> bool:
            taken, self.taken = self.taken, True
            return not taken

    async with serving(OneAlone()) as site:
        assert (await site.start()).status == 202
        assert (await site.start()).status == 202
        assert (await site.start("other")).status == 429


async def test_as_many_run_at_once_as_the_backend_allows() -> None:
    run = Counted()
    async with serving(local(run=run, workflow_config=limited(2))) as site:
        for index in range(5):
            await site.start(f"r{index}")
        health = (await site.send("GET", "/health")).body
        assert health["concurrency"] == {"max_concurrent": 2, "queued": 3, "running": 2}
        assert health["lifecycle"] == {"accepting_rollouts": True, "active_rollouts": 5}
        run.gate.set()
        for index in range(5):
            await site.answers(f"r{index}")
    assert run.runs == 5


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.sampled_from(
    [
        "initial_messages", "label", "metadata", "rollout_id", "chat_completions_url",
        "controller_api_key", "llm_api_key", "completion_callback_url", "grader_callback_url",
        "agent_timeout_sec", "grader_timeout_sec", "extra_fields", "ids", "prefix", "all",
    ]
)  # fmt: skip


@given(
    path=st.sampled_from(["/rollout", "/rollout/cancel"]),
    changes=st.dictionaries(FIELDS, JSON, max_size=4),
    extra=st.dictionaries(st.text(), JSON, max_size=2),
)
@settings(max_examples=60)
def test_no_body_breaks_the_server(
    path: str, changes: dict[str, Any], extra: dict[str, Any]
) -> None:
    async def send() -> int:
        async with serving() as site:
            body = json.dumps({**site.body(), **changes, **extra})
            return (await site.send("POST", path, data=body)).status

    assert asyncio.run(send()) in (200, 202, 422)
