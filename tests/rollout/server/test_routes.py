"""Status, cancel, health, keys, and the description of it all."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from osmosis_ai.errors import ConfigError
from osmosis_ai.rollout.backend.base import Capacity, ExecutionBackend, RolloutState
from osmosis_ai.rollout.server import create_rollout_server
from osmosis_ai.rollout.types import ExecutionResult, RolloutSample, RolloutStatus
from tests.rollout.programs import limited
from tests.rollout.server.serving import Site, answer, exact, local, serving
from tests.rollout.server.test_admission import Counted


async def cancel(site: Site, **selector: Any) -> Any:
    return (await site.send("POST", "/rollout/cancel", json=selector)).body["dispositions"]


async def test_the_status_of_an_unknown_rollout_is_unknown() -> None:
    async with serving() as site:
        said = await site.send("GET", "/rollout/nobody/status")
    assert said.status == 200
    assert said.body == {
        "rollout_id": "nobody",
        "status": "unknown",
        "reward": None,
        "err_message": None,
    }


async def test_the_status_follows_the_rollout() -> None:
    run, gate = Counted(), asyncio.Event()

    async def grade(ctx: Any) -> None:
        await gate.wait()
        await exact(ctx)

    async with serving(local(run=run, grade=grade)) as site:
        await site.start()
        assert (await site.status())["status"] == "running"
        run.gate.set()
        await site.receiver.wait_for(lambda receiver: receiver.posts)
        while (await site.status())["status"] == "running":
            pass
        assert (await site.status())["status"] == "grading"
        gate.set()
        await site.answers()
        assert await site.status() == {
            "rollout_id": "r",
            "status": "success",
            "reward": 1.0,
            "err_message": None,
        }


class Plain(ExecutionBackend):
    """A backend of the least there is: no status, no cancel, no counting."""

    def __init__(self) -> None:
        self.gates = {name: asyncio.Event() for name in ("workflow", "grader", "end")}

    async def execute(self, request: Any, on_workflow: Any, on_grader: Any = None) -> None:
        await self.gates["workflow"].wait()
        sample = RolloutSample(messages=[{"role": "user", "content": "x"}], reward=0.25)
        result = ExecutionResult(status=RolloutStatus.SUCCESS, sample=sample)
        await on_workflow(result)
        await self.gates["grader"].wait()
        await on_grader(result)
        await self.gates["end"].wait()


async def test_the_server_knows_what_a_plain_backend_does_not() -> None:
    backend = Plain()
    async with serving(backend) as site:
        await site.start()
        assert (await site.status())["status"] == "running"
        assert await cancel(site, ids=["r"]) == {}
        backend.gates["workflow"].set()
        await site.receiver.wait_for(lambda receiver: receiver.posts)
        assert (await site.status())["status"] == "grading"
        backend.gates["grader"].set()
        await site.answers()
        assert (await site.status())["reward"] == 0.25
        health = (await site.send("GET", "/health")).body
        assert (health["status"], health["stopping"]) == ("ok", 0)
        backend.gates["end"].set()


async def test_a_rollout_that_the_backend_alone_knows_has_its_status() -> None:
    class Knowing(Plain):
        def rollout_status(self, rollout_id: str) -> RolloutState | None:
            return RolloutState(RolloutStatus.QUEUED)

    async with serving(Knowing()) as site:
        assert (await site.status("elsewhere"))["status"] == "queued"


@pytest.mark.parametrize(
    "selector",
    [
        {},
        {"all": False},
        {"ids": ["a"], "all": True},
        {"ids": [], "prefix": "a"},
        {"prefix": "a", "all": True},
        {"ids": None, "prefix": None, "all": None},
    ],
)
async def test_a_cancel_has_one_selector(selector: dict[str, Any]) -> None:
    async with serving() as site:
        said = await site.send("POST", "/rollout/cancel", json=selector)
    assert said.status == 422
    assert said.body == {"detail": "pass exactly one selector: ids, prefix, or all"}


@pytest.mark.parametrize(
    ("selector", "said"),
    [
        ({"ids": ["a1", "x"]}, {"a1": "cancelled_running", "x": "not_found"}),
        ({"ids": ["b1", "b1"]}, {"b1": "cancelled_queued"}),
        ({"ids": []}, {}),
        ({"prefix": "a"}, {"a1": "cancelled_running", "a2": "cancelled_running"}),
        ({"prefix": "z"}, {}),
        (
            {"all": True},
            {"a1": "cancelled_running", "a2": "cancelled_running", "b1": "cancelled_queued"},
        ),
    ],
)
async def test_a_cancel_says_what_it_did(selector: dict[str, Any], said: dict[str, str]) -> None:
    run = Counted()
    async with serving(local(run=run, workflow_config=limited(2))) as site:
        for rollout_id in ("a1", "a2", "b1"):
            await site.start(rollout_id)
        assert await cancel(site, **selector) == said
        for rollout_id in said.keys() - {"x"}:
            completion, grade = await site.answers(rollout_id)
            assert (completion["status"], completion["err_message"]) == ("cancelled", "cancelled")
            assert (grade["status"], grade["sample"]) == ("failure", None)
            assert (await site.status(rollout_id))["status"] == "cancelled"
        run.gate.set()


async def test_a_rollout_that_is_over_is_not_cancelled() -> None:
    async with serving() as site:
        await site.start()
        await site.answers()
        assert await cancel(site, ids=["r"]) == {"r": "not_found"}
        assert (await site.status())["status"] == "success"


async def test_code_that_does_not_end_is_stopping() -> None:
    """Cancelling is asking: the slot is not free before the code has ended."""
    gate = asyncio.Event()

    async def stubborn(ctx: Any) -> Any:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await gate.wait()
            raise

    async with serving(local(run=stubborn)) as site:
        await site.start()
        assert await cancel(site, all=True) == {"r": "cancelled_running"}
        assert (await site.send("GET", "/health")).body["stopping"] == 1
        assert site.receiver.posts == []
        gate.set()
        completion, _ = await site.answers()
    assert completion["status"] == "cancelled"


async def test_health_names_the_instance_that_was_started(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as site:
        assert "instance_id" not in (await site.send("GET", "/health")).body
    monkeypatch.setenv("_OSMOSIS_ROLLOUT_INSTANCE_ID", "i-7")
    async with serving() as site:
        monkeypatch.delenv("_OSMOSIS_ROLLOUT_INSTANCE_ID")
        assert (await site.send("GET", "/health")).body["instance_id"] == "i-7"


async def test_health_is_json_whatever_a_backend_says() -> None:
    class Odd(Plain):
        def health(self) -> dict[str, Any]:
            return {"status": "ok", "load": float("nan"), "gpu": object()}

        def capacity(self) -> Capacity:
            return Capacity(max=1, running=1, queued=0, stopping=1)

    async with serving(Odd()) as site:
        health = (await site.send("GET", "/health")).body
    assert (health["status"], health["stopping"], health["gpu"]) == ("ok", 1, "<object>")


ROUTES = [
    ("POST", "/rollout"),
    ("POST", "/rollout/cancel"),
    ("GET", "/rollout/r/status"),
    ("GET", "/openapi.json"),
    ("GET", "/docs"),
    ("GET", "/nowhere"),
]


@pytest.mark.parametrize(("method", "path"), ROUTES)
@pytest.mark.parametrize(
    "header", [None, "Bearer wrong", "Bearer", "Basic server-key", "server-key", "Bearer sérver"]
)
async def test_without_the_key_nothing_is_answered(
    method: str, path: str, header: str | None
) -> None:
    headers = {} if header is None else {"Authorization": header}
    async with serving(api_key="server-key") as site:
        said = await site.send(method, path, headers=headers, json=site.body())
        assert said.status == 401
        assert said.headers["WWW-Authenticate"] == "Bearer"
        assert "api_key" in said.body["detail"]
    assert site.receiver.posts == []


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER "])
async def test_with_the_key_everything_is(scheme: str) -> None:
    headers = {"Authorization": f"{scheme} server-kéy"}
    async with serving(api_key="server-kéy") as site:
        said = await site.send("POST", "/rollout", headers=headers, json=site.body())
        assert said.status == 202
        await site.answers()
        assert (await site.send("GET", "/docs", headers=headers)).status == 200


async def test_health_needs_no_key() -> None:
    async with serving(api_key="server-key") as site:
        assert (await site.send("GET", "/health")).status == 200


def test_an_empty_key_is_refused() -> None:
    """It would be a server that lets in who sends nothing."""
    with pytest.raises(ConfigError, match="api_key is empty"):
        create_rollout_server(backend=local(), api_key="")


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/rollout"), ("PUT", "/rollout"), ("GET", "/rollout/cancel")]
)
async def test_another_method_is_not_allowed(method: str, path: str) -> None:
    async with serving() as site:
        said = await site.send(method, path)
    assert (said.status, said.headers["Allow"]) == (405, "POST")


async def test_a_body_may_come_in_pieces() -> None:
    async with serving() as site:
        body = json.dumps(site.body()).encode()

        async def pieces() -> Any:
            for start in range(0, len(body), 100):
                yield body[start : start + 100]

        assert (await site.send("POST", "/rollout", data=pieces())).status == 202
        await site.answers()


async def test_a_client_that_goes_away_starts_nothing() -> None:
    run = Counted()
    async with serving(local(run=run)) as site:
        port = int(site.url.rpartition(":")[2])
        for body in (b"", b'{"initial_messages": '):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"POST /rollout HTTP/1.1\r\nHost: x\r\nContent-Length: 999\r\n\r\n" + body)
            await writer.drain()
            writer.close()
            await writer.wait_closed()
        assert (await site.send("GET", "/health")).body["lifecycle"]["active_rollouts"] == 0
    assert run.runs == 0


def test_the_description_says_what_is_sent_and_answered() -> None:
    document = create_rollout_server(backend=local()).openapi()
    start = document["paths"]["/rollout"]["post"]
    schema = start["requestBody"]["content"]["application/json"]["schema"]
    assert schema["oneOf"] == [
        {"$ref": f"#/components/schemas/{name}"}
        for name in ("RolloutInitRequest", "RolloutPollRequest")
    ]
    assert "anyOf" not in schema
    assert set(start["responses"]) == {"202", "409", "410", "413", "422", "429", "503"}
    fields = document["components"]["schemas"]["RolloutInitRequest"]
    assert set(fields["required"]) == {
        "initial_messages",
        "chat_completions_url",
        "completion_callback_url",
    }
    cancel = document["paths"]["/rollout/cancel"]["post"]
    assert set(cancel["responses"]) == {"200", "413", "422"}
    assert "security" not in start
    assert set(document["paths"]) == {
        "/rollout",
        "/rollout/cancel",
        "/rollout/{rollout_id}/result",
        "/rollout/{rollout_id}/status",
        "/health",
    }


def test_the_description_says_where_a_key_is_needed() -> None:
    document = create_rollout_server(backend=local(), api_key="k").openapi()
    assert document["components"]["securitySchemes"]["HTTPBearer"]["scheme"] == "bearer"
    for path, methods in document["paths"].items():
        for operation in methods.values():
            assert ("security" in operation) == (path != "/health")
            assert ("401" in operation["responses"]) == (path != "/health")


async def test_more_work_can_be_put_around_the_app() -> None:
    """It is a FastAPI app like any other."""
    app = create_rollout_server(backend=local(run=answer))

    @app.get("/mine")
    async def mine() -> str:
        return "mine"

    assert "/mine" in app.openapi()["paths"]
