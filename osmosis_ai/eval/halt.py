"""Whether a failed model call means that no further rollout can succeed."""

from __future__ import annotations

import asyncio

from osmosis_ai.errors import ModelError
from osmosis_ai.rollout.driver.base import RolloutDriver
from osmosis_ai.rollout.types import ModelUsage

REJECTED = frozenset({401, 403})
"""How a model says that it does not take the key."""

_PASSING = frozenset({408, 429})


class ModelWatch:
    """Looks at how the model calls of rollouts ended, and asks the model itself where that tells.

    One rollout's 403 may be a filter that refused its prompt, and one broken connection a moment's
    trouble: only what one plain question meets too ends a run. Without `probes` nothing is asked,
    and a rejected key ends it by itself.
    """

    def __init__(self, driver: RolloutDriver, *, probes: bool) -> None:
        self._driver = driver
        self._probes = probes
        self._asking = asyncio.Lock()
        self._asked = 0
        self._found: ModelError | None = None

    async def find_end(self, usage: ModelUsage | None) -> ModelError | None:
        """Why no further rollout can succeed, as far as the calls of this one tell."""
        if usage is None or usage.last_error is None:
            return None
        status = usage.last_failure_status
        if not _may_last(status):
            return None
        if self._probes:
            return await self._ask()
        if status in REJECTED:
            return ModelError(f"the model rejects the key: {usage.last_error}", status_code=status)
        return None

    async def _ask(self) -> ModelError | None:
        asked = self._asked
        async with self._asking:
            # Rollouts that failed together share one answer.
            if self._asked == asked:
                self._found = await self._probe()
                self._asked += 1
            return self._found

    async def _probe(self) -> ModelError | None:
        try:
            await self._driver.probe()
        except ModelError as error:
            return error if _may_last(error.status_code) else None
        return None


def _may_last(status: int | None) -> bool:
    """Whether trouble of this kind stays until somebody does something; None is no answer."""
    return status is None or (status < 500 and status not in _PASSING)
