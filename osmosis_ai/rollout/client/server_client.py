"""ServerClient: the routes of a rollout server, as a controller calls them."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import orjson

from osmosis_ai._extras import requires_extra
from osmosis_ai.errors import BackendError, ConfigError

with requires_extra("server", "driving a rollout server"):
    import aiohttp

TIMEOUT_SEC = 30.0
"""How long one answer of a server may take; a held poll has its own time on top."""

LEASE_HEADER = "X-Osmosis-Rollout-Lease"

INSTANCE_ID_HEADER = "X-Osmosis-Rollout-Instance-Id"
"""What tells a server that was started here from another one on its port."""

_TAKEN = frozenset({200, 202})
_SHOWN_CHARS = 300


@dataclass(frozen=True, slots=True)
class Reply:
    """What a server answered; status 0 stands for no answer."""

    status: int
    text: str
    retry_after: str | None = None
    instance_id: str | None = None
    """Whose answer it is, where a header says so."""

    @property
    def is_taken(self) -> bool:
        """Whether the rollout was accepted."""
        return self.status in _TAKEN

    @property
    def may_pass(self) -> bool:
        """Whether the next try may be answered otherwise."""
        return self.status == 0 or self.status >= 500

    @property
    def problem(self) -> str:
        """What the server did instead of taking a rollout."""
        said = self.text[:_SHOWN_CHARS]
        return f"answered {self.status}: {said}" if self.status else f"does not answer: {said}"

    @property
    def data(self) -> dict[str, Any]:
        """The JSON object that was answered; an empty one where it was none."""
        return _object(self.text)


class ServerClient:
    """One session with one server."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.url = url
        self._session = session

    async def start_rollout(self, body: bytes) -> Reply:
        """Ask for a rollout."""
        return await self._call("POST", "/rollout", body)

    async def result(self, rollout_id: str, *, token: str, wait_sec: float) -> Reply:
        """Ask for the result of a rollout; the server may hold the question so long."""
        path = f"/rollout/{quote(rollout_id, safe='')}/result"
        return await self._call(
            "GET", path, headers={LEASE_HEADER: token}, timeout_sec=wait_sec + TIMEOUT_SEC
        )

    async def status(self, rollout_id: str) -> str | None:
        """Where a rollout is; None where the server does not say."""
        reply = await self._call("GET", f"/rollout/{quote(rollout_id, safe='')}/status")
        said = _object(reply.text).get("status") if reply.status == 200 else None
        return said if isinstance(said, str) else None

    async def cancel(self, rollout_id: str) -> bool:
        """Tell a rollout to stop; False where the server does not know it."""
        said = await self.cancel_by(ids=[rollout_id])
        return said.get(rollout_id, "not_found") != "not_found"

    async def cancel_by(self, **selector: Any) -> dict[str, str]:
        """Tell rollouts to stop, by `ids`, `prefix` or `all`; what that did to each."""
        reply = await self._call("POST", "/rollout/cancel", orjson.dumps(selector))
        said = _object(self._expect_ok(reply)).get("dispositions")
        return said if isinstance(said, dict) else {}

    async def health(self) -> dict[str, Any]:
        """What the server says of itself; raises BackendError where it says nothing."""
        reply = await self._call("GET", "/health")
        said = _object(self._expect_ok(reply))
        return said if reply.instance_id is None else {**said, "instance_id": reply.instance_id}

    def _expect_ok(self, reply: Reply) -> str:
        if reply.status != 200:
            raise BackendError(f"the rollout server at {self.url} {reply.problem}")
        return reply.text

    async def _call(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        headers: dict[str, str] | None = None,
        timeout_sec: float = TIMEOUT_SEC,
    ) -> Reply:
        try:
            async with self._session.request(
                method,
                self.url + path,
                data=_payload(body),
                headers=headers,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=timeout_sec),
            ) as answer:
                text = await answer.text(errors="replace")
                return Reply(
                    answer.status,
                    text,
                    retry_after=answer.headers.get("Retry-After"),
                    instance_id=answer.headers.get(INSTANCE_ID_HEADER),
                )
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return Reply(0, str(error) or type(error).__name__)


@asynccontextmanager
async def open_server_client(url: str, *, api_key: str | None) -> AsyncIterator[ServerClient]:
    """A session with the server at `url`; raises ConfigError for what is no address."""
    if not url.startswith(("http://", "https://")):
        raise ConfigError(
            f"the server is {url!r}; give an address that starts with http:// or https://",
            key="server",
        )
    headers = {"Content-Type": "application/json"}
    if api_key is not None:
        headers["Authorization"] = f"Bearer {api_key}"
    async with aiohttp.ClientSession(
        headers=headers, connector=aiohttp.TCPConnector(limit=0)
    ) as session:
        yield ServerClient(url.rstrip("/"), session)


def _payload(body: bytes | None) -> bytes | io.BytesIO | None:
    # aiohttp warns of large bodies that are given in one piece.
    return body if body is None or len(body) < _ONE_PIECE_BYTES else io.BytesIO(body)


_ONE_PIECE_BYTES = 2**20


def _object(text: str) -> dict[str, Any]:
    try:
        data = orjson.loads(text)
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}
