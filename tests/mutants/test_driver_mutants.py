"""The driver contract rejects every broken driver, and leaves nothing unwatched."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.rollout.driver.base import RolloutDriver
from osmosis_ai.testing.driver_contract import DriverContract
from tests.mutants.drivers import DRIVER_MUTANTS, DriverMutant, WrappedDriver
from tests.mutants.play import play, suite_tests


class TestWrappedDriver(DriverContract):
    """What the mutants are made from is whole: else they would prove nothing."""

    def open_driver(self, **given: Any) -> AbstractAsyncContextManager[RolloutDriver]:
        return WrappedDriver.open(**given)


def suite_for(mutant: DriverMutant) -> DriverContract:
    class Suite(DriverContract):
        patience_sec = mutant.patience_sec

        def open_driver(self, **given: Any) -> AbstractAsyncContextManager[RolloutDriver]:
            return mutant.driver.open(**given)

    return Suite()


@pytest.mark.parametrize(
    "mutant", DRIVER_MUTANTS, ids=[mutant.driver.__name__ for mutant in DRIVER_MUTANTS]
)
def test_the_suite_rejects_the_mutant(mutant: DriverMutant, tmp_path: Path) -> None:
    """Each test that is named for it objects."""
    suite = suite_for(mutant)
    spared = [name for name in mutant.tests if not play(suite, name, tmp_path)]
    assert spared == [], "these tests let the mutant pass"


def test_every_test_of_the_suite_rejects_some_mutant() -> None:
    """A test that never fails holds nobody to anything."""
    rejecting = {name for mutant in DRIVER_MUTANTS for name in mutant.tests}
    assert sorted(rejecting) == suite_tests(DriverContract)
