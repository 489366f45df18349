"""The process driver keeps the driver contract, on a server that it starts and stops."""

from __future__ import annotations

from tests.rollout.driver.remote_contract import RemoteDriverContract


class TestProcessDriver(RemoteDriverContract):
    driver = "process"
