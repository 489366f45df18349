"""A server takes no more than it can hold, and posts to nobody it may not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from osmosis_ai.errors import ConfigError
from osmosis_ai.rollout.server import create_rollout_server
from osmosis_ai.rollout.server.bounds import Bounds
from tests.rollout.programs import limited
from tests.rollout.server.serving import answer, local, serving


async def test_a_body_that_is_too_large_is_refused_before_it_is_parsed() -> None:
    async with serving(bounds=Bounds(max_body_bytes=1000)) as site:
        said = await site.start(label="x" * 1000)
        assert (said.status, said.body) == (413, {"detail": "a body has at most 1,000 bytes"})
        assert (await site.start()).status == 202
        await site.answers()


async def test_a_body_of_unknown_length_is_read_no_further_than_the_limit() -> None:
    """A client that says no length could send for ever."""
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            sent += 1
            yield b"x" * 1024

    async with serving(bounds=Bounds(max_body_bytes=10_000)) as site:
        try:
            said = await site.send("POST", "/rollout/cancel", data=endless())
        except OSError:  # the server hung up while the client was still sending
            pass
        else:
            assert said.status == 413
        assert (await site.send("GET", "/health")).status == 200
    assert sent < 100_000


async def test_a_full_queue_is_a_429_and_room_is_made_by_what_ends() -> None:
    gate = asyncio.Event()

    async def wait(ctx: Any) -> Any:
        await gate.wait()
        return await answer(ctx)

    backend = local(run=wait, workflow_config=limited(1))
    async with serving(backend, bounds=Bounds(max_queue_depth=2)) as site:
        taken = await asyncio.gather(*(site.start(name) for name in "abcd"))
        assert sorted(said.status for said in taken) == [202, 202, 202, 429]
        (refused,) = (said for said in taken if said.status == 429)
        assert refused.headers["Retry-After"] == "5"
        assert (await site.send("GET", "/health")).body["max_queue_depth"] == 2
        gate.set()
        for name, said in zip("abcd", taken, strict=True):
            if said.status == 202:
                await site.answers(name)
        assert (await site.start("e")).status == 202
        await site.answers("e")


async def test_without_a_limit_on_the_backend_nothing_ever_queues() -> None:
    backend = local(workflow_config=limited(None))
    async with serving(backend, bounds=Bounds(max_queue_depth=1)) as site:
        taken = await asyncio.gather(*(site.start(str(number)) for number in range(20)))
        assert {said.status for said in taken} == {202}
        for number in range(20):
            await site.answers(str(number))


@pytest.mark.parametrize("hosts", [["a.example.org"], ["*.EXAMPLE.org", "10.0.0.1"]])
@pytest.mark.parametrize("field", ["completion_callback_url", "grader_callback_url"])
async def test_answers_go_to_no_host_that_was_not_named(field: str, hosts: list[str]) -> None:
    """Who may ask for rollouts could else have the server post to whatever it can reach."""
    urls = {"completion_callback_url": "http://a.example.org", "grader_callback_url": None}
    async with serving(bounds=Bounds(callback_hosts=hosts)) as site:
        said = await site.start(**{**urls, field: "http://169.254.169.254/latest"})
        assert said.status == 422
        assert "and not to '169.254.169.254'" in said.body["detail"]


@pytest.mark.parametrize("hosts", [["127.0.0.1"], ["127.0.0.*"], ["LOCALHOST", "127.*"]])
async def test_a_named_host_is_posted_to(hosts: list[str]) -> None:
    async with serving(bounds=Bounds(callback_hosts=hosts)) as site:
        assert (await site.start()).status == 202
        await site.answers()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"max_body_bytes": 0}, "max_body_bytes is 0; give at least 1"),
        ({"max_queue_depth": 0}, "max_queue_depth is 0; give at least 1, or None"),
        ({"callback_hosts": "host"}, "callback_hosts is 'host'; give a list of hosts"),
    ],
)
def test_a_bound_that_cannot_be_meant_is_refused_when_the_server_is_made(
    fields: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        create_rollout_server(backend=local(), configure_logging=False, **fields)
