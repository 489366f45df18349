"""Kept HTTP/1.1 connections for one kind of exchange: post a body, read the answer whole.

A general client spends more on one exchange than a rollout server spends on everything else about
a rollout (docs/decisions has the numbers). Answers are two exchanges a rollout, and each model call
is one.
"""

from __future__ import annotations

import asyncio
import re
import ssl
import time
from collections.abc import Callable
from functools import cached_property, lru_cache
from typing import NamedTuple, cast
from urllib.parse import quote

from osmosis_ai._extras import requires_extra

with requires_extra("server", "posting over HTTP"):
    import httptools

MAX_ANSWER_BYTES = 64 * 2**20
"""The largest answer that is read; a longer one is an error."""

IDLE_SEC = 15.0
"""How long an unused connection is trusted: its other end may have gone without a word."""

_ORIGIN = re.compile(
    r"(?P<scheme>https?)://"
    r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^\x00-\x20\x7f/?#@:\[\]]+)(?::(?P<port>\d{1,5}))?"
)
_ORIGIN_END = re.compile(r"[/?#]")
_PLAIN_TARGET = re.compile(r"[!-~]*")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_KEPT_IN_TARGET = "/?%:@!$&'()*+,;=-._~"


class Origin(NamedTuple):
    """The other end of connections that may be shared."""

    host: str
    port: int
    uses_tls: bool


class Address(NamedTuple):
    """Where a request goes: over which connections, and to what."""

    origin: Origin
    host_header: str
    target: str


class Answer(NamedTuple):
    """An HTTP answer; header names are in lower case."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes


def parse_url(url: str) -> Address:
    """Take an http or https URL apart; raises ValueError where it is none, or holds credentials."""
    end = _ORIGIN_END.search(url, len("https://"))
    origin, host_header = _parse_origin(url if end is None else url[: end.start()])
    target = "/" if end is None else url[end.start() :].partition("#")[0]
    if not target.startswith("/"):
        target = "/" + target
    if not _PLAIN_TARGET.fullmatch(target):
        if _CONTROL.search(target):
            raise ValueError("a URL holds no control characters")
        target = quote(target, safe=_KEPT_IN_TARGET)
    return Address(origin, host_header, target)


# Remembered: a server posts to one controller, or to a few.
@lru_cache(maxsize=256)
def _parse_origin(text: str) -> tuple[Origin, str]:
    """The other end, and how the `Host` header names it."""
    found = _ORIGIN.fullmatch(text)
    if found is None:
        raise ValueError("a URL begins with http:// or https:// and a host, without credentials")
    uses_tls = found["scheme"] == "https"
    default_port = 443 if uses_tls else 80
    port = default_port if found["port"] is None else int(found["port"])
    if not 0 < port < 65536:
        raise ValueError(f"{port} is no port")
    # The form in which names are looked up; what has none fails here, not there.
    host = found["host"].encode("idna").decode()
    return (
        Origin(host.strip("[]"), port, uses_tls),
        host if port == default_port else f"{host}:{port}",
    )


def encode_post(address: Address, headers: bytes, body: bytes) -> bytes:
    """A POST request with these header lines, each with its line end."""
    return b"POST %b HTTP/1.1\r\nHost: %b\r\n%bContent-Length: %d\r\n\r\n%b" % (
        address.target.encode(),
        address.host_header.encode(),
        headers,
        len(body),
        body,
    )


class ConnectionPool:
    """Connections by origin, as many as there are exchanges at once."""

    def __init__(
        self, *, idle_sec: float = IDLE_SEC, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._idle_sec = idle_sec
        self._clock = clock
        self._idle: dict[Origin, list[Connection]] = {}
        self._swept_at = clock()

    def __len__(self) -> int:
        return sum(map(len, self._idle.values()))

    def take(self, origin: Origin) -> Connection | None:
        """A kept connection that was still good when last heard of, or None."""
        connections = self._idle.get(origin)
        while connections:
            connection = connections.pop()
            if self._is_trusted(connection):
                return connection
            connection.close()
        return None

    async def connect(self, origin: Origin) -> Connection:
        """A new connection; raises OSError where there is none to be had."""
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            lambda: Connection(loop),
            origin.host,
            origin.port,
            ssl=self._tls if origin.uses_tls else None,
        )
        return connection

    def give_back(self, origin: Origin, connection: Connection) -> None:
        """Keep a connection for the next exchange, if it takes one."""
        now = self._clock()
        if connection.is_open:
            connection.idle_since = now
            self._idle.setdefault(origin, []).append(connection)
        if now - self._swept_at > self._idle_sec:
            self._swept_at = now
            self._sweep()

    def close(self) -> None:
        """Close the connections that are not in use."""
        for connections in self._idle.values():
            for connection in connections:
                connection.close()
        self._idle.clear()

    def _is_trusted(self, connection: Connection) -> bool:
        return connection.is_open and self._clock() - connection.idle_since < self._idle_sec

    def _sweep(self) -> None:
        """Close what was left from busier times, and forget ends that are gone."""
        idle, self._idle = self._idle, {}
        for origin, connections in idle.items():
            for connection in connections:
                if self._is_trusted(connection):
                    self._idle.setdefault(origin, []).append(connection)
                else:
                    connection.close()

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        # Reads every certificate the system trusts, so only where it is needed.
        return ssl.create_default_context()


class Connection(asyncio.Protocol):
    """One connection, with at most one exchange on it at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.is_open = False
        self.was_answering = False
        """Whether anything of an answer to the latest request came."""
        self.idle_since = 0.0
        self._loop = loop
        self._parser = httptools.HttpResponseParser(self)
        self._answer: asyncio.Future[Answer] | None = None
        self._headers: dict[bytes, bytes] = {}
        self._chunks: list[bytes] = []
        self._size = 0
        self._ends_with_connection = False

    def start(self, request: bytes) -> asyncio.Future[Answer]:
        """Send a request; what its answer is, or the OSError in place of one, comes later."""
        self._answer = self._loop.create_future()
        self.was_answering = False
        self._transport.write(request)
        return self._answer

    def close(self) -> None:
        """Close the connection at once."""
        self.is_open = False
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Asyncio's word that the connection stands."""
        # A cast: uvloop's transports do not inherit from asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        """Asyncio's word that bytes came."""
        self.was_answering = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as exc:
            self._fail(f"the answer is not HTTP/1.1: {exc}")

    def connection_lost(self, exc: Exception | None) -> None:
        """Asyncio's word that the connection has ended."""
        self.is_open = False
        if self._ends_with_connection and exc is None:
            self._finish()
        else:
            self._fail(f"the connection was closed: {exc}" if exc else "the connection was closed")

    def on_header(self, name: bytes, value: bytes) -> None:
        """The parser's word of a header."""
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        """The parser's word that the body begins."""
        self._ends_with_connection = not (
            self._parser.should_keep_alive()
            or b"content-length" in self._headers
            or b"transfer-encoding" in self._headers
        )

    def on_body(self, chunk: bytes) -> None:
        """The parser's word of a piece of the body."""
        self._size += len(chunk)
        if self._size <= MAX_ANSWER_BYTES:
            self._chunks.append(chunk)
        else:
            self._fail(f"the answer is longer than {MAX_ANSWER_BYTES} bytes")

    def on_message_complete(self) -> None:
        """The parser's word that an answer is whole."""
        if self._parser.get_status_code() < 200:  # an interim one: the answer comes after it
            self._headers = {}
        else:
            self._finish()

    def _finish(self) -> None:
        answer = Answer(self._parser.get_status_code(), self._headers, b"".join(self._chunks))
        self._headers, self._chunks, self._size = {}, [], 0
        if self._answer is None or self._answer.done():
            self.close()  # an answer to nothing: what else would come is anybody's guess
            return
        if not self._parser.should_keep_alive():
            self.close()
        self._answer.set_result(answer)

    def _fail(self, why: str) -> None:
        self.close()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionError(why))
