"""The stage: where user code tells a test what it sees, and waits there for its cue.

It is a loopback address and not an object, so that code in another process reaches it too.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable
from types import TracebackType
from typing import Any, Self, TypeVar

from osmosis_ai.rollout.safe_json import dump_json

T = TypeVar("T")

_MAX_LINE_BYTES = 2**22


async def tell(stage: str, scene: str, /, **facts: Any) -> None:
    """Tell the test at `stage` that `scene` is reached and what is seen; return on its cue."""
    host, _, port = stage.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(dump_json({"scene": scene, "facts": facts}).data + b"\n")
        await reader.readline()
    finally:
        writer.close()


async def within(patience_sec: float, waited_for: Awaitable[T], *, what: str) -> T:
    """Wait so long; then fail and say what did not happen, instead of hanging."""
    try:
        async with asyncio.timeout(patience_sec):
            return await waited_for
    except TimeoutError:
        raise AssertionError(f"{what} within {patience_sec:g} s: it did not happen") from None


class Stage:
    """The test's side: hold a scene before it is played, read what was told, give the cue."""

    def __init__(self, *, host: str = "127.0.0.1", patience_sec: float = 10.0) -> None:
        self.scenes: list[str] = []
        """The scenes reached, in order."""
        self._host = host
        self._patience_sec = patience_sec
        self._facts: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._held: dict[str, asyncio.Event] = {}
        self._visits: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._visit, self._host, 0, limit=_MAX_LINE_BYTES)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release_all()
        self._server.close()
        if self._visits:
            await asyncio.wait(self._visits, timeout=self._patience_sec)

    @property
    def address(self) -> str:
        """What user code is given to find the stage."""
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"{host}:{port}"

    def hold(self, *scenes: str) -> None:
        """Let user code wait at these scenes until they are released."""
        for scene in scenes:
            self._held.setdefault(scene, asyncio.Event())

    def release(self, scene: str) -> None:
        """Give the cue to the code that waits, or will wait, at a scene."""
        self._held[scene].set()

    def release_all(self) -> None:
        """Give every cue."""
        for cue in self._held.values():
            cue.set()

    async def told(self, scene: str) -> dict[str, Any]:
        """What user code told when it first reached the scene; waits until it has."""
        facts = asyncio.shield(self._facts_of(scene))
        return await within(self._patience_sec, facts, what=f"user code reaches {scene!r}")

    async def settle(self) -> None:
        """Let everything happen that only waits for its turn, so that "not yet" means something."""
        for _ in range(_SETTLING_VISITS):
            await within(self._patience_sec, tell(self.address, ""), what="a visit to the stage")

    def _facts_of(self, scene: str) -> asyncio.Future[dict[str, Any]]:
        if scene not in self._facts:
            self._facts[scene] = asyncio.get_running_loop().create_future()
        return self._facts[scene]

    async def _visit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        visit = asyncio.current_task()
        assert visit is not None
        self._visits.add(visit)
        try:
            await self._play(await reader.readline())
            writer.write(b"go on\n")
            await writer.drain()
        except ConnectionError:
            pass  # the visitor was cancelled while it waited
        finally:
            writer.close()
            self._visits.discard(visit)

    async def _play(self, line: bytes) -> None:
        if not line:
            return
        told = json.loads(line)
        scene: str = told["scene"]
        if not scene:
            return
        self.scenes.append(scene)
        facts = self._facts_of(scene)
        if not facts.done():
            facts.set_result(told["facts"])
        if scene in self._held:
            await self._held[scene].wait()


_SETTLING_VISITS = 20
