"""Kept connections: what is sent, what counts as an answer, and when a connection is done with."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from osmosis_ai.rollout.http_connection import (
    MAX_ANSWER_BYTES,
    Address,
    Answer,
    Connection,
    ConnectionPool,
    Origin,
    encode_post,
    parse_url,
)
from tests.rollout.receiver import OK, Receiver, receiving, reply


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as receiver:
        yield receiver


@pytest.fixture
async def pool() -> AsyncIterator[ConnectionPool]:
    pool = ConnectionPool()
    yield pool
    pool.close()


async def exchange(pool: ConnectionPool, url: str, body: bytes = b"{}") -> Answer:
    address = parse_url(url)
    connection = pool.take(address.origin) or await pool.connect(address.origin)
    try:
        return await connection.start(encode_post(address, b"X-One: 1\r\n", body))
    finally:
        pool.give_back(address.origin, connection)


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://a", Address(Origin("a", 80, False), "a", "/")),
        ("https://a/", Address(Origin("a", 443, True), "a", "/")),
        ("http://a:80/x", Address(Origin("a", 80, False), "a", "/x")),
        ("https://a:80/x?y=1#z", Address(Origin("a", 80, True), "a:80", "/x?y=1")),
        ("http://a?y=/1", Address(Origin("a", 80, False), "a", "/?y=/1")),
        ("http://a#z", Address(Origin("a", 80, False), "a", "/")),
        ("http://[::1]:8000/x", Address(Origin("::1", 8000, False), "[::1]:8000", "/x")),
        ("http://a/ü%20 ?ü", Address(Origin("a", 80, False), "a", "/%C3%BC%20%20?%C3%BC")),
        ("http://bücher.example/", Address(Origin("xn--bcher-kva.example", 80, False),
                                           "xn--bcher-kva.example", "/")),
    ],
)  # fmt: skip
def test_a_url_says_where_to_connect_and_what_to_ask_for(url: str, address: Address) -> None:
    assert parse_url(url) == address


@pytest.mark.parametrize(
    "url",
    [
        "", "a", "ftp://a", "http://", "http:///x", "http://user:secret@a/", "http://a:0/",
        "http://a:99999/", "http://a:x/", "http://a/b\r\nX: 1", "http://a/b\x7f", "http://a b/",
        "http://a..b/", f"http://{'a' * 70}/", "http://[::1", "HTTP://a",
    ],
)  # fmt: skip
def test_a_url_that_no_request_can_go_to_is_refused(url: str) -> None:
    """Before a rollout runs, not when its answer is to be posted."""
    with pytest.raises(ValueError, match=r"URL|port|label"):
        parse_url(url)


async def test_a_post_arrives_as_it_was_meant(receiver: Receiver, pool: ConnectionPool) -> None:
    answer = await exchange(pool, f"{receiver.url}/x?y=1", b'{"a":1}')
    assert answer == Answer(200, {b"content-length": b"2"}, b"{}")
    post = receiver.posts[0]
    assert (post.path, post.body) == ("/x?y=1", {"a": 1})
    assert post.headers == {
        "host": f"127.0.0.1:{receiver.port}",
        "x-one": "1",
        "content-length": "7",
    }


async def test_a_connection_is_kept_for_the_next_post(
    receiver: Receiver, pool: ConnectionPool
) -> None:
    for _ in range(3):
        await exchange(pool, receiver.url)
    assert receiver.connections == 1


async def test_exchanges_at_once_have_connections_of_their_own(
    receiver: Receiver, pool: ConnectionPool
) -> None:
    await asyncio.gather(*(exchange(pool, receiver.url) for _ in range(5)))
    assert receiver.connections == 5


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", b"{}"),
        (b"HTTP/1.1 100 Continue\r\nX: 1\r\n\r\n" + OK, b"{}"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        (reply(200, {"a": "b"}), b'{"a": "b"}'),
    ],
)
async def test_an_answer_may_come_in_any_form_of_http(
    receiver: Receiver, pool: ConnectionPool, answer: bytes, body: bytes
) -> None:
    receiver.replies = [answer, OK]
    assert (await exchange(pool, receiver.url)).body == body
    await exchange(pool, receiver.url)
    assert receiver.connections == 1


async def test_headers_of_an_interim_answer_are_not_the_answers(
    receiver: Receiver, pool: ConnectionPool
) -> None:
    receiver.replies = [b"HTTP/1.1 103 Early\r\nRetry-After: 9\r\n\r\n" + OK]
    assert (await exchange(pool, receiver.url)).headers == {b"content-length": b"2"}


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}",
    ],
)
async def test_a_connection_that_says_it_ends_is_not_kept(
    receiver: Receiver, pool: ConnectionPool, answer: bytes
) -> None:
    receiver.replies = [answer, OK]
    for _ in range(2):
        await exchange(pool, receiver.url)
    assert receiver.connections == 2


async def test_an_answer_without_a_length_ends_with_its_connection(pool: ConnectionPool) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n{}")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nto the ")
        await writer.drain()
        writer.write(b"end")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        assert (await exchange(pool, f"http://127.0.0.1:{port}")).body == b"to the end"
        assert pool.take(Origin("127.0.0.1", port, False)) is None


@pytest.mark.parametrize(
    "answer",
    [
        b"hello\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
    ],
)
async def test_what_is_not_an_http_answer_is_an_error(
    receiver: Receiver, pool: ConnectionPool, answer: bytes
) -> None:
    receiver.replies = [answer]
    with pytest.raises(ConnectionError, match=r"not HTTP/1\.1"):
        await exchange(pool, receiver.url)
    assert pool.take(parse_url(receiver.url).origin) is None


async def test_an_answer_that_breaks_off_is_an_error(
    receiver: Receiver, pool: ConnectionPool
) -> None:
    receiver.replies = [b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\nConnection: close\r\n\r\n{}"]
    address = parse_url(receiver.url)
    connection = await pool.connect(address.origin)
    coming = connection.start(encode_post(address, b"", b""))
    await receiver.wait_for(lambda receiver: receiver.posts)
    receiver.drop_connections()
    with pytest.raises(ConnectionError, match="the connection was closed"):
        await coming
    assert connection.was_answering


class Wire(asyncio.Transport):
    """A transport that goes nowhere."""

    def __init__(self) -> None:
        super().__init__()
        self.is_cut = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        pass

    def abort(self) -> None:
        self.is_cut = True


def wired() -> tuple[Connection, Wire]:
    connection, wire = Connection(asyncio.get_running_loop()), Wire()
    connection.connection_made(wire)
    return connection, wire


async def test_an_answer_in_pieces_is_one() -> None:
    connection, _ = wired()
    coming = connection.start(b"")
    for byte in reply(201, {"a": 1}):
        connection.data_received(bytes([byte]))
    assert (await coming).body == b'{"a": 1}'


async def test_an_answer_without_end_is_given_up() -> None:
    """A receiver that is broken must not fill the server's memory."""
    connection, wire = wired()
    coming = connection.start(b"")
    connection.data_received(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    piece = b"%x\r\n%b\r\n" % (2**20, b"x" * 2**20)
    while not wire.is_cut:
        connection.data_received(piece)
    with pytest.raises(ConnectionError, match=str(MAX_ANSWER_BYTES)):
        await coming


@pytest.mark.parametrize("before", [b"", OK])
async def test_an_answer_that_nobody_asked_for_ends_the_connection(before: bytes) -> None:
    """The next post would take it for its own."""
    connection, wire = wired()
    if before:
        coming = connection.start(b"")
        connection.data_received(before)
        await coming
    connection.data_received(OK)
    assert wire.is_cut
    assert not connection.is_open


async def test_an_answer_after_it_was_given_up_is_dropped() -> None:
    connection, wire = wired()
    coming = connection.start(b"")
    coming.cancel()
    connection.data_received(OK)
    connection.connection_lost(None)
    assert wire.is_cut


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


async def test_a_connection_that_was_idle_for_long_is_not_trusted(receiver: Receiver) -> None:
    """Its other end may be gone without a word, and a post on it would wait for nothing."""
    clock = Clock()
    pool = ConnectionPool(clock=clock)
    for seconds in (14, 16):
        await exchange(pool, receiver.url)
        clock.now += seconds
    assert pool.take(parse_url(receiver.url).origin) is None
    assert len(pool) == 0
    assert receiver.connections == 1


async def test_connections_of_busier_times_are_closed_in_time(receiver: Receiver) -> None:
    """A server lives long, and so do controllers that are started anew on other ports."""
    clock = Clock()
    pool = ConnectionPool(clock=clock)
    async with receiving() as another:
        await asyncio.gather(*(exchange(pool, another.url) for _ in range(3)))
        await asyncio.gather(*(exchange(pool, receiver.url) for _ in range(3)))
        for _ in range(2):
            assert len(pool) == 6
            clock.now += 10
            await exchange(pool, receiver.url)
        assert len(pool) == 1
    pool.close()


async def test_a_pool_that_is_closed_keeps_nothing(
    receiver: Receiver, pool: ConnectionPool
) -> None:
    await exchange(pool, receiver.url)
    pool.close()
    assert pool.take(parse_url(receiver.url).origin) is None
    await exchange(pool, receiver.url)
    assert receiver.connections == 2


CERTIFICATE = Path(__file__).with_name("localhost.pem")
"""Certificate and key of a server that nobody but these tests trusts."""


@pytest.fixture
async def tls_port() -> AsyncIterator[int]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    receiver = Receiver()
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1]
        receiver.drop_connections()


async def test_https_is_spoken_to_whom_the_system_trusts(
    tls_port: int, pool: ConnectionPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
    for _ in range(2):
        assert (await exchange(pool, f"https://localhost:{tls_port}/x")).status == 200


async def test_https_is_not_spoken_to_anybody_else(tls_port: int, pool: ConnectionPool) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        await exchange(pool, f"https://localhost:{tls_port}/x")
