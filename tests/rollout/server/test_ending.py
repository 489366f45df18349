"""Failing backends, the archive, and the end of a server: no rollout goes without its answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from osmosis_ai.rollout.backend.base import CancelDisposition, ExecutionBackend
from osmosis_ai.rollout.http import HttpClient
from osmosis_ai.rollout.protocol import RolloutInitRequest
from osmosis_ai.rollout.server.app import build_app
from osmosis_ai.rollout.server.delivery import Delivery
from osmosis_ai.rollout.server.jobs import Admission, DrainLimits, Jobs
from osmosis_ai.rollout.types import ExecutionResult, RolloutSample, RolloutStatus
from tests.rollout.receiver import Hang, receiving, reply
from tests.rollout.server.serving import SHORT, Site, answer, exact, local, no_sleep, serving

SAMPLE = RolloutSample(messages=[{"role": "user", "content": "x"}])
DONE = ExecutionResult(status=RolloutStatus.SUCCESS, sample=SAMPLE, phase="workflow")


class Scripted(ExecutionBackend):
    """A backend that gives what it is told and then ends, or fails."""

    def __init__(self, *steps: str, grades: ExecutionResult = DONE) -> None:
        self.steps = steps
        self.grades = grades
        self.asked_for_grade: bool | None = None

    async def execute(self, request: Any, on_workflow: Any, on_grader: Any = None) -> None:
        self.asked_for_grade = on_grader is not None
        for step in self.steps:
            if step == "workflow":
                await on_workflow(DONE)
            elif step == "grader":
                await on_grader(self.grades)
            else:
                raise RuntimeError(step)


async def test_a_backend_that_fails_before_its_answers_has_them_given(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving(Scripted("broken")) as site:
        await site.start()
        completion, grade = await site.answers()
        status = await site.status()
    assert (completion["status"], completion["err_category"]) == ("failure", None)
    assert completion["err_message"] == "Internal server error"
    assert "RuntimeError" in completion["no_result"]
    assert (grade["status"], grade["sample"], grade["err_message"]) == ("failure", None, None)
    assert "RuntimeError" in grade["no_result"]
    assert (status["status"], status["err_message"]) == ("failure", "Internal server error")
    assert "RuntimeError: broken" in caplog.text


async def test_a_backend_that_fails_gives_the_answers_that_were_asked_for() -> None:
    async with serving(Scripted("broken")) as site:
        await site.start(grader_callback_url=None)
    assert [post.body["status"] for post in site.receiver.posts] == ["failure"]


async def test_a_backend_that_fails_between_its_answers_has_the_second_given() -> None:
    async with serving(Scripted("workflow", "broken")) as site:
        await site.start()
        completion, grade = await site.answers()
    assert completion["status"] == "success"
    assert (grade["status"], grade["sample"]) == ("failure", None)
    assert [post.path for post in site.receiver.posts] == ["/r/completion", "/r/grader"]


async def test_a_backend_that_fails_after_its_answers_changes_neither() -> None:
    async with serving(Scripted("workflow", "grader", "broken")) as site:
        await site.start()
        _, grade = await site.answers()
    assert grade["status"] == "success"
    assert len(site.receiver.posts) == 2


@pytest.mark.parametrize("steps", [(), ("workflow",)])
async def test_a_backend_that_says_nothing_has_it_said(steps: tuple[str, ...]) -> None:
    async with serving(Scripted(*steps)) as site:
        await site.start()
        completion, grade = await site.answers()
    assert completion["status"] == ("success" if steps else "failure")
    assert "ended without an answer" in grade["no_result"]


async def test_no_answer_is_given_twice(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(Scripted("workflow", "workflow", "grader", "grader")) as site:
        await site.start()
        await site.answers()
        while (await site.status())["status"] != "success":
            pass
    assert [post.path for post in site.receiver.posts] == ["/r/completion", "/r/grader"]
    assert "a second completion is dropped" in caplog.text
    assert "a second grader answer is dropped" in caplog.text


@pytest.mark.parametrize(("captures", "asked"), [(False, False), (True, True)])
async def test_a_backend_may_want_its_grade_captured(captures: bool, asked: bool) -> None:
    class Capturing(Scripted):
        capture_final_result = captures

    backend = Capturing("workflow", *(["grader"] if captures else []))
    async with serving(backend) as site:
        await site.start(grader_callback_url=None)
        await site.receiver.wait_for(lambda receiver: receiver.posts)
    assert backend.asked_for_grade is asked
    assert [post.path for post in site.receiver.posts] == ["/r/completion"]


async def test_a_captured_grade_goes_to_who_asks_for_it_in_time() -> None:
    class Capturing(Scripted):
        capture_final_result = True

        async def execute(self, *args: Any) -> None:
            await super().execute(*args)
            graded.set()
            await gate.wait()

    gate, graded = asyncio.Event(), asyncio.Event()
    async with serving(Capturing("workflow", "grader")) as site:
        await site.start(grader_callback_url=None)
        await graded.wait()
        await site.start()
        gate.set()
        _, grade = await site.answers()
    assert (grade["status"], grade["no_result"]) == ("success", None)


def written(root: Path, name: str = "trajectory.json", rollout_id: str = "r") -> Any:
    """What a file of the archive says, or None where there is none."""
    file = root / rollout_id / name
    return json.loads(file.read_bytes()) if file.exists() else None


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("_OSMOSIS_ROLLOUT_ARTIFACT_ROOT", str(tmp_path))
    return tmp_path


async def test_a_rollout_is_archived_as_it_was_before_grading(root: Path) -> None:
    async def meddle(ctx: Any) -> None:
        ctx.sample.messages[-1]["content"] = "changed by the grader"
        ctx.sample.metrics["seen"] = 1
        ctx.set_reward(0.5)

    async with serving(local(grade=meddle)) as site:
        await site.start(extra_fields={"step": 3}, metadata={"row": 1})
        await site.answers()
    document = written(root)
    assert [step["message"] for step in document["steps"]] == ["2 + 2", "4"]
    assert document["extra"]["osmosis"] == {
        "rollout_id": "r",
        "label": "4",
        "reward": 0.5,
        "sample_metrics": {"seen": 1},
        "request_metadata": {"row": 1},
        "request_extra_fields": {"step": 3},
    }


async def test_the_archive_keeps_the_reward_that_the_wire_does_not(root: Path) -> None:
    async def remove(ctx: Any) -> None:
        await exact(ctx)
        ctx.sample.remove_sample = True

    async with serving(local(grade=remove)) as site:
        await site.start()
        _, grade = await site.answers()
    assert grade["sample"]["reward"] is None
    assert written(root)["extra"]["osmosis"]["reward"] == 1.0


async def test_a_failed_grade_is_archived_with_its_sample(root: Path) -> None:
    async def fail(ctx: Any) -> None:
        raise ValueError("boom")

    async with serving(local(grade=fail)) as site:
        await site.start()
        await site.answers()
    assert "reward" not in written(root)["extra"]["osmosis"]


async def test_a_grade_without_a_sample_does_not_cost_the_workflows(root: Path) -> None:
    bare = ExecutionResult(status=RolloutStatus.FAILURE, extra_fields={"from": "grader"})
    async with serving(Scripted("workflow", "grader", grades=bare)) as site:
        await site.start()
        await site.answers()
    assert written(root)["steps"][0]["message"] == "x"
    assert written(root, "diagnostics.json") == {"from": "grader"}


@pytest.mark.parametrize("extra_fields", [None, {}])
async def test_diagnostics_of_the_workflow_are_kept(root: Path, extra_fields: Any) -> None:
    class Diagnosing(ExecutionBackend):
        async def execute(self, request: Any, on_workflow: Any, on_grader: Any = None) -> None:
            await on_workflow(DONE.model_copy(update={"extra_fields": {"from": "workflow"}}))
            await on_grader(DONE.model_copy(update={"extra_fields": extra_fields}))

    async with serving(Diagnosing()) as site:
        await site.start()
        await site.answers()
    assert written(root, "diagnostics.json") == {"from": "workflow"}


async def test_a_failed_rollout_leaves_no_trajectory(root: Path) -> None:
    async with serving(Scripted("broken")) as site:
        await site.start()
        await site.answers()
    assert written(root) is None


async def test_a_home_that_cannot_be_written_costs_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    async with serving() as site:
        await site.start()
        _, grade = await site.answers()
    assert grade["sample"]["reward"] == 1.0


class Waiting:
    """A workflow that ends when it is told to, or when it is cancelled."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.started = asyncio.Event()

    async def __call__(self, ctx: Any) -> Any:
        self.started.set()
        await self.gate.wait()
        return await answer(ctx)


async def test_a_server_that_ends_lets_rollouts_end() -> None:
    run = Waiting()
    async with serving(local(run=run)) as site:
        await site.start()
        await run.started.wait()
        asyncio.get_running_loop().call_soon(run.gate.set)
    assert [post.body["status"] for post in site.receiver.posts] == ["success", "success"]


async def test_a_server_that_ends_cancels_what_does_not_and_says_so() -> None:
    run = Waiting()
    async with serving(local(run=run), drain_limits=SHORT) as site:
        await site.start()
        await run.started.wait()
    completion, grade = (post.body for post in site.receiver.posts)
    assert completion["status"] == "cancelled"
    assert (grade["status"], grade["sample"]) == ("failure", None)


async def test_a_backend_that_cannot_cancel_has_its_rollouts_cancelled() -> None:
    class Stuck(ExecutionBackend):
        async def execute(self, request: Any, on_workflow: Any, on_grader: Any = None) -> None:
            if request.id == "half":
                await on_workflow(DONE)
            await asyncio.Event().wait()

    async with serving(Stuck(), drain_limits=SHORT) as site:
        await site.start("r")
        await site.start("half")
        await site.receiver.wait_for(lambda receiver: receiver.posts)
    said = {post.path: post.body["status"] for post in site.receiver.posts}
    assert said == {
        "/r/completion": "cancelled",
        "/r/grader": "failure",
        "/half/completion": "success",
        "/half/grader": "failure",
    }


async def test_a_backend_that_fails_to_cancel_has_its_rollouts_cancelled(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Refusing(ExecutionBackend):
        async def execute(self, request: Any, on_workflow: Any, on_grader: Any = None) -> None:
            await asyncio.Event().wait()

        async def cancel_rollouts(self, **selector: Any) -> dict[str, CancelDisposition]:
            raise RuntimeError("no")

    async with serving(Refusing(), drain_limits=SHORT) as site:
        await site.start()
    assert len(site.receiver.posts) == 2
    assert "failed to cancel" in caplog.text


async def test_an_answer_under_way_is_sent_again_when_its_rollout_is_broken_off() -> None:
    class Unheard(ExecutionBackend):
        async def execute(self, request: Any, on_workflow: Any, on_grader: Any = None) -> None:
            await on_workflow(DONE)

    async with serving(Unheard(), Hang, drain_limits=SHORT) as site:
        await site.start()
        await site.receiver.wait_for(lambda receiver: receiver.posts)
    statuses = [(post.path, post.body["status"]) for post in site.receiver.posts]
    assert statuses == [
        ("/r/completion", "success"),
        ("/r/completion", "success"),
        ("/r/grader", "failure"),
    ]


async def test_code_that_ignores_everything_does_not_hold_the_server_for_ever(
    caplog: pytest.LogCaptureFixture,
) -> None:
    gate = asyncio.Event()

    async def stubborn(ctx: Any) -> Any:
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                pass

    limits = DrainLimits(finish_sec=0.01, cancel_sec=0.01, break_off_sec=0.01)
    async with serving(local(run=stubborn), drain_limits=limits) as site:
        await site.start()
    assert "rollout r: still not over" in caplog.text
    gate.set()
    await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()})


async def posted(app: FastAPI, body: dict[str, Any]) -> tuple[int, dict[bytes, bytes]]:
    """Status and headers of a request that reaches an app no matter what its server does."""
    said: dict[str, Any] = {}

    async def receive() -> Any:
        return {"type": "http.request", "body": json.dumps(body).encode()}

    async def send(message: Any) -> None:
        said.update(message)

    scope = {"type": "http", "method": "POST", "path": "/rollout", "headers": []}
    await app({**scope, "query_string": b"", "root_path": ""}, receive, send)
    return said["status"], dict(said["headers"])


async def test_a_server_that_ends_takes_no_new_rollouts_but_knows_the_old() -> None:
    run = Waiting()
    app = build_app(local(run=run), client=HttpClient(sleep=no_sleep))
    async with receiving() as receiver:
        site = Site("", receiver=receiver, session=None)  # type: ignore[arg-type]
        life = app.router.lifespan_context(app)
        await life.__aenter__()
        assert (await posted(app, site.body()))[0] == 202
        await run.started.wait()
        ending = asyncio.create_task(life.__aexit__(None, None, None))
        await asyncio.sleep(0)
        status, headers = await posted(app, site.body("other"))
        assert (status, headers[b"retry-after"]) == (503, b"5")
        assert (await posted(app, site.body()))[0] == 202
        run.gate.set()
        await ending
        assert [post.path for post in receiver.posts] == ["/r/completion", "/r/grader"]


class Broken(Delivery):
    """A delivery with a fault of ours in it."""

    async def deliver(self, mailbox: Any, letter: Any, body: bytes) -> None:
        raise RuntimeError("a fault of ours")


async def test_a_fault_of_ours_is_logged_and_stays_in_its_rollout(
    caplog: pytest.LogCaptureFixture,
) -> None:
    jobs = Jobs(local(), Broken(HttpClient()))
    async with receiving() as receiver:
        site = Site("", receiver=receiver, session=None)  # type: ignore[arg-type]
        body = RolloutInitRequest.model_validate(site.body())
        assert await jobs.admit(body) is Admission.ACCEPTED
        await jobs.drain(SHORT)
    assert "a rollout's task failed" in caplog.text
    assert "a fault of ours" in caplog.text


async def test_an_answer_that_is_sent_again_does_not_hold_the_server_for_ever() -> None:
    limits = DrainLimits(finish_sec=0.01, cancel_sec=0.01, break_off_sec=5)
    async with serving(None, reply(404), reply(200), Hang, drain_limits=limits) as site:
        await site.start()
        await site.answers()
        await site.start()
        await site.receiver.wait_for(lambda receiver: len(receiver.posts) == 3)


@pytest.mark.parametrize("yields", [None, {"db": 1}])
async def test_the_callers_lifespan_is_around_the_servers(
    yields: Mapping[str, Any] | None,
) -> None:
    said: list[str] = []

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[Any]:
        said.append("begin")
        yield yields
        said.append(f"end after {len(site.receiver.posts)} answers")

    class Closing(Scripted):
        async def shutdown(self) -> None:
            said.append("backend ends")

    async with serving(Closing("workflow", "grader"), lifespan=lifespan) as site:
        await site.start()
    assert said == ["begin", "backend ends", "end after 2 answers"]
