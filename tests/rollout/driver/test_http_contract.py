"""The HTTP driver keeps the driver contract, on a server that serves the same entrypoint."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.launch import forgetting_modules, load_entrypoint
from osmosis_ai.rollout.artifacts import ARTIFACT_ROOT_VARIABLE
from osmosis_ai.rollout.driver.base import RolloutDriver
from osmosis_ai.rollout.driver.choose import open_driver
from osmosis_ai.testing.serving import serve
from tests.rollout.driver.remote_contract import RemoteDriverContract


class TestHttpDriver(RemoteDriverContract):
    @asynccontextmanager
    async def open_driver(self, **given: Any) -> AsyncIterator[RolloutDriver]:
        """Serve the entrypoint's app, with the artifact root in its environment, and drive it."""
        roots: list[Path] = given["import_roots"]
        with pytest.MonkeyPatch.context() as patch, forgetting_modules(roots):
            patch.setenv(ARTIFACT_ROOT_VARIABLE, str(given["artifact_root"]))
            app = load_entrypoint(given["entrypoint"], roots).app
            with serve(app) as url:
                async with open_driver(server_url=url, **given) as driver:
                    yield driver
