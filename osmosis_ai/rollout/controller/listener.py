"""Controller: what rollouts call back, on a localhost listener in a thread of its own.

A client in `run` that blocks the caller's event loop slows other rollouts, but the model's answer
and the deadline clock do not wait for that loop.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import ExitStack, asynccontextmanager
from types import TracebackType
from typing import Self
from urllib.parse import quote

from osmosis_ai.rollout.controller.address import LOOPBACK
from osmosis_ai.rollout.controller.asgi import (
    Disconnected,
    HttpError,
    Receive,
    Scope,
    Send,
    check_bearer,
    read_body,
    send_error,
    send_whole,
)
from osmosis_ai.rollout.controller.bridge import Bridge
from osmosis_ai.rollout.controller.budget import Budget, RolloutMeter, RunMeter
from osmosis_ai.rollout.controller.clock import DeadlineClock
from osmosis_ai.rollout.controller.dialect_route import serve_dialect
from osmosis_ai.rollout.controller.endpoint import RolloutEndpoint
from osmosis_ai.rollout.controller.model.base import ModelCall, ModelClient
from osmosis_ai.rollout.controller.probe import PROBE_TIMEOUT_SEC, probe_model
from osmosis_ai.rollout.controller.rendezvous import Kind, Rendezvous
from osmosis_ai.rollout.controller.retry import RetryPolicy
from osmosis_ai.rollout.controller.stall import watch_stalls
from osmosis_ai.rollout.controller.web import Listening, listen
from osmosis_ai.rollout.dialect import ROUTES
from osmosis_ai.rollout.translator import Translator

logger = logging.getLogger(__name__)

MAX_BODY_BYTES = 2**26
"""The longest body taken from a rollout: images and long conversations fit."""

KEPT_RENDEZVOUS = 1000
"""How many ended rollouts still acknowledge what a server sends again."""


class Controller:
    """Serves a model to rollouts, and takes their answers, while its `with` block lasts.

    with Controller(ScriptedClient(reply)) as controller:
        with controller.open_rollout("r1", deadline_sec=600) as endpoint:
            ...  # the rollout calls endpoint.chat_completions_url with endpoint.api_key
    """

    def __init__(
        self,
        model: ModelClient,
        *,
        retry: RetryPolicy | None = None,
        max_body_bytes: int = MAX_BODY_BYTES,
        kept_rendezvous: int = KEPT_RENDEZVOUS,
        host: str = LOOPBACK,
        port: int = 0,
        advertise_url: str | None = None,
        stall_sec: float | None = None,
        translator: Translator | None = None,
        budget: Budget | None = None,
    ) -> None:
        """Listens on a free port of this machine alone, unless a host and port say otherwise.

        `advertise_url` is what rollouts are told to call, where that is another address.
        """
        self._model = model
        self._address = (host, port)
        self._advertise_url = advertise_url
        self._stall_sec = stall_sec
        self._retry = retry or RetryPolicy()
        self._bridge = Bridge(model, retry=self._retry, max_body_bytes=max_body_bytes)
        self._max_body_bytes = max_body_bytes
        self._meter = None if budget is None else RunMeter(budget)
        self._translator = translator or Translator()
        self._endpoints: dict[str, RolloutEndpoint] = {}
        self._ended = _Ended(kept_rendezvous)
        self._secret = secrets.token_bytes(32)
        self._serial = itertools.count()
        self._listening: Listening
        self._clock: DeadlineClock

    def __enter__(self) -> Self:
        self._stack = ExitStack()
        host, port = self._address
        listening = listen(self._app, lifespan=self._lifespan, host=host, port=port)
        self._listening = self._stack.enter_context(listening)
        self._clock = DeadlineClock(self._listening.loop, self._ring)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

    @property
    def base_url(self) -> str:
        """Where rollouts reach the listener."""
        return self._advertise_url or self._listening.base_url

    def open_rollout(
        self,
        rollout_id: str,
        *,
        row: int = 0,
        attempt: int = 0,
        seed: int = 0,
        deadline_sec: float | None = None,
        on_deadline: Callable[[], None] | None = None,
        is_metered: bool = True,
    ) -> RolloutEndpoint:
        """Give a rollout its URLs; a deadline that is given here starts now.

        `on_deadline` is called in the listener's thread. Raises ValueError for an id that is open.
        """
        meter = None if self._meter is None or not is_metered else RolloutMeter(self._meter)
        endpoint = RolloutEndpoint(
            base_url=self.base_url,
            api_key=self._make_key(),
            first_call=ModelCall(rollout_id, row=row, attempt=attempt, seed=seed),
            clock=self._clock,
            close=self._forget,
            meter=meter,
        )
        if self._endpoints.setdefault(endpoint.key, endpoint) is not endpoint:
            raise ValueError(f"rollout {rollout_id!r} is open already")
        if deadline_sec is not None:
            endpoint.set_deadline(deadline_sec, on_deadline)
        return endpoint

    async def probe(self) -> None:
        """Ask the model one thing; raises ModelError, in words for a person, where that fails.

        For callers in other threads than the listener's.
        """
        with self.open_rollout(
            secrets.token_hex(16), deadline_sec=PROBE_TIMEOUT_SEC, is_metered=False
        ) as endpoint:
            asking = probe_model(self._model, endpoint, retry=self._retry)
            await asyncio.wrap_future(
                asyncio.run_coroutine_threadsafe(asking, self._listening.loop)
            )

    def _make_key(self) -> str:
        # One random secret for all keys: each draw of its own would be a system call that lets
        # go of the interpreter lock.
        number = str(next(self._serial)).encode()
        return hashlib.blake2b(number, key=self._secret, digest_size=24).hexdigest()

    def _forget(self, endpoint: RolloutEndpoint) -> None:
        if self._endpoints.get(endpoint.key) is not endpoint:
            return
        del self._endpoints[endpoint.key]
        if endpoint.callbacks is not None:
            self._ended.keep(endpoint.key, endpoint.callbacks)

    def _ring(self, key: Hashable) -> None:
        assert isinstance(key, RolloutEndpoint)
        key.expire()

    @asynccontextmanager
    async def _lifespan(self) -> AsyncIterator[None]:
        await self._model.open()
        stalls = self._watch_stalls()
        try:
            yield
        finally:
            if stalls is not None:
                stalls.cancel()
            for endpoint in list(self._endpoints.values()):
                endpoint.end_calls("the controller has stopped")
            await self._translator.close()
            await self._model.close()

    def _watch_stalls(self) -> asyncio.Task[None] | None:
        if self._stall_sec is None:
            return None
        watching = watch_stalls(lambda: list(self._endpoints.values()), stall_sec=self._stall_sec)
        return asyncio.create_task(watching)

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._route(scope, receive, send)
        except HttpError as error:
            await _refuse(error, scope, send)
        except Disconnected:
            logger.debug("%s: the client hung up before its request was whole", scope["path"])

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        # By hand: this is what every model call of every rollout goes through.
        prefix, key, route = _split(scope["path"])
        method = _METHODS.get(route)
        if prefix or method is None:
            raise _nothing_at(scope)
        if scope["method"] != method:
            raise HttpError(405, f"{route} takes {method}")
        if route in _KINDS:
            await self._take_answer(key, _KINDS[route], scope, receive, send)
            return
        endpoint = self._endpoints.get(key)
        if endpoint is None:
            raise _nothing_at(scope)
        if route == "chat/completions":
            await self._bridge.serve_chat(endpoint, scope, receive, send)
        elif route == "models":
            await self._bridge.serve_models(endpoint, scope, send)
        else:
            await serve_dialect(
                self._translator,
                ROUTES[route],
                endpoint,
                # Not as rollouts reach it: from here that address may lead nowhere.
                base_url=f"{self._listening.base_url}/v1/rollouts/{quote(key, safe='')}",
                scope=scope,
                receive=receive,
                send=send,
                max_body_bytes=self._max_body_bytes,
            )

    async def _take_answer(
        self, key: str, kind: Kind, scope: Scope, receive: Receive, send: Send
    ) -> None:
        endpoint = self._endpoints.get(key)
        rendezvous = self._ended.get(key) if endpoint is None else endpoint.callbacks
        if rendezvous is None:
            raise _nothing_at(scope)
        check_bearer(scope, rendezvous.token)
        body = await read_body(receive, max_bytes=self._max_body_bytes)
        if endpoint is not None:
            endpoint.note_progress()
        await send_whole(send, 200, await rendezvous.accept(kind, body))


class _Ended:
    """The rendezvous of the newest ended rollouts, for servers that missed an acknowledgement."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._kept: dict[str, Rendezvous] = {}

    def keep(self, key: str, rendezvous: Rendezvous) -> None:
        rendezvous.end()
        self._kept[key] = rendezvous
        if len(self._kept) > self._size:
            del self._kept[next(iter(self._kept))]

    def get(self, key: str) -> Rendezvous | None:
        return self._kept.get(key)


def _nothing_at(scope: Scope) -> HttpError:
    return HttpError(404, f"nothing here at {scope['path']}: no such rollout, or it has ended")


def _split(path: str) -> tuple[str, str, str]:
    """What stands before a rollout's URL, its key, and what comes after."""
    prefix, _, rest = path.partition("/v1/rollouts/")
    key, _, route = rest.partition("/")
    return prefix, key, route


async def _refuse(error: HttpError, scope: Scope, send: Send) -> None:
    _, _, route = _split(scope["path"])
    dialect = ROUTES.get(route)
    if dialect is None:
        await send_error(send, error.status, str(error))
    else:
        body = dialect.error_body(str(error), status=error.status)
        await send_whole(send, error.status, body)


_KINDS: dict[str, Kind] = {"completion": "completion", "grader": "grader"}
_METHODS = {
    "models": "GET",
    **dict.fromkeys(("chat/completions", *_KINDS, *ROUTES), "POST"),
}
