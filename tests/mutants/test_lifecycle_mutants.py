"""The life-cycle suite rejects every broken place, and leaves nothing unwatched."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.rollout.backend.base import ExecutionBackend
from osmosis_ai.testing.lifecycle.place import Place
from osmosis_ai.testing.lifecycle_contract import LifecycleContract
from tests.mutants.lives import LIFE_MUTANTS, LifeMutant, WrappedPlace
from tests.mutants.plain import PlainBackend
from tests.mutants.play import play, suite_tests


class TestWrappedPlace(LifecycleContract):
    """What the mutants are made from is whole: else they would prove nothing."""

    place: type[WrappedPlace] = WrappedPlace

    def make_backend(self, **wiring: Any) -> PlainBackend:
        return PlainBackend(**wiring)

    @asynccontextmanager
    async def open_place(
        self, backend: ExecutionBackend, *, root: Path, **given: Any
    ) -> AsyncIterator[Place]:
        async with super().open_place(backend, root=root, **given) as inner:
            yield self.place(inner)


class TestWrappedPlaceThroughCallbacks(TestWrappedPlace):
    reached_by = "callback"


class TestWrappedPlaceThroughTheLongPoll(TestWrappedPlace):
    reached_by = "poll"


def suite_for(mutant: LifeMutant) -> LifecycleContract:
    class Suite(TestWrappedPlace):
        place = mutant.place
        reached_by = mutant.reach
        patience_sec = mutant.patience_sec

    return Suite()


@pytest.mark.parametrize("mutant", LIFE_MUTANTS, ids=[mutant.name for mutant in LIFE_MUTANTS])
def test_the_suite_rejects_the_mutant(mutant: LifeMutant, tmp_path: Path) -> None:
    """Each test that is named for it objects."""
    suite = suite_for(mutant)
    spared = [name for name in mutant.tests if not play(suite, name, tmp_path)]
    assert spared == [], "these tests let the mutant pass"


def test_every_test_of_the_suite_rejects_some_mutant() -> None:
    """A test that never fails holds nobody to anything."""
    rejecting = {name for mutant in LIFE_MUTANTS for name in mutant.tests}
    assert sorted(rejecting) == suite_tests(LifecycleContract)
