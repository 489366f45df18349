"""A controller that cannot be reached comes for the result itself."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.errors import RunError
from osmosis_ai.rollout.backend.base import CancelDisposition
from osmosis_ai.rollout.backend.local import LocalBackend
from osmosis_ai.rollout.protocol import RolloutPollRequest, parse_start_request
from osmosis_ai.rollout.server.app import build_app
from osmosis_ai.rollout.server.history import History
from osmosis_ai.rollout.server.jobs import DrainLimits
from osmosis_ai.rollout.server.journal import (
    Journal,
    lock_journal,
)
from osmosis_ai.rollout.server.lease import Lease, LeaseTerms
from osmosis_ai.rollout.types import ExecutionResult, RolloutStatus
from tests.rollout.programs import limited, workflow_of
from tests.rollout.server.serving import Counting, Said, Site, answer, local, serving

NO_URLS = {"completion_callback_url": None, "grader_callback_url": None}
HEADER = "X-Osmosis-Rollout-Lease"


class Poller:
    """A controller that polls."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.tokens: dict[str, str] = {}

    async def start(self, rollout_id: str | None = "r", **fields: Any) -> Said:
        said = await self.site.start(
            rollout_id, **{**NO_URLS, "controller_api_key": None, **fields}
        )
        if said.status == 202 and rollout_id is not None:
            self.tokens[rollout_id] = said.body["polling_lease_token"]
        return said

    async def poll(self, rollout_id: str = "r", *, token: str | None = None) -> Said:
        headers = {HEADER: token or self.tokens[rollout_id]}
        return await self.site.send("GET", f"/rollout/{rollout_id}/result", headers=headers)

    async def result(self, rollout_id: str = "r") -> Any:
        """Poll until the end."""
        async with asyncio.timeout(20):
            while True:
                said = await self.poll(rollout_id)
                assert said.status == 200, said.raw
                if said.body["status"] in ("success", "failure", "cancelled"):
                    return said.body


@asynccontextmanager
async def polling(backend: Any = None, **fields: Any) -> AsyncIterator[Poller]:
    async with serving(backend, **fields) as site:
        yield Poller(site)


@pytest.fixture(params=["journal", "no journal"])
def journal(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    """What holds with a journal and without."""
    return tmp_path / "server.sqlite3" if request.param == "journal" else None


async def test_a_rollout_is_polled_to_its_end(journal: Path | None) -> None:
    async with polling(journal=journal) as poller:
        said = await poller.start()
        assert said.status == 202
        assert said.body == {
            "rollout_id": "r",
            "status": said.body["status"],
            "polling_lease_token": poller.tokens["r"],
            "result_wait_timeout_sec": 30.0,
            "polling_lease_timeout_sec": 120.0,
        }
        result = await poller.result()
        # Kept, for whoever lost the reply.
        assert await poller.result() == result
    assert result["status"] == "success"
    assert result["rollout_id"] == "r"
    assert (result["err_message"], result["err_category"]) == (None, None)
    assert result["sample"]["reward"] == 1.0
    assert "trajectory_messages" not in result["sample"]
    assert poller.site.receiver.posts == []


async def test_a_poll_is_held_until_the_status_changes(journal: Path | None) -> None:
    run = Counting(asyncio.Event())
    backend = local(run=run, workflow_config=limited(1))
    async with polling(backend, journal=journal) as poller:
        await poller.start("a")
        await run.started.wait()
        assert (await poller.start("b")).body["status"] == "queued"
        held = asyncio.create_task(poller.poll("b"))
        assert run.go_on is not None
        run.go_on.set()
        assert (await held).body["status"] in ("running", "grading", "success")
        assert (await poller.result("b"))["sample"]["reward"] == 1.0


async def test_a_poll_is_held_for_so_long_and_says_where_the_rollout_is(
    journal: Path | None,
) -> None:
    run = Counting(asyncio.Event())
    terms = LeaseTerms(result_wait_timeout_sec=0.01)
    async with polling(local(run=run), journal=journal, terms=terms) as poller:
        await poller.start()
        await run.started.wait()
        assert (await poller.poll()).body == {"rollout_id": "r", "status": "running"}
        assert run.go_on is not None
        run.go_on.set()
        await poller.result()


async def test_the_lease_opens_its_own_rollout_alone(journal: Path | None) -> None:
    async with polling(journal=journal) as poller:
        await poller.start("a")
        await poller.start("b")
        assert (await poller.poll("a", token=poller.tokens["b"])).status == 403
        assert (await poller.poll("a", token="ünknown")).status == 403
        assert (await poller.site.send("GET", "/rollout/a/result")).status == 422
        assert (await poller.poll("nobody", token="x")).status == 404
        await poller.site.start("c")
        assert (await poller.poll("c", token=poller.tokens["a"])).status == 404
        await poller.site.answers("c")


async def test_the_same_request_gets_the_same_lease(journal: Path | None) -> None:
    run = Counting()
    async with polling(local(run=run), journal=journal) as poller:
        first = await poller.start()
        second = await poller.start()
        await poller.result()
        third = await poller.start()
        tokens = {said.body["polling_lease_token"] for said in (first, second, third)}
        assert len(tokens) == 1
        assert third.body["status"] == "success"
        assert (await poller.start(label="other content")).status == 409
    assert run.runs == 1


async def test_an_id_belongs_to_the_protocol_it_came_with(journal: Path | None) -> None:
    """In both directions, while the rollout runs and when it is over."""
    run = Counting(asyncio.Event())
    async with polling(local(run=run), journal=journal) as poller:
        await poller.start("polled")
        await poller.site.start("posted")

        async def refusals() -> list[int]:
            return [
                (await poller.site.start("polled")).status,
                (await poller.start("posted")).status,
            ]

        assert await refusals() == [409, 409]
        assert run.go_on is not None
        run.go_on.set()
        await poller.result("polled")
        await poller.site.answers("posted")
        assert await refusals() == [409, 409]


@pytest.mark.parametrize("url", ["grader_callback_url", "completion_callback_url"])
async def test_who_names_a_callback_is_not_taken_for_one_who_polls(url: str) -> None:
    async with polling() as poller:
        value = "http://c" if url == "grader_callback_url" else "no-url"
        said = await poller.start(**{url: value})
        assert said.status == 422
        assert "completion_callback_url" in {problem["loc"][1] for problem in said.body["detail"]}


async def test_what_is_polled_needs_an_id() -> None:
    async with polling() as poller:
        said = await poller.start(None)
    assert said.status == 422
    assert [problem["loc"] for problem in said.body["detail"]] == [["body", "rollout_id"]]


async def test_callback_urls_that_are_null_are_none() -> None:
    body = parse_start_request(
        b'{"rollout_id": "r", "initial_messages": [], "chat_completions_url": "http://m",'
        b'"completion_callback_url": null, "grader_callback_url": null}'
    )
    assert isinstance(body, RolloutPollRequest)
    async with serving() as site:
        said = await site.send("POST", "/rollout", data=b'{"initial_messages": [')
        assert said.status == 422


async def test_nothing_is_graded_for_who_does_not_want_it(journal: Path | None) -> None:
    async with polling(journal=journal) as poller:
        await poller.start(grade=False)
        result = await poller.result()
    assert (result["status"], result["sample"]["reward"]) == ("success", None)


async def test_a_rollout_with_nothing_to_grade_by_is_a_bare_failure(journal: Path | None) -> None:
    async with polling(journal=journal) as poller:
        await poller.start(label=None)
        result = await poller.result()
    assert (result["status"], result["err_message"]) == ("failure", None)


async def test_a_failed_workflow_says_why(journal: Path | None) -> None:
    async def run(ctx: Any) -> Any:
        raise ValueError("boom")

    async with polling(local(run=run), journal=journal) as poller:
        await poller.start()
        result = await poller.result()
        status = await poller.site.status()
    assert (result["status"], result["err_message"]) == ("failure", "boom")
    assert result["err_category"] == "validation_error"
    assert result["sample"] is None
    assert (status["status"], status["err_message"]) == ("failure", "boom")


async def test_a_rollout_that_nobody_polls_ends(journal: Path | None) -> None:
    run = Counting(asyncio.Event())
    terms = LeaseTerms(result_wait_timeout_sec=0.0, polling_lease_timeout_sec=0.05)
    backend = local(run=run)
    async with polling(backend, journal=journal, terms=terms) as poller:
        await poller.start()
        while (await poller.site.status())["status"] != "failure":
            pass
        result = (await poller.poll()).body
        assert (await poller.site.status())["err_message"] == "polling lease expired"
        assert backend.capacity().running == 0
    assert (result["status"], result["err_category"]) == ("failure", "lease_expired")
    assert result["err_message"] == result["no_result"] == "polling lease expired"
    assert result["sample"] is None


class Deaf(LocalBackend):
    """A backend that does not know its rollouts when it is to cancel them."""

    async def cancel_rollouts(self, **selectors: Any) -> dict[str, CancelDisposition]:
        return {}


async def test_a_rollout_whose_backend_cannot_cancel_it_ends_too() -> None:
    run = Counting(asyncio.Event())
    terms = LeaseTerms(result_wait_timeout_sec=0.0, polling_lease_timeout_sec=0.05)
    async with polling(Deaf(workflow=workflow_of(run)), terms=terms) as poller:
        await poller.start("other")
        await poller.start()
        while (await poller.site.status())["status"] != "failure":
            pass
        assert (await poller.result())["err_category"] == "lease_expired"
        while (await poller.site.send("GET", "/health")).body["lifecycle"]["active_rollouts"]:
            pass


async def test_each_poll_renews_the_lease(journal: Path | None) -> None:
    """It outlasts its term by far while somebody asks."""
    run = Counting(asyncio.Event())
    terms = LeaseTerms(result_wait_timeout_sec=0.02, polling_lease_timeout_sec=0.5)
    loop = asyncio.get_running_loop()
    async with polling(local(run=run), journal=journal, terms=terms) as poller:
        await poller.start()
        until = loop.time() + 1.2
        while loop.time() < until:
            assert (await poller.poll()).body["status"] in ("queued", "running")
        assert run.go_on is not None
        run.go_on.set()
        assert (await poller.result())["status"] == "success"


async def test_a_cancelled_rollout_says_so(journal: Path | None) -> None:
    run = Counting(asyncio.Event())
    async with polling(local(run=run), journal=journal) as poller:
        await poller.start()
        await run.started.wait()
        await poller.site.send("POST", "/rollout/cancel", json={"ids": ["r"]})
        result = await poller.result()
    assert (result["status"], result["err_message"]) == ("cancelled", "cancelled")


async def test_results_are_kept_for_a_while(journal: Path | None) -> None:
    async with polling(journal=journal, history=History(retention_sec=0.0)) as poller:
        await poller.start()
        while (await poller.site.status())["status"] != "unknown":
            pass
        assert (await poller.poll()).status == 404
        again = await poller.start()
        assert again.status == (202 if journal is None else 410)


async def test_a_server_that_ends_takes_no_new_rollout_to_poll() -> None:
    """And a rollout that it has ends with it, and can be polled to that end."""
    run = Counting(asyncio.Event())
    limits = DrainLimits(finish_sec=0.05, cancel_sec=5.0, break_off_sec=5.0)
    app = build_app(local(run=run), drain_limits=limits)
    body = {
        "rollout_id": "r",
        "initial_messages": [],
        "chat_completions_url": "http://127.0.0.1:9/v1",
    }
    life = app.router.lifespan_context(app)
    await life.__aenter__()
    token = json.loads((await ask(app, "POST", "/rollout", body))[1])["polling_lease_token"]
    await run.started.wait()
    ending = asyncio.create_task(life.__aexit__(None, None, None))
    await asyncio.sleep(0)
    assert (await ask(app, "POST", "/rollout", {**body, "rollout_id": "other"}))[0] == 503
    assert (await ask(app, "POST", "/rollout", body))[0] == 202
    status, said = await ask(app, "GET", "/rollout/r/result", token=token)
    assert (status, json.loads(said)["status"]) == (200, "cancelled")
    await ending


async def ask(
    app: Any, method: str, path: str, body: Any = None, *, token: str | None = None
) -> tuple[int, bytes]:
    """Ask an app without a port, which one that ends has not."""
    said: dict[str, Any] = {"body": b""}

    async def receive() -> Any:
        return {"type": "http.request", "body": json.dumps(body).encode()}

    async def send(message: Any) -> None:
        said["status"] = message.get("status", said.get("status"))
        said["body"] += message.get("body", b"")

    headers = [] if token is None else [(HEADER.lower().encode(), token.encode())]
    scope = {"type": "http", "method": method, "path": path, "headers": headers}
    await app({**scope, "query_string": b"", "root_path": ""}, receive, send)
    return said["status"], said["body"]


def image_of(path: Path) -> Path:
    """The journal as a server would leave it that is killed in this moment."""
    image = path.with_name(f"image-of-{path.name}")
    with closing(sqlite3.connect(path)) as living, closing(sqlite3.connect(image)) as copy:
        living.backup(copy)
    return image


async def test_a_result_can_be_polled_at_the_next_server(tmp_path: Path) -> None:
    path = tmp_path / "server.sqlite3"
    async with polling(journal=path) as poller:
        await poller.start()
        before = await poller.result()
    async with polling(journal=path) as later:
        later.tokens = poller.tokens
        assert await later.result() == before
        assert (await later.start()).body["polling_lease_token"] == poller.tokens["r"]
        assert (await later.poll(token="other")).status == 403
        assert (await later.site.start()).status == 409


async def test_a_rollout_that_is_polled_is_no_result_after_a_crash(tmp_path: Path) -> None:
    run = Counting(asyncio.Event())
    path = tmp_path / "server.sqlite3"
    async with polling(local(run=run), journal=path) as poller:
        await poller.start()
        await run.started.wait()
        async with polling(local(run=run), journal=image_of(path)) as later:
            later.tokens = poller.tokens
            result = await later.result()
        assert run.go_on is not None
        run.go_on.set()
    assert (result["status"], result["no_result"]) == ("failure", "server_restarted")
    assert run.runs == 1


async def test_a_result_that_nobody_came_for_is_there_at_the_next_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server's own journal goes with it only when nobody waits for anything in it."""
    monkeypatch.setenv("_OSMOSIS_ROLLOUT_ARTIFACT_ROOT", str(tmp_path))
    async with polling(journal="auto") as poller:
        await poller.start()
        while (await poller.site.status())["status"] != "success":
            pass
    assert len(list((tmp_path / ".journals").glob("*.sqlite3"))) == 1
    async with polling(journal="auto") as later:
        later.tokens = poller.tokens
        assert (await later.result())["sample"]["reward"] == 1.0
    assert list((tmp_path / ".journals").glob("*.sqlite3")) == []


async def test_a_result_that_cannot_be_written_down_is_there_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(Journal):
        async def answer(self, *answers: Any) -> None:
            raise RunError("disk full")

    async with polling(journal=lock_journal(tmp_path / "j", Failing)) as poller:
        await poller.start()
        assert (await poller.result())["sample"]["reward"] == 1.0
    assert "its result is not on disk: disk full" in caplog.text


async def test_a_result_that_is_not_on_disk_yet_is_not_told(tmp_path: Path) -> None:
    """A server killed in this moment would say something else after it."""
    commit = asyncio.Event()
    writing = asyncio.Event()

    class Slow(Journal):
        async def answer(self, *answers: Any) -> None:
            writing.set()
            await commit.wait()
            await super().answer(*answers)

    terms = LeaseTerms(result_wait_timeout_sec=0.01)
    journal = lock_journal(tmp_path / "j", Slow)
    async with polling(journal=journal, terms=terms) as poller:
        await poller.start()
        await writing.wait()
        assert (await poller.poll()).body["status"] in ("running", "grading")
        commit.set()
        assert (await poller.result())["status"] == "success"


async def test_a_result_that_a_cancellation_strikes_is_told_all_the_same(tmp_path: Path) -> None:
    strikes = [1]

    class Striking(Journal):
        async def answer(self, *answers: Any) -> None:
            if strikes:
                strikes.pop()
                await backend.cancel_rollouts(all=True)
                await asyncio.sleep(0)
            await super().answer(*answers)

    backend = local()
    async with polling(backend, journal=lock_journal(tmp_path / "j", Striking)) as poller:
        await poller.start()
        result = await poller.result()
    assert result["sample"]["reward"] == 1.0


async def test_trajectory_and_reward_are_the_same_whichever_protocol_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_OSMOSIS_ROLLOUT_ARTIFACT_ROOT", str(tmp_path))

    async def run(ctx: Any) -> Any:
        if "fail" in ctx.metadata:
            raise RuntimeError("boom")
        return await answer(ctx)

    async with polling(local(run=run)) as poller:
        for case, metadata in (("right", {}), ("wrong", {"x": 1}), ("failed", {"fail": 1})):
            label = "5" if case == "wrong" else "4"
            fields = {"metadata": metadata, "label": label, "extra_fields": {"step": 3}}
            await poller.site.start(f"posted-{case}", **fields)
            await poller.start(f"polled-{case}", **fields)
            completion, grade = await poller.site.answers(f"posted-{case}")
            result = await poller.result(f"polled-{case}")
            assert result["sample"] == grade["sample"]
            last = grade if completion["status"] == "success" else completion
            for key in ("status", "err_message", "err_category", "phase", "no_result"):
                assert result[key] == last[key]
            assert (await poller.site.status(f"polled-{case}"))["reward"] == (
                await poller.site.status(f"posted-{case}")
            )["reward"]
    for case in ("right", "wrong"):
        posted, polled = (
            (tmp_path / f"{way}-{case}" / "trajectory.json").read_text().replace(way, "")
            for way in ("posted", "polled")
        )
        assert posted == polled
    assert not (tmp_path / "polled-failed" / "trajectory.json").exists()


async def test_a_lease_that_expires_when_all_is_said_changes_nothing() -> None:
    lease = Lease("r", wants_grade=False)
    await lease.take_interrupted()  # nothing was on its way
    assert lease.result is None
    await lease.take_completion(ExecutionResult(status=RolloutStatus.SUCCESS))
    before = lease.result
    await lease.expire()
    assert lease.result == before
    assert lease.ended_by_itself is None
