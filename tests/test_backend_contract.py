"""LocalBackend keeps every clause of the backend contract."""

from __future__ import annotations

from typing import Any

from osmosis_ai.rollout.backend.local import LocalBackend
from osmosis_ai.testing.backend_contract import BackendContract


class TestLocalBackend(BackendContract):
    can_enforce_timeouts = True

    def make_backend(self, **wiring: Any) -> LocalBackend:
        return LocalBackend(**wiring)
