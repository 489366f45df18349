"""Posting until it is taken: which failures are tried again, when, and where a moved post goes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from functools import partial

import pytest

from osmosis_ai.errors import ProtocolError
from osmosis_ai.rollout.http import PLAIN_HEADERS, ControllerAuth, HttpClient, Target, header_lines
from tests.rollout.receiver import OK, Close, Hang, Receiver, receiving, reply


@dataclass
class Naps:
    """A sleep that takes no time and remembers how long it was to be."""

    slept: list[float] = field(default_factory=list)

    async def __call__(self, seconds: float) -> None:
        self.slept.append(seconds)

    def now(self) -> float:
        """The time it would be by now."""
        return sum(self.slept)


@pytest.fixture
def naps() -> Naps:
    return Naps()


@pytest.fixture
async def client(naps: Naps) -> AsyncIterator[HttpClient]:
    client = HttpClient(sleep=naps, random=lambda: 1.0, clock=naps.now)
    yield client
    client.close()


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as receiver:
        yield receiver


post = partial(HttpClient.post, idempotency_key="r/grader")


async def test_a_post_says_what_it_is_and_who_sends_it(
    receiver: Receiver, client: HttpClient
) -> None:
    target = Target(f"{receiver.url}/x", headers=header_lines(ControllerAuth("key-é")))
    assert await post(client, target, b'{"a":1}') == b"{}"
    sent = receiver.posts[0]
    assert sent.path == "/x"
    assert sent.raw == b'{"a":1}'
    assert sent.headers["content-type"] == "application/json"
    assert sent.headers["authorization"] == "Bearer key-é"
    assert sent.headers["idempotency-key"] == "r/grader"
    assert sent.headers["user-agent"].startswith("osmosis-ai/")


async def test_without_a_key_there_is_no_authorization(
    receiver: Receiver, client: HttpClient
) -> None:
    await post(client, Target(receiver.url), b"{}")
    assert "authorization" not in receiver.posts[0].headers


@pytest.mark.parametrize("status", [200, 201, 202, 204])
async def test_any_2xx_takes_the_post(receiver: Receiver, client: HttpClient, status: int) -> None:
    receiver.replies = [f"HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n".encode()]
    assert await post(client, Target(receiver.url), b"{}") == b""
    assert len(receiver.posts) == 1


@pytest.mark.parametrize("failure", [*map(reply, (429, 500, 502, 503, 504)), Close, b"no HTTP\n\n"])
async def test_a_passing_failure_is_tried_again(
    receiver: Receiver, client: HttpClient, failure: bytes
) -> None:
    receiver.replies = [failure, failure, OK]
    assert await post(client, Target(receiver.url), b'{"a":1}') == b"{}"
    assert [sent.raw for sent in receiver.posts] == [b'{"a":1}'] * 3
    assert {sent.headers["idempotency-key"] for sent in receiver.posts} == {"r/grader"}


async def test_five_attempts_are_made_with_pauses_that_double(
    receiver: Receiver, client: HttpClient, naps: Naps
) -> None:
    receiver.replies = [reply(500, "broken")] * 9
    with pytest.raises(ProtocolError, match=r"answered 500 .*broken.*attempt 5") as caught:
        await post(client, Target(f"{receiver.url}/x?token=secret"), b"{}")
    assert caught.value.status_code == 500
    assert f"{receiver.url}/x " in str(caught.value)
    assert "secret" not in str(caught.value)
    assert len(receiver.posts) == 5
    assert naps.slept == [0.5, 1.0, 2.0, 4.0]


async def test_a_pause_is_eight_seconds_at_most(receiver: Receiver, naps: Naps) -> None:
    receiver.replies = [reply(500)] * 8
    await post(HttpClient(sleep=naps, attempts=9), Target(receiver.url), b"{}")
    assert max(naps.slept) <= 8


async def test_pauses_are_spread(receiver: Receiver, naps: Naps) -> None:
    """Rollouts that failed together must not come back together."""
    receiver.replies = [reply(500)] * 4
    await post(HttpClient(sleep=naps, random=lambda: 0.0), Target(receiver.url), b"{}")
    assert naps.slept == [0.375, 0.75, 1.5, 3.0]


@pytest.mark.parametrize("status", [301, 307, 400, 401, 404, 409, 422, 501])
async def test_a_refusal_is_not_tried_again(
    receiver: Receiver, client: HttpClient, naps: Naps, status: int
) -> None:
    receiver.replies = [reply(status, Location=f"{receiver.url}/elsewhere")]
    with pytest.raises(ProtocolError) as caught:
        await post(client, Target(receiver.url), b"{}")
    assert caught.value.status_code == status
    assert len(receiver.posts) == 1
    assert naps.slept == []


@pytest.mark.parametrize(
    ("header", "slept"),
    [
        ("2", 2.5),
        ("0", 0.0625),
        ("-7", 0.0625),
        ("3600", 60.0),
        ("nonsense", 0.5),
        (format_datetime(datetime.now(UTC) + timedelta(days=1), usegmt=True), 60.0),
        (format_datetime(datetime.now(UTC) - timedelta(days=1), usegmt=True), 0.0625),
        ("Mon, 01 Dec 2025 10:00:00 -0000", 0.5),
    ],
)
async def test_retry_after_is_honoured_within_bounds(
    receiver: Receiver, client: HttpClient, naps: Naps, header: str, slept: float
) -> None:
    receiver.replies = [reply(429, Retry_After=header)]
    await post(client, Target(receiver.url), b"{}")
    assert naps.slept == [slept]


async def test_what_cannot_be_reached_is_said_with_its_reason(
    client: HttpClient, receiver: Receiver
) -> None:
    async with await asyncio.start_server(receiver.serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
    with pytest.raises(ProtocolError, match=r"cannot be reached: .*attempt 5") as caught:
        await post(client, Target(f"http://127.0.0.1:{port}"), b"{}")
    assert caught.value.status_code is None


async def test_what_does_not_answer_is_given_up_in_time(receiver: Receiver, naps: Naps) -> None:
    receiver.replies = [Hang, Hang]
    client = HttpClient(timeout_sec=0.05, attempts=2, sleep=naps)
    with pytest.raises(ProtocolError, match=r"did not answer within 0.05 s \(attempt 2\)"):
        await post(client, Target(receiver.url), b"{}")


async def test_a_connection_that_ended_meanwhile_costs_no_attempt(
    receiver: Receiver, client: HttpClient, naps: Naps
) -> None:
    """Servers close idle connections whenever they like; a pause for that would hold a slot."""
    await post(client, Target(receiver.url), b"{}")
    receiver.replies = [Close]
    await post(client, Target(receiver.url), b"{}")
    assert naps.slept == []
    assert [sent.path for sent in receiver.posts] == ["/"] * 3


async def test_a_kept_connection_that_breaks_while_answering_is_a_failure(
    receiver: Receiver, client: HttpClient, naps: Naps
) -> None:
    receiver.replies = [OK, b"no HTTP\n\n"]
    for _ in range(2):
        await post(client, Target(receiver.url), b"{}")
    assert naps.slept == [0.5]


async def test_a_cancelled_post_leaves_no_connection_behind(
    receiver: Receiver, client: HttpClient
) -> None:
    """A late answer on it would be taken for the next post's."""
    receiver.replies = [Hang]
    task = asyncio.create_task(post(client, Target(receiver.url), b"{}"))
    await receiver.wait_for(lambda receiver: receiver.posts)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await post(client, Target(receiver.url), b"{}")
    assert receiver.connections == 2


async def test_a_moved_post_goes_to_the_new_place_at_once(
    receiver: Receiver, client: HttpClient, naps: Naps
) -> None:
    """A controller that was started anew does not wait for its dead self."""
    receiver.replies = [Hang]
    target = Target(f"{receiver.url}/old", headers=header_lines(ControllerAuth("old")))
    task = asyncio.create_task(post(client, target, b"{}"))
    await receiver.wait_for(lambda receiver: receiver.posts)
    target.move(Target(f"{receiver.url}/new", headers=header_lines(ControllerAuth("new"))))
    assert await task == b"{}"
    assert [sent.path for sent in receiver.posts] == ["/old", "/new"]
    assert receiver.posts[1].headers["authorization"] == "Bearer new"
    assert naps.slept == []


@pytest.mark.parametrize("path", ["/new", "/old"])
async def test_a_pause_ends_when_the_target_moves(receiver: Receiver, path: str) -> None:
    """Also to the place where it was: the controller that says so is there now."""
    asleep = asyncio.Event()

    async def sleep_for_ever(seconds: float) -> None:
        asleep.set()
        await asyncio.Event().wait()

    receiver.replies = [reply(500)]
    target = Target(f"{receiver.url}/old")
    task = asyncio.create_task(post(HttpClient(sleep=sleep_for_ever), target, b"{}"))
    await asleep.wait()
    target.move(Target(receiver.url + path))
    assert await task == b"{}"
    assert [sent.path for sent in receiver.posts] == ["/old", path]


async def test_an_attempt_where_it_is_meant_to_be_is_not_broken_off(
    receiver: Receiver, client: HttpClient
) -> None:
    """A controller that repeats its request gets one answer, not two."""
    gate = asyncio.Event()

    async def answer_at_the_gate(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await reader.readuntil(b"{}")
        seen.append("post")
        came.set()
        await gate.wait()
        writer.write(OK)
        writer.close()

    seen: list[str] = []
    came = asyncio.Event()
    async with await asyncio.start_server(answer_at_the_gate, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        target = Target(url)
        task = asyncio.create_task(post(client, target, b"{}"))
        await came.wait()
        target.move(Target(url))
        gate.set()
        assert await task == b"{}"
    assert seen == ["post"]


async def test_a_moved_target_has_all_its_attempts_anew(receiver: Receiver, naps: Naps) -> None:
    target = Target(f"{receiver.url}/old")

    async def sleep(seconds: float) -> None:
        await naps(seconds)
        if len(naps.slept) == 2:
            target.move(Target(f"{receiver.url}/new"))

    receiver.replies = [reply(500)] * 7
    await post(HttpClient(sleep=sleep, attempts=6, random=lambda: 1.0), target, b"{}")
    assert [sent.path for sent in receiver.posts] == ["/old"] * 2 + ["/new"] * 6
    assert naps.slept == [0.5, 1.0, 0.5, 1.0, 2.0, 4.0, 8.0]


async def test_a_refusal_from_where_the_target_was_does_not_count(
    receiver: Receiver, client: HttpClient
) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"{}")
        target.moves += 1  # it moved in the moment of the answer
        target.address = Target(receiver.url).address
        writer.write(reply(404))
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        target = Target(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        assert await post(client, target, b"{}") == b"{}"


async def test_a_connection_under_way_is_given_up_when_the_target_moves(
    receiver: Receiver, client: HttpClient
) -> None:
    """What accepts and then says nothing would hold it for a long time."""
    came = asyncio.Event()

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.set()
        await reader.read()
        await reader.read()
        writer.close()

    async with await asyncio.start_server(say_nothing, "127.0.0.1", 0) as server:
        target = Target(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        task = asyncio.create_task(post(client, target, b"{}"))
        await came.wait()
        target.move(Target(receiver.url))
        target.move(Target(f"{receiver.url}/newest"))
        assert await task == b"{}"
    assert receiver.posts[-1].path == "/newest"


async def test_what_is_taken_in_the_moment_of_a_move_goes_to_the_new_place_too(
    client: HttpClient,
) -> None:
    """Whoever took it may be dead, which is why the target moves."""
    async with receiving() as old, receiving() as new:

        class Moving(Target):
            """Moves when its answer is there and nobody has looked at it yet."""

            def __setattr__(self, name: str, value: object) -> None:
                super().__setattr__(name, value)
                if name == "interrupt" and value is None and old.posts and self.moves == 0:
                    self.move(Target(new.url))

        assert await post(client, Moving(old.url), b"{}") == b"{}"
    assert (len(old.posts), len(new.posts)) == (1, 1)


async def test_with_a_window_attempts_go_on_until_it_is_over(
    receiver: Receiver, naps: Naps, client: HttpClient
) -> None:
    receiver.replies = [reply(503)] * 50
    with pytest.raises(ProtocolError, match="attempt 17"):
        await post(client, Target(receiver.url), b"{}", window_sec=600)
    assert naps.slept[:8] == [0.5, 1, 2, 4, 8, 16, 32, 60]
    assert max(naps.slept) == 60
    assert sum(naps.slept[:-1]) < 600 <= sum(naps.slept)


async def test_a_refusal_ends_a_window(receiver: Receiver, client: HttpClient) -> None:
    receiver.replies = [reply(503), reply(410)]
    with pytest.raises(ProtocolError, match="410"):
        await post(client, Target(receiver.url), b"{}", window_sec=600)
    assert len(receiver.posts) == 2


async def test_a_move_opens_a_new_window(receiver: Receiver, naps: Naps) -> None:
    target = Target(receiver.url)

    async def sleep(seconds: float) -> None:
        await naps(seconds)
        if target.moves == 0 and naps.now() > 500:
            target.move(Target(receiver.url))

    client = HttpClient(sleep=sleep, clock=naps.now, random=lambda: 1.0)
    receiver.replies = [reply(503)] * 99
    with pytest.raises(ProtocolError):
        await post(client, target, b"{}", window_sec=600)
    assert naps.now() > 1100
    client.close()


async def test_keys_that_a_receiver_sends_back_are_not_shown(
    receiver: Receiver, client: HttpClient
) -> None:
    receiver.replies = [reply(400, {"you sent": "Bearer hush-hush"})]
    target = Target(receiver.url, headers=header_lines(ControllerAuth("hush-hush")))
    with pytest.raises(ProtocolError) as caught:
        await post(client, target, b"{}")
    assert "hush-hush" not in str(caught.value)
    assert "redacted" in str(caught.value)
    assert "hush" not in repr(target)


def test_a_key_is_never_shown() -> None:
    assert "hush" not in repr(ControllerAuth("hush"))
    assert "redacted" in repr(ControllerAuth("hush"))
    assert repr(ControllerAuth()) == "ControllerAuth(api_key=None)"


def test_a_key_becomes_a_bearer_header() -> None:
    assert ControllerAuth("k").as_bearer_headers() == {"Authorization": "Bearer k"}
    assert ControllerAuth().as_bearer_headers() is None
    assert header_lines(ControllerAuth()) == PLAIN_HEADERS


@pytest.mark.parametrize("key", ["a\r\nX-Other: 1", "a\x00", "a\x7f", "\ud800"])
def test_a_key_that_no_header_can_carry_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match=r"key|surrogates"):
        header_lines(ControllerAuth(key))
