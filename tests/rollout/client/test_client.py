"""The client of a trainer: real servers on loopback, one or two, that stay, fall and come back."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.errors import BackendError, ConfigError
from osmosis_ai.rollout import LocalBackend, RolloutStatus
from osmosis_ai.rollout.client import Rollout, RolloutClient
from osmosis_ai.rollout.controller.model.scripted import ScriptedClient
from osmosis_ai.rollout.server import create_rollout_server
from osmosis_ai.rollout.types import ExecutionOutcome
from osmosis_ai.testing import ChatWorkflow, ExactMatchGrader, HttpReply, ScriptedModel
from osmosis_ai.testing.serving import serve
from osmosis_ai.testing.stage import Stage
from tests.rollout.client.fake_server import fake_server, said
from tests.rollout.client.staged import (
    ROOT,
    ask,
    client_of,
    process_server,
    serving_a_model,
    staged_app,
)

PATIENCE_SEC = 30.0

BOTH = pytest.mark.parametrize("protocol", ["callback", "poll"])


async def outcome_of(rollout: Rollout) -> ExecutionOutcome:
    """Its outcome, in bounded time."""
    async with asyncio.timeout(PATIENCE_SEC):
        return await rollout


# One server


@BOTH
async def test_a_rollout_is_the_same_whichever_way_its_answers_come(protocol: Any) -> None:
    async with Stage() as stage:
        with serve(staged_app()) as url:
            async with client_of(url, protocol=protocol) as client:
                rollout = client.submit(**ask(stage))
                outcome = await outcome_of(rollout)
    assert rollout.is_done
    assert outcome.workflow.succeeded
    assert outcome.workflow.phase == "workflow"
    assert outcome.grader is not None
    assert outcome.grader.phase == "grader"
    assert outcome.workflow.sample == outcome.grader.sample
    assert outcome.reward == 1.0
    assert outcome.usage is None, "the policy's calls went elsewhere"


async def test_a_group_is_n_attempts_at_one_item() -> None:
    async with Stage() as stage:
        with serve(staged_app()) as url:
            async with client_of(url) as client:
                assert client.max_in_flight is None
                group = client.submit_group(n=3, **ask(stage))
                ended = [pair async for pair in client.as_completed(group)]
    assert [rollout.attempt for rollout in group] == [0, 1, 2]
    assert {rollout.item for rollout in group} == {"asked"}
    assert {rollout for rollout, _ in ended} == set(group)
    assert [outcome.reward for _, outcome in ended] == [1.0] * 3
    assert len({rollout.id for rollout in group}) == 3


async def test_rollouts_are_shown_in_the_order_in_which_they_end() -> None:
    async with Stage() as stage:
        stage.hold("slow")
        with serve(staged_app()) as url:
            async with client_of(url) as client:
                both = [client.submit(**ask(stage, name)) for name in ("slow", "fast")]
                order = []
                async for rollout, _ in client.as_completed(both):
                    order.append(rollout.item)
                    stage.release("slow")
    assert order == ["fast", "slow"]


async def test_a_model_is_served_and_counted() -> None:
    backend = LocalBackend(workflow=ChatWorkflow, grader=ExactMatchGrader)
    app = create_rollout_server(backend=backend, configure_logging=False, journal=None)
    model = ScriptedClient(lambda request, call: f"{call.row} {call.attempt}")
    with serve(app) as url:
        async with RolloutClient(url, model=model) as client:
            prompt = [{"role": "user", "content": "?"}]
            group = client.submit_group(prompt, n=2, label="7 1", row=7)
            outcomes = [await rollout for rollout in group]
    assert [outcome.reward for outcome in outcomes] == [0.0, 1.0]
    assert [outcome.usage and outcome.usage.calls for outcome in outcomes] == [1, 1]


async def test_what_a_server_refuses_is_a_value(caplog: pytest.LogCaptureFixture) -> None:
    """And says so: it is not a reward of 0."""
    with serve(staged_app(api_key="secret")) as url:
        async with client_of(url, api_key="wrong") as client:
            outcome = await outcome_of(client.submit([{"role": "user"}], label=""))
    assert outcome.reward is None
    assert outcome.workflow.no_result is not None
    assert "answered 401" in outcome.workflow.no_result


async def test_waiting_no_more_stops_nothing() -> None:
    async with Stage() as stage:
        stage.hold("asked")
        with serve(staged_app()) as url:
            async with client_of(url) as client:
                rollout = client.submit(**ask(stage))
                await stage.told("asked")
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0):
                        await rollout
                stage.release("asked")
                assert (await outcome_of(rollout)).reward == 1.0


# Ids


async def test_the_same_content_again_is_another_item_unless_it_is_named() -> None:
    async with Stage() as stage:
        stage.hold("asked")
        with serve(staged_app()) as url:
            async with client_of(url) as client:
                named = ask(stage)
                nameless = {**named, "item": None}
                first, second = client.submit(**nameless), client.submit(**nameless)
                assert (first.item[:-2], first.item[-2:]) == (second.item[:-2], "-0")
                assert second.item.endswith("-1")
                assert client.submit(**named) is client.submit(**named)
                with pytest.raises(ValueError, match="other content: name another item"):
                    client.submit(**{**named, "label": "other"})
                group = client.submit_group(n=2, **nameless)
                assert len({rollout.item for rollout in group}) == 1
                stage.release("asked")
                for rollout in (first, second, client.submit(**named), *group):
                    await outcome_of(rollout)


def test_what_cannot_work_is_said_at_once() -> None:
    with pytest.raises(ConfigError, match="there is no server"):
        client_of()
    with pytest.raises(ConfigError, match="policy in one way"):
        RolloutClient("http://127.0.0.1:1")
    with pytest.raises(ConfigError, match="another machine"):
        RolloutClient("http://far:1", model=ScriptedClient(lambda request, call: ""))
    with pytest.raises(ConfigError, match="another machine"):
        client_of("http://far:1", protocol="callback")
    with pytest.raises(ConfigError, match="every address"):
        client_of("http://far:1", listen_host="0.0.0.0")
    client_of("http://far:1", protocol="callback", advertise_url="http://near:1")
    client_of("http://far:1", protocol="callback", listen_host="10.0.0.1")


async def test_a_server_elsewhere_is_polled() -> None:
    """It would post its answers to itself."""
    order: list[Any] = []

    def take(route: str, body: dict[str, Any]) -> Any:
        if route != "rollout":
            return said()
        order.append(body)
        return HttpReply(422, "enough")

    assert not client_of("http://far:1")._posts_back("http://far:1")
    with serve(fake_server(take)) as url:
        async with client_of(url, protocol="poll") as client:
            outcome = await outcome_of(client.submit([{"role": "user"}]))
    assert "answered 422: enough" in str(outcome.workflow.no_result)
    assert not [key for key in order[0] if "callback" in key]


async def test_a_server_that_knows_no_polling_is_understood() -> None:
    with serve(fake_server(lambda route, body: HttpReply(200, {}))) as url:
        async with client_of(url, protocol="poll") as client:
            outcome = await outcome_of(client.submit([{"role": "user"}]))
    assert "gave no polling_lease_token" in str(outcome.workflow.no_result)


# Cancelling


@BOTH
async def test_a_cancelled_rollout_ends_on_its_server(protocol: Any) -> None:
    """Cancelling is idempotent, also for one that waits for its turn, and one that has ended."""
    async with Stage() as stage:
        stage.hold("first")
        app = staged_app(max_concurrent=1)
        with serve(app) as url:
            async with client_of(url, protocol=protocol) as client:
                first = client.submit(**ask(stage, "first"))
                await stage.told("first")
                waiting = client.submit(**ask(stage, "waiting"))
                outcomes = await client.cancel([waiting, first, waiting])
                last = await outcome_of(client.submit(**ask(stage, "last")))
                assert (await first.cancel()) is outcomes[1]
    assert [o.workflow.status for o in outcomes] == [RolloutStatus.CANCELLED] * 3
    assert {o.workflow.no_result for o in outcomes} == {"the rollout was cancelled"}
    assert [o.reward for o in outcomes] == [None] * 3
    assert last.reward == 1.0
    assert stage.scenes == ["first", "last"]


async def test_a_rollout_may_be_cancelled_before_it_begins() -> None:
    async with Stage() as stage:
        with serve(staged_app()) as url:
            async with client_of(url) as client:
                outcome = await client.submit(**ask(stage)).cancel()
    assert outcome.workflow.status is RolloutStatus.CANCELLED
    assert stage.scenes == []


async def test_the_end_of_the_block_ends_what_goes_on() -> None:
    async with Stage() as stage:
        stage.hold("asked")
        with serve(staged_app()) as url:
            async with client_of(url) as client:
                rollout = client.submit(**ask(stage))
                await stage.told("asked")
            assert (await rollout).workflow.status is RolloutStatus.CANCELLED


# Several servers


async def test_two_servers_share_the_rollouts_by_their_room() -> None:
    async with Stage() as stage:
        scenes = [f"r{n}" for n in range(6)]
        stage.hold(*scenes)
        small, large = staged_app(max_concurrent=2), staged_app(max_concurrent=4)
        with serve(small) as one, serve(large) as other:
            async with client_of(one, other) as client:
                assert client.max_in_flight == 6
                rollouts = [client.submit(**ask(stage, scene)) for scene in scenes]
                for scene in scenes:
                    await stage.told(scene)
                servers = client._flights.fleet.servers
                assert [len(server.flights) for server in servers] == [2, 4]
                stage.release_all()
                assert [(await outcome_of(r)).reward for r in rollouts] == [1.0] * 6


async def test_a_full_server_is_left_alone_and_another_one_asked() -> None:
    """As long as its Retry-After says; the other takes the rollout meanwhile."""
    posts: list[str] = []

    def refuse(route: str, body: dict[str, Any]) -> Any:
        if route != "rollout":
            return said()
        posts.append(body["rollout_id"])
        return HttpReply(429, headers={"Retry-After": "60"})

    async with Stage() as stage:
        with serve(fake_server(refuse)) as full, serve(staged_app()) as url:
            async with client_of(full, url) as client:
                rollouts = [client.submit(**ask(stage, f"r{n}")) for n in range(8)]
                assert [(await outcome_of(r)).reward for r in rollouts] == [1.0] * 8
    assert 0 < len(posts) <= 8


async def test_a_server_that_is_down_at_the_start_is_done_without() -> None:
    with ScriptedModel("gone") as gone:
        pass
    async with Stage() as stage:
        with serve(staged_app()) as url:
            async with client_of(gone.base_url, url) as client:
                assert (await outcome_of(client.submit(**ask(stage)))).reward == 1.0
    with pytest.raises(BackendError, match="does not answer"):
        async with client_of(gone.base_url):
            pass


@BOTH
async def test_the_rollouts_of_a_killed_server_go_to_the_other(
    protocol: Any, tmp_path: Path
) -> None:
    async with (
        Stage() as stage,
        process_server(tmp_path / "a") as one,
        process_server(tmp_path / "b") as other,
    ):
        scenes = [f"r{n}" for n in range(6)]
        stage.hold(*scenes)
        async with client_of(one.url, other.url, protocol=protocol) as client:
            rollouts = [client.submit(**ask(stage, scene)) for scene in scenes]
            told = [await stage.told(scene) for scene in scenes]
            assert {facts["pid"] for facts in told} == {one.pid, other.pid}
            await one.kill()
            stage.release_all()
            outcomes = [await outcome_of(rollout) for rollout in rollouts]
    assert [outcome.reward for outcome in outcomes] == [1.0] * 6
    assert len(stage.scenes) == 9, "the three of the killed server ran again, and no other"


async def test_without_resubmission_the_rollouts_of_a_killed_server_have_no_result(
    tmp_path: Path,
) -> None:
    async with (
        Stage() as stage,
        process_server(tmp_path / "a") as one,
        process_server(tmp_path / "b") as other,
    ):
        stage.hold("r0", "r1")
        async with client_of(one.url, other.url, lost="no_result") as client:
            rollouts = [client.submit(**ask(stage, scene)) for scene in ("r0", "r1")]
            told = [await stage.told(scene) for scene in ("r0", "r1")]
            await one.kill()
            gone = rollouts[[facts["pid"] for facts in told].index(one.pid)]
            lost = await outcome_of(gone)
            stage.release_all()
            [kept] = [await outcome_of(r) for r in rollouts if r is not gone]
    assert lost.reward is None
    assert lost.workflow.no_result == f"the rollout server at {one.url} is gone"
    assert kept.reward == 1.0


async def test_rollouts_wait_so_long_for_a_server_and_no_longer(tmp_path: Path) -> None:
    async with Stage() as stage, process_server(tmp_path) as server:
        stage.hold("r0")
        async with client_of(server.url, lost_patience_sec=0.2) as client:
            rollout = client.submit(**ask(stage, "r0"))
            await stage.told("r0")
            await server.kill()
            lost = await outcome_of(rollout)
            later = await outcome_of(client.submit(**ask(stage, "r1")))
    for outcome in (lost, later):
        assert outcome.reward is None
        assert "is gone" in str(outcome.workflow.no_result)


# Restarts


@BOTH
@pytest.mark.parametrize("journal", ["", "journal.sqlite3"])
async def test_a_restarted_server_gives_every_rollout_its_result(
    protocol: Any, journal: str, tmp_path: Path
) -> None:
    """It forgot them, or it says that it was restarted: either way they are run again."""
    file = str(tmp_path / journal) if journal else ""
    async with Stage() as stage, process_server(tmp_path, journal=file) as server:
        stage.hold("r0")
        async with client_of(server.url, protocol=protocol) as client:
            done = client.submit(**ask(stage, "done"))
            assert (await outcome_of(done)).reward == 1.0
            rollout = client.submit(**ask(stage, "r0"))
            name = rollout.id
            await stage.told("r0")
            await server.kill()
            stage.release("r0")
            await server.start()
            outcome = await outcome_of(rollout)
    assert outcome.reward == 1.0
    assert (rollout.id == name) is (not journal), "a name that a journal knows is run once"
    assert stage.scenes == ["done", "r0", "r0"]


async def test_a_restarted_server_with_a_journal_may_mean_no_result(tmp_path: Path) -> None:
    file = str(tmp_path / "journal.sqlite3")
    async with Stage() as stage, process_server(tmp_path, journal=file) as server:
        stage.hold("r0")
        async with client_of(server.url, lost="no_result", watch_sec=60) as client:
            rollout = client.submit(**ask(stage, "r0"))
            await stage.told("r0")
            await server.kill()
            await server.start()
            outcome = await outcome_of(rollout)
    assert outcome.workflow.no_result == "server_restarted"
    assert outcome.reward is None


async def test_all_servers_may_be_away_for_a_while(tmp_path: Path) -> None:
    """A rollout submitted meanwhile waits for one to come back."""
    async with (
        Stage() as stage,
        process_server(tmp_path) as server,
        client_of(server.url) as client,
    ):
        await server.kill()
        fleet = client._flights.fleet
        async with asyncio.timeout(PATIENCE_SEC):
            while fleet.is_there:
                await asyncio.wait({fleet.servers[0].news})
        waiting = client.submit(**ask(stage))
        await server.start()
        assert (await outcome_of(waiting)).reward == 1.0


@BOTH
async def test_a_restarted_client_finds_its_rollouts_again(protocol: Any, tmp_path: Path) -> None:
    """One that had ended, whose answers the first client had, and one that goes on."""
    file = str(tmp_path / "journal.sqlite3")
    async with Stage() as stage, process_server(tmp_path, journal=file) as server:
        stage.hold("running")
        name = await live_and_die(stage, server.url, protocol=protocol)
        async with client_of(server.url, protocol=protocol) as client:
            ended, running = [client.submit(**ask(stage, name)) for name in ("ended", "running")]
            assert ended.id == name
            assert (await outcome_of(ended)).reward == 1.0
            stage.release("running")
            assert (await outcome_of(running)).reward == 1.0
    assert sorted(stage.scenes) == ["ended", "running"], "nothing was run twice"


async def test_a_restarted_client_finds_each_rollout_on_its_server(tmp_path: Path) -> None:
    """Not on the one that has the most room now."""
    async with (
        Stage() as stage,
        process_server(tmp_path / "a", journal=str(tmp_path / "a.sqlite3")) as one,
        process_server(tmp_path / "b", journal=str(tmp_path / "b.sqlite3")) as other,
    ):
        stage.hold("running")
        await live_and_die(stage, one.url, other.url)
        async with client_of(other.url, one.url) as client:
            both = [client.submit(**ask(stage, name)) for name in ("running", "ended")]
            stage.release("running")
            assert [(await outcome_of(rollout)).reward for rollout in both] == [1.0, 1.0]
    assert sorted(stage.scenes) == ["ended", "running"], "nothing was run twice"


@pytest.mark.parametrize("lost", ["resubmit", "no_result"])
async def test_a_rollout_whose_policy_died_with_its_client_is_begun_again(
    lost: Any, tmp_path: Path
) -> None:
    """Else it would go on without a model, and its failure would look like the agent's."""
    file = str(tmp_path / "journal.sqlite3")
    async with Stage() as stage, process_server(tmp_path, journal=file) as server:
        stage.hold("running")
        name = await live_and_die(stage, server.url, policy="model")
        async with client_of(server.url, lost=lost, **serving_a_model()) as client:
            ended, running = [client.submit(**ask(stage, name)) for name in ("ended", "running")]
            assert (await outcome_of(ended)).reward == 1.0
            stage.release("running")
            outcome = await outcome_of(running)
            again = client.submit(**ask(stage, "running"))
            assert (await outcome_of(again)).reward == outcome.reward
    assert ended.id == name
    if lost == "resubmit":
        assert outcome.reward == 1.0
        assert sorted(stage.scenes) == ["ended", "running", "running"]
        assert again.id == running.id, "the second go is found again by its own name"
    else:
        assert outcome.workflow.no_result == "the client that served its policy is gone"


async def live_and_die(
    stage: Stage, *urls: str, protocol: str = "callback", policy: str = "elsewhere"
) -> str:
    """Let a client in a process of its own submit both, and kill it when one has ended."""
    script = Path(__file__).with_name("doomed_client.py")
    first = await asyncio.create_subprocess_exec(
        sys.executable,
        str(script),
        " ".join(urls),
        protocol,
        stage.address,
        policy,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert first.stdout is not None
    name = await first.stdout.readline()
    await stage.told("running")
    first.kill()
    await first.wait()
    return name.decode().strip()
