"""A controller's receiving end on a real port, which answers as it is told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


def reply(status: int, body: Any = None, **headers: str) -> bytes:
    """An HTTP answer with a JSON body, `{}` unless given."""
    data = json.dumps({} if body is None else body).encode()
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {status} X\r\n{lines}Content-Length: {len(data)}\r\n\r\n".encode() + data


class Hang:
    """Do not answer this post."""


class Close:
    """Close the connection instead of answering."""


Reply = bytes | type[Hang] | type[Close]


@dataclass(frozen=True)
class Post:
    """One request as it came."""

    path: str
    headers: dict[str, str]
    raw: bytes

    @property
    def body(self) -> Any:
        return json.loads(self.raw)


@dataclass
class Receiver:
    """What came, and what to say to it: the replies in order, then `OK`."""

    port: int = 0
    posts: list[Post] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    connections: int = 0
    _came: asyncio.Condition = field(default_factory=asyncio.Condition)
    _open: set[asyncio.StreamWriter] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def at(self, path: str) -> list[Post]:
        return [post for post in self.posts if post.path == path]

    async def wait_for(self, condition: Callable[[Receiver], Any]) -> None:
        """Return as soon as what came meets the condition."""
        async with asyncio.timeout(20), self._came:
            await self._came.wait_for(lambda: condition(self))

    def drop_connections(self) -> None:
        """Close every connection, as a server that ends does."""
        for writer in self._open:
            writer.close()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._open.add(writer)
        try:
            while await self._answer_one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._open.discard(writer)
            writer.close()

    async def _answer_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {
            name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:-2])
        }
        raw = await reader.readexactly(int(headers["content-length"]))
        answer = self.replies.pop(0) if self.replies else OK
        async with self._came:
            self.posts.append(Post(head[0].split(" ")[1], headers, raw))
            self._came.notify_all()
        if answer is Close:
            return False
        if answer is Hang:
            await reader.read()  # until the other side gives up
            return False
        assert isinstance(answer, bytes)
        writer.write(answer)
        await writer.drain()
        return True


@asynccontextmanager
async def receiving(*replies: Reply) -> AsyncIterator[Receiver]:
    receiver = Receiver(replies=list(replies))
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0, limit=2**26)
    receiver.port = server.sockets[0].getsockname()[1]
    async with server:
        try:
            yield receiver
        finally:
            receiver.drop_connections()
