"""As much HTTP/1.1 as a scripted server needs, down to the bytes and the closing of connections."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One request, whole."""

    method: str
    path: str
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes


async def read_request(reader: asyncio.StreamReader) -> HttpRequest | None:
    """The next request of a connection, or None where the client has closed it."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        line, *fields = head.decode("latin-1").split("\r\n")
        headers = dict(_split_field(field) for field in fields if field)
        body = await reader.readexactly(int(headers.get("content-length", "0")))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    method, path, _ = line.split(" ", 2)
    return HttpRequest(method, path, headers, body)


def _split_field(field: str) -> tuple[str, str]:
    name, _, value = field.partition(":")
    return name.strip().lower(), value.strip()


class Connection:
    """The answering side of one connection."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    async def send_whole(
        self, status: int, body: bytes, *, content_type: str, headers: Mapping[str, str]
    ) -> None:
        """Send an answer in one piece."""
        fields = {"content-type": content_type, "content-length": str(len(body)), **headers}
        await self.send_raw(_head(status, fields) + body)

    async def start_stream(self) -> None:
        """Send the head of an event stream."""
        fields = {"content-type": "text/event-stream", "transfer-encoding": "chunked"}
        await self.send_raw(_head(200, fields))

    async def send_chunk(self, data: bytes) -> None:
        """Send the next piece of a stream; an empty one ends it."""
        await self.send_raw(b"%x\r\n%b\r\n" % (len(data), data))

    async def send_raw(self, data: bytes) -> None:
        """Send bytes as they are."""
        self._writer.write(data)
        await self._writer.drain()

    def close(self) -> None:
        """Close the connection, whatever the client still waits for."""
        self._writer.close()


def _head(status: int, fields: Mapping[str, str]) -> bytes:
    known = {known.value: known.phrase for known in HTTPStatus}
    lines = [f"HTTP/1.1 {status} {known.get(status, '')}"]
    lines += [f"{name}: {value}" for name, value in fields.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")
