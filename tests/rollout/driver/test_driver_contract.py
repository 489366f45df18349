"""Every driver keeps the driver contract."""

from __future__ import annotations

from osmosis_ai.testing.driver_contract import DriverContract


class TestInProcessDriver(DriverContract):
    driver = "in-process"
