"""What the server says of itself holds, and no request makes it fail."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

pytest.importorskip("schemathesis", reason="runs in the newest environment alone")

import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import response_schema_conformance

from osmosis_ai.rollout.server import create_rollout_server
from tests.rollout.server.serving import listening, local

API_KEY = "the-servers-key"
CALLBACKS = ("completion_callback_url", "grader_callback_url")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server in a thread of its own: the client of these tests blocks."""
    started: list[str] = []
    is_up, may_end = threading.Event(), threading.Event()

    async def serve() -> None:
        app = create_rollout_server(backend=local(), configure_logging=False, api_key=API_KEY)
        async with listening(app) as address:
            started.append(address)
            is_up.set()
            await asyncio.to_thread(may_end.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert is_up.wait(30)
    yield started[0]
    may_end.set()
    thread.join()


OPERATIONS = [
    "POST /rollout",
    "POST /rollout/cancel",
    "GET /rollout/{rollout_id}/result",
    "GET /rollout/{rollout_id}/status",
    "GET /health",
]


@pytest.mark.parametrize("label", OPERATIONS)
def test_no_request_makes_the_server_fail(label: str, url: str) -> None:
    described = schemathesis.openapi.from_url(f"{url}/openapi.json", headers=_key())
    operations = {one.ok().label: one.ok() for one in described.get_all_operations()}
    assert set(operations) == set(OPERATIONS)

    @settings(max_examples=60, suppress_health_check=[HealthCheck.filter_too_much])
    @given(case=operations[label].as_strategy())
    def send(case: schemathesis.Case) -> None:
        if isinstance(case.body, dict):
            # Answers go nowhere but to this machine, whatever was made up.
            for name in CALLBACKS:
                if str(case.body.get(name)).startswith("http"):
                    case.body[name] = f"{url}/nobody"
        case.call_and_validate(
            headers=_key(), checks=[not_a_server_error, response_schema_conformance]
        )

    send()


def _key() -> dict[str, str]:
    return {"Authorization": f"Bearer {API_KEY}"}
