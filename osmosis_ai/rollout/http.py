"""Post an answer until it is taken: time limits, back-off, Retry-After, a target that moves."""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from typing import TypeVar

from osmosis_ai import __version__
from osmosis_ai.errors import ProtocolError
from osmosis_ai.rollout.http_connection import (
    Answer,
    Connection,
    ConnectionPool,
    encode_post,
    parse_url,
)

TIMEOUT_SEC = 10.0
ATTEMPTS = 5
FIRST_BACKOFF_SEC = 0.5
MAX_BACKOFF_SEC = 8.0
MAX_PATIENT_BACKOFF_SEC = 60.0
"""The longest pause of a post that has a window."""
RETRY_AFTER_BOUNDS_SEC = (0.05, 60.0)
RETRIED_STATUSES = frozenset({429, 500, 502, 503, 504})

T = TypeVar("T")

_SHOWN_BYTES = 200
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class ControllerAuth:
    """The key a controller expects with what is posted to it; never shown."""

    api_key: str | None = None

    def as_bearer_headers(self) -> dict[str, str] | None:
        """The header that carries the key, or None where there is none."""
        return None if self.api_key is None else {"Authorization": f"Bearer {self.api_key}"}

    def __repr__(self) -> str:
        return f"ControllerAuth(api_key={None if self.api_key is None else '<redacted>'})"


PLAIN_HEADERS = (
    f"Content-Type: application/json\r\nUser-Agent: osmosis-ai/{__version__}\r\n".encode()
)
"""The header lines of a post that needs no key."""


def header_lines(auth: ControllerAuth) -> bytes:
    """The header lines of a post with this key; ValueError where no header can carry it."""
    bearer = auth.as_bearer_headers()
    if bearer is None:
        return PLAIN_HEADERS
    if _CONTROL.search(bearer["Authorization"]):
        raise ValueError("a key holds no control characters")
    return b"%bAuthorization: %b\r\n" % (PLAIN_HEADERS, bearer["Authorization"].encode())


class Target:
    """Where a post goes. It can move while the post is under way, which then goes to the new place.

    `headers` are what `header_lines` made. Raises ValueError for a URL that cannot be used.
    """

    __slots__ = ("address", "headers", "interrupt", "is_pausing", "moves")

    def __init__(self, url: str, *, headers: bytes = PLAIN_HEADERS) -> None:
        self.address = parse_url(url)
        self.headers = headers
        self.moves = 0
        self.is_pausing = False
        self.interrupt: Callable[[], object] | None = None
        """Ends the attempt or the pause that is under way."""

    def move(self, to: Target) -> None:
        """Post to another place from now on, at once; to the same one where that is meant."""
        stays = (self.address, self.headers) == (to.address, to.headers)
        self.address, self.headers = to.address, to.headers
        self.moves += 1
        # An attempt at the place that is meant is what is asked for.
        if self.interrupt is not None and (self.is_pausing or not stays):
            self.interrupt()

    @property
    def place(self) -> str:
        """Where posts go, as errors show it: without the query, which may hold a secret."""
        scheme = "https" if self.address.origin.uses_tls else "http"
        return f"{scheme}://{self.address.host_header}{self.address.target.partition('?')[0]}"

    def __repr__(self) -> str:
        return f"Target({self.place})"


@dataclass(frozen=True, slots=True)
class _Failure:
    """Why an attempt brought no answer, and whether another one may."""

    why: str
    status_code: int | None = None
    retry_after_sec: float | None = None
    is_final: bool = False

    def to_error(self, target: Target, attempts: int) -> ProtocolError:
        return ProtocolError(
            f"{target.place} {self.why} (attempt {attempts})", status_code=self.status_code
        )


class HttpClient:
    """Posts JSON bodies over kept connections, `attempts` times before it gives up.

    Transport errors, time-outs and 429, 500, 502, 503, 504 are tried again, after a pause that
    doubles or that the other side's `Retry-After` sets. `sleep`, `random` and `clock` are there for
    tests.
    """

    def __init__(
        self,
        *,
        timeout_sec: float = TIMEOUT_SEC,
        attempts: int = ATTEMPTS,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        random: Callable[[], float] = random.random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._timeout_sec = timeout_sec
        self._attempts = attempts
        self._sleep = sleep
        self._random = random
        self._clock = clock
        self._connections = ConnectionPool()

    async def post(
        self,
        target: Target,
        body: bytes,
        *,
        idempotency_key: str,
        window_sec: float | None = None,
    ) -> bytes:
        """Post a JSON body and return the body of the 2xx answer.

        Raises ProtocolError where the target refuses it, or does not take it after all attempts,
        which with a window go on until that is over. A target that moves gets all attempts anew,
        the first of them at once, also where the place it was at has taken the post. The
        `idempotency_key` is the same for every attempt; it may hold letters, digits and
        punctuation.
        """
        moves, failures, until = target.moves, 0, self._clock() + (window_sec or 0.0)
        longest_sec = MAX_BACKOFF_SEC if window_sec is None else MAX_PATIENT_BACKOFF_SEC
        while True:
            address = target.address
            outcome = await self._attempt(target, body, idempotency_key)
            if isinstance(outcome, bytes):
                if target.address == address:
                    return outcome
            else:
                failures += 1
                if target.moves == moves:
                    is_last = failures >= self._attempts and self._clock() >= until
                    if outcome.is_final or is_last:
                        raise outcome.to_error(target, failures)
                    await self._pause(target, failures, outcome.retry_after_sec, longest_sec)
            if target.moves != moves:
                moves, failures, until = target.moves, 0, self._clock() + (window_sec or 0.0)

    def close(self) -> None:
        """Close the connections; a later post opens new ones."""
        self._connections.close()

    async def _attempt(self, target: Target, body: bytes, idempotency_key: str) -> bytes | _Failure:
        headers = b"%bIdempotency-Key: %b\r\n" % (target.headers, idempotency_key.encode())
        try:
            answer = await self._send(target, encode_post(target.address, headers, body))
        except TimeoutError:
            return _Failure(f"did not answer within {self._timeout_sec:g} s")
        except OSError as exc:
            return _Failure(f"cannot be reached: {exc or type(exc).__name__}")
        return answer.body if 200 <= answer.status < 300 else _failure_from(answer, target)

    async def _send(self, target: Target, request: bytes) -> Answer:
        origin = target.address.origin
        kept = self._connections.take(origin)
        if kept is not None:
            try:
                return await self._exchange(target, kept, request)
            except ConnectionError:
                if kept.was_answering:
                    raise
                # It was closed in the moment of the request: that is no failure of the target's.
        connection = await _interruptible(
            target, self._connections.connect(origin), limit_sec=self._timeout_sec
        )
        return await self._exchange(target, connection, request)

    async def _exchange(self, target: Target, connection: Connection, request: bytes) -> Answer:
        origin = target.address.origin
        coming = connection.start(request)
        timer = asyncio.get_running_loop().call_later(self._timeout_sec, _give_up, coming)
        target.interrupt = partial(_give_up, coming)
        try:
            answer = await coming
        except BaseException:  # a cancellation too: what comes now is an answer to nobody
            connection.close()
            raise
        finally:
            target.interrupt = None
            timer.cancel()
        self._connections.give_back(origin, connection)
        return answer

    async def _pause(
        self, target: Target, failures: int, retry_after_sec: float | None, longest_sec: float
    ) -> None:
        pause = self._sleep(self._pause_sec(failures, retry_after_sec, longest_sec))
        target.is_pausing = True
        try:
            await _interruptible(target, pause, limit_sec=None)
        except TimeoutError:  # the target moved: the next attempt is due now
            return
        finally:
            target.is_pausing = False

    def _pause_sec(self, failures: int, retry_after_sec: float | None, longest_sec: float) -> float:
        """Spread by a quarter, so that rollouts that failed together do not come back together."""
        if retry_after_sec is not None:
            least, most = RETRY_AFTER_BOUNDS_SEC
            spread = 1 + 0.25 * self._random()
            return min(most, max(least, retry_after_sec) * spread)
        # Bounded before it is raised: a day of failures must not overflow.
        backoff = min(longest_sec, FIRST_BACKOFF_SEC * 2.0 ** min(failures - 1, 16))
        return backoff * (0.75 + 0.25 * self._random())


def _give_up(answer: asyncio.Future[Answer]) -> None:
    with suppress(asyncio.InvalidStateError):  # it has come in this moment
        answer.set_exception(TimeoutError())


async def _interruptible(target: Target, work: Awaitable[T], *, limit_sec: float | None) -> T:
    """Await `work`; TimeoutError past the limit, or as soon as the target moves."""
    try:
        async with asyncio.timeout(limit_sec) as limit:
            target.interrupt = partial(_expire, limit)
            return await work
    finally:
        target.interrupt = None


def _expire(limit: asyncio.Timeout) -> None:
    with suppress(RuntimeError):  # it has expired in this moment
        limit.reschedule(asyncio.get_running_loop().time())


def _failure_from(answer: Answer, target: Target) -> _Failure:
    # Some servers answer with the headers they were sent, and this goes to a log.
    key = target.headers[len(PLAIN_HEADERS) :].partition(b"Bearer ")[2].strip()
    body = answer.body.replace(key, b"<redacted>") if key else answer.body
    said = body[:_SHOWN_BYTES].decode("utf-8", "replace")
    return _Failure(
        f"answered {answer.status} {said!r}",
        status_code=answer.status,
        retry_after_sec=_retry_after_sec(answer.headers.get(b"retry-after")),
        is_final=answer.status not in RETRIED_STATUSES,
    )


def _retry_after_sec(header: bytes | None) -> float | None:
    """Seconds from now that a `Retry-After` header names, as a number or as a date."""
    value = (header or b"").decode("latin-1")
    try:
        return float(value)
    except ValueError:
        pass
    try:
        return (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds()
    except (ValueError, TypeError):
        return None
