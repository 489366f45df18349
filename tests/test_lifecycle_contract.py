"""One life of a rollout: LocalBackend directly, through callbacks, and through the long poll."""

from __future__ import annotations

from typing import Any

from osmosis_ai.rollout.backend.local import LocalBackend
from osmosis_ai.testing.lifecycle_contract import LifecycleContract


class TestLocalBackend(LifecycleContract):
    def make_backend(self, **wiring: Any) -> LocalBackend:
        return LocalBackend(**wiring)


class TestLocalBackendThroughCallbacks(TestLocalBackend):
    reached_by = "callback"


class TestLocalBackendThroughTheLongPoll(TestLocalBackend):
    reached_by = "poll"
