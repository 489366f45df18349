"""The life of a rollout server: what it owes is taken over, rollouts end, answers are given."""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

from fastapi import FastAPI

from osmosis_ai.errors import RunError
from osmosis_ai.rollout.artifacts import artifact_root
from osmosis_ai.rollout.backend.base import ExecutionBackend
from osmosis_ai.rollout.descriptors import raise_descriptor_limit
from osmosis_ai.rollout.garbage import patient_collector
from osmosis_ai.rollout.server.delivery import Delivery
from osmosis_ai.rollout.server.jobs import DrainLimits, Jobs
from osmosis_ai.rollout.server.journal import (
    JOURNAL_FOLDER,
    Journal,
    open_journal,
)
from osmosis_ai.rollout.server.restart import open_new_journal
from osmosis_ai.rollout.server.vitals import Vitals

logger = logging.getLogger(__name__)

JOURNAL_VARIABLE = "_OSMOSIS_ROLLOUT_JOURNAL"
"""`off` in it stands for `journal=None` where the server was asked for "auto"."""

Lifespan: TypeAlias = (
    Callable[[FastAPI], AbstractAsyncContextManager[None]]
    | Callable[[FastAPI], AbstractAsyncContextManager[Mapping[str, Any]]]
)
"""What runs around the app's life; a mapping it yields is the requests' `state`."""

JournalChoice: TypeAlias = str | os.PathLike[str] | Journal | None
"""Where a journal is: "auto", a file, one that is open already, or nowhere."""


def server_lifespan(
    backend: ExecutionBackend,
    jobs: Jobs,
    delivery: Delivery,
    vitals: Vitals,
    *,
    outer: Lifespan | None,
    drain_limits: DrainLimits,
    journal: JournalChoice,
) -> Lifespan:
    """The caller's lifespan around our own, which lets no rollout go without its answers."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[Any]:
        async with (outer or _nothing)(app) as state, vitals.watching():
            opened = _open_journal(journal)
            try:
                await _begin(jobs, opened, adopt=journal == "auto")
                capacity = backend.capacity()
                raise_descriptor_limit(rollouts=None if capacity is None else capacity.max)
                with patient_collector():
                    yield state
            finally:
                await jobs.drain(drain_limits)
                delivery.close()
                if opened is not None:
                    # One of this server's own is of use while something is owed, and no longer.
                    opened.close(remove=journal == "auto" and not opened.unfinished())
                await backend.shutdown()

    return lifespan


def _open_journal(journal: JournalChoice) -> Journal | None:
    if journal is None or isinstance(journal, Journal):
        return journal
    if journal != "auto":
        return open_journal(Path(journal))
    if os.environ.get(JOURNAL_VARIABLE) == "off":
        return None
    try:
        return open_new_journal(Path(artifact_root(), JOURNAL_FOLDER))
    except RunError as exc:
        logger.warning("answers are not kept over a restart: %s", exc)
        return None


async def _begin(jobs: Jobs, journal: Journal | None, *, adopt: bool) -> None:
    try:
        await jobs.begin(journal, adopt=adopt)
    except sqlite3.Error as exc:
        raise RunError(f"a journal cannot be read: {exc}; move it away or repair it") from exc


@asynccontextmanager
async def _nothing(app: FastAPI) -> AsyncIterator[None]:
    yield
