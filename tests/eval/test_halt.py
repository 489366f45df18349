"""When the model is gone or rejects the key, the run ends: no rollout is thrown after another."""

from __future__ import annotations

import asyncio

import pytest

from osmosis_ai.errors import ModelError
from osmosis_ai.eval.halt import ModelWatch
from osmosis_ai.rollout.types import ModelUsage
from tests.eval.workspace import FunctionDriver


def usage(status: int | None, error: str | None = "it said no") -> ModelUsage:
    return ModelUsage(calls=1, failed_calls=1, last_error=error, last_failure_status=status)


async def found(seen: ModelUsage | None, driver: FunctionDriver, *, probes: bool = True) -> object:
    return await ModelWatch(driver, probes=probes).find_end(seen)


@pytest.mark.parametrize("status", [None, 401, 402, 403, 404, 301])
async def test_what_a_plain_question_meets_too_ends_the_run(status: int | None) -> None:
    gone = ModelError("gone", status_code=status)
    assert await found(usage(status), FunctionDriver(probe_error=gone)) is gone


@pytest.mark.parametrize("status", [None, 401, 403, 404])
async def test_what_one_rollout_alone_meets_does_not(status: int | None) -> None:
    """A filter answers 403 to one prompt; a connection breaks once."""
    driver = FunctionDriver()
    assert await found(usage(status), driver) is None
    assert driver.probes == 1


@pytest.mark.parametrize("status", [408, 429, 500, 503])
async def test_what_passes_does_not_end_a_run(status: int) -> None:
    driver = FunctionDriver(probe_error=ModelError("gone"))
    assert await found(usage(status), driver) is None
    assert driver.probes == 0
    passing = FunctionDriver(probe_error=ModelError("busy", status_code=status))
    assert await found(usage(None), passing) is None


async def test_a_call_that_was_answered_tells_nothing() -> None:
    driver = FunctionDriver(probe_error=ModelError("gone"))
    assert await found(usage(None, error=None), driver) is None
    assert await found(None, driver) is None
    assert driver.probes == 0


async def test_without_probes_a_rejected_key_alone_ends_the_run() -> None:
    driver = FunctionDriver(probe_error=ModelError("asked"))
    assert "rejects the key: it said no" in str(await found(usage(401), driver, probes=False))
    assert await found(usage(None), driver, probes=False) is None
    assert driver.probes == 0


async def test_rollouts_that_fail_together_share_one_question() -> None:
    driver = FunctionDriver(probe_error=ModelError("gone"), gate=asyncio.Event())
    watch = ModelWatch(driver, probes=True)
    asking = [asyncio.create_task(watch.find_end(usage(None))) for _ in range(5)]
    await asyncio.sleep(0)
    assert driver.gate is not None
    driver.gate.set()
    assert [str(end) for end in await asyncio.gather(*asking)] == ["gone"] * 5
    assert driver.probes == 1
    await watch.find_end(usage(None))
    assert driver.probes == 2
