"""RolloutClient: submit rollouts to one or several servers, and have their outcomes."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from itertools import count, islice
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias
from uuid import uuid4

from osmosis_ai.errors import BackendError, ConfigError, ModelError
from osmosis_ai.rollout.client.answer import Policy
from osmosis_ai.rollout.client.fleet import Fleet, RolloutServer
from osmosis_ai.rollout.client.rollout import Rollout
from osmosis_ai.rollout.client.server_client import open_server_client
from osmosis_ai.rollout.client.server_flights import (
    POLICY_GONE,
    START_RETRIES,
    WATCH_SEC,
    ServerFlights,
)
from osmosis_ai.rollout.controller.address import (
    LOOPBACK,
    WILDCARDS,
    is_loopback,
    is_loopback_host,
)
from osmosis_ai.rollout.controller.listener import Controller
from osmosis_ai.rollout.controller.model.base import (
    ModelCall,
    ModelClient,
    ModelReply,
    ModelRequest,
)
from osmosis_ai.rollout.controller.retry import RetryPolicy
from osmosis_ai.rollout.flight.flight import STOP_PATIENCE_SEC
from osmosis_ai.rollout.flight.item import (
    Deadline,
    RolloutItem,
    deadline_sec,
    digest,
    rollout_id_for,
    seed_for,
)
from osmosis_ai.rollout.protocol import SERVER_RESTARTED
from osmosis_ai.rollout.types import ExecutionOutcome, ExecutionRequest, RolloutStatus

logger = logging.getLogger(__name__)

Protocol: TypeAlias = Literal["auto", "callback", "poll"]
"""How answers come: posted to the client, fetched by it, or whichever the server's place allows."""

Lost: TypeAlias = Literal["resubmit", "no_result"]
"""What becomes of the rollouts of a server that is lost."""

MAX_TRIES = 3
"""How often a rollout is begun that is broken off: its server ended, or somebody cancelled it."""

LOST_PATIENCE_SEC = 300.0
"""How long rollouts wait for a server while none is there."""


class RolloutClient:
    """Drives rollout servers that all serve the same rollouts, while its `async with` block lasts.

    async with RolloutClient(
        ["http://10.0.0.1:9000", "http://10.0.0.2:9000"],
        chat_completions_url="http://10.0.0.9:8000/v1",
        run_id="step-17",
    ) as client:
        group = client.submit_group([{"role": "user", "content": "6 * 7?"}], n=8, label="42")
        async for rollout, outcome in client.as_completed(group):
            reward = outcome.reward  # None where there is none: no result is never 0

    The policy is either a `chat_completions_url` that the servers reach, or a `model` that this
    client serves on its own listener, where servers on this machine reach it.

    Every rollout ends as a value; exceptions are for what you gave (ConfigError) and, when the
    block begins, for servers none of which answers (BackendError). With the same `run_id` a
    restarted client finds the rollouts that an earlier one submitted: they are not run again.
    """

    def __init__(
        self,
        servers: str | Sequence[str],
        *,
        chat_completions_url: str | None = None,
        llm_api_key: str | None = None,
        model: ModelClient | None = None,
        api_key: str | None = None,
        run_id: str | None = None,
        protocol: Protocol = "auto",
        listen_host: str = LOOPBACK,
        listen_port: int = 0,
        advertise_url: str | None = None,
        lost: Lost = "resubmit",
        lost_patience_sec: float = LOST_PATIENCE_SEC,
        deadline: Deadline = deadline_sec,
        stop_patience_sec: float = STOP_PATIENCE_SEC,
        watch_sec: float = WATCH_SEC,
        retry: RetryPolicy = START_RETRIES,
        artifact_root: Path | None = None,
    ) -> None:
        """`api_key` is what the servers were given as theirs, `llm_api_key` opens the policy's URL.

        Answers are posted to this client by servers that reach its listener, and fetched by long
        poll from others; `protocol` chooses. A server that does otherwise is understood by its
        reply. Servers on this machine reach the listener; those elsewhere do where `listen_host`
        is an address of this machine, and `advertise_url` what they call, if that is another one.
        Rollouts of a server that is gone for three looks (`watch_sec` apart) go to another one, or
        with `lost="no_result"` have none. `lost_patience_sec` is how long they wait while no server
        is there.
        """
        self.urls = (servers,) if isinstance(servers, str) else tuple(servers)
        self.run_id = run_id or uuid4().hex
        self._api_key = api_key
        self._resubmits = lost == "resubmit"
        self._policy = None
        if chat_completions_url is not None:
            self._policy = Policy(chat_completions_url, llm_api_key)
        self._model = model or _Elsewhere()
        self._protocol = protocol
        self._listener: dict[str, Any] = {
            "host": listen_host,
            "port": listen_port,
            "advertise_url": advertise_url,
        }
        self._watch_sec = watch_sec
        self._options: dict[str, Any] = {
            "policy": self._policy,
            "deadline": deadline,
            "stop_patience_sec": stop_patience_sec,
            "retry": retry,
            "resubmits": self._resubmits,
            "finds_again": run_id is not None,
            "patience_sec": lost_patience_sec,
            "artifact_root": artifact_root,
        }
        self._occurrences: Counter[str] = Counter()
        self._rollouts: dict[str, Rollout] = {}
        self._check(has_model=model is not None)

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            controller = stack.enter_context(Controller(self._model, **self._listener))
            servers = [await self._open(stack, url) for url in self.urls]
            fleet = Fleet(servers)
            if not fleet.is_there:
                raise BackendError(fleet.problem)
            self._flights = ServerFlights(fleet, controller=controller, **self._options)
            stack.push_async_callback(self._flights.close)
            for server in servers:
                watch = self._flights.watch(server, every_sec=self._watch_sec)
                stack.callback(asyncio.create_task(watch).cancel)
            stack.push_async_callback(self._cancel_rest)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._stack.aclose()

    @property
    def max_in_flight(self) -> int | None:
        """How many rollouts the servers run at once, as they say; None is unlimited."""
        return self._flights.max_in_flight

    def submit(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        label: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        item: str | None = None,
        attempt: int = 0,
        try_index: int = 0,
        row: int = 0,
        agent_timeout_sec: float | None = None,
        grader_timeout_sec: float | None = None,
    ) -> Rollout:
        """Start one rollout, as soon as a server has room for it.

        `item` names what it is an attempt at, and with the run, `attempt` and `try_index` makes its
        id; without one that is the content, and which time in this run the same content is
        submitted. An id under way with the same content is that rollout; with other content it is a
        ValueError. `row` is told to a scripted model and to the server.
        """
        if item is None:
            item = self._name(messages, label, metadata)
        place = RolloutItem(row=row, attempt=attempt, seed=seed_for(item=item, attempt=attempt))
        names = (
            rollout_id_for(run_id=self.run_id, item=item, attempt=attempt, try_index=k)
            for k in count(try_index)
        )
        request = ExecutionRequest(
            id=next(names),
            prompt=[dict(message) for message in messages],
            label=label,
            metadata=None if metadata is None else dict(metadata),
            agent_timeout_sec=agent_timeout_sec,
            grader_timeout_sec=grader_timeout_sec,
        )
        known = self._rollouts.get(request.id)
        if known is not None:
            if known.request != request:
                raise ValueError(f"{known!r} is under way with other content: name another item")
            return known
        rollout = Rollout(
            request, item=item, attempt=attempt, work=partial(self._run, names=names, place=place)
        )
        self._rollouts[request.id] = rollout
        rollout.task.add_done_callback(lambda _: self._rollouts.pop(request.id))
        return rollout

    def submit_group(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        n: int,
        label: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        item: str | None = None,
        **given: Any,
    ) -> list[Rollout]:
        """Start n attempts at one item; further arguments are those of `submit`."""
        if item is None:
            item = self._name(messages, label, metadata)
        return [
            self.submit(messages, label=label, metadata=metadata, item=item, attempt=k, **given)
            for k in range(n)
        ]

    async def as_completed(
        self, rollouts: Iterable[Rollout]
    ) -> AsyncIterator[tuple[Rollout, ExecutionOutcome]]:
        """Each rollout with its outcome, in the order in which they end."""
        ended: asyncio.Queue[Rollout] = asyncio.Queue()
        waiting = list(rollouts)
        for rollout in waiting:
            rollout.task.add_done_callback(partial(_put, ended, rollout))
        for _ in waiting:
            rollout = await ended.get()
            yield rollout, await rollout

    async def cancel(self, rollouts: Iterable[Rollout]) -> list[ExecutionOutcome]:
        """Tell rollouts to stop, and return their outcomes when they have."""
        return list(await asyncio.gather(*(rollout.cancel() for rollout in rollouts)))

    async def _run(
        self, rollout: Rollout, *, names: Iterator[str], place: RolloutItem
    ) -> ExecutionOutcome:
        outcome = await self._flights.run(rollout.request, item=place)
        for rollout_id in islice(names, MAX_TRIES - 1 if self._resubmits else 0):
            if not _was_interrupted(outcome):
                break
            # The server keeps what came of the name it knows: another go has another name.
            rollout.request = rollout.request.model_copy(update={"id": rollout_id})
            outcome = await self._flights.run(rollout.request, item=place)
        if self._policy is None:
            return outcome
        # The model's calls went elsewhere: what was counted here says nothing of them.
        return outcome.model_copy(update={"usage": None, "timing": None})

    async def _open(self, stack: AsyncExitStack, url: str) -> RolloutServer:
        link = await stack.enter_async_context(open_server_client(url, api_key=self._api_key))
        server = RolloutServer(link, posts_back=self._posts_back(url))
        try:
            server.hear(await link.health())
        except BackendError as error:
            logger.warning("%s", error)
            server.lose(error)
        return server

    async def _cancel_rest(self) -> None:
        await self.cancel(list(self._rollouts.values()))

    def _name(
        self,
        messages: Sequence[Mapping[str, Any]],
        label: str | None,
        metadata: Mapping[str, Any] | None,
    ) -> str:
        """A name that a restarted client, which submits the same in the same order, gives too."""
        content = json.dumps([messages, label, metadata], sort_keys=True, default=str)
        name = digest(content)[:32]
        self._occurrences[name] += 1
        return f"{name}-{self._occurrences[name] - 1}"

    def _check(self, *, has_model: bool) -> None:
        if not self.urls:
            raise ConfigError("there is no server: give the URL of one at least", key="servers")
        if has_model == (self._policy is not None):
            raise ConfigError(
                "give the policy in one way: a chat_completions_url that the servers reach, or a "
                "model that this client serves",
                key="model",
            )
        if self._listener["host"] in WILDCARDS and self._listener["advertise_url"] is None:
            raise ConfigError(
                f"{self._listener['host']} means every address of this machine, and servers call "
                "one: give advertise_url",
                key="advertise_url",
            )
        far = [url for url in self.urls if not self._is_reached_from(url)]
        if far and (has_model or self._protocol == "callback"):
            raise ConfigError(
                f"{far[0]} is another machine, which does not reach this client's listener: give "
                "listen_host and advertise_url, or a chat_completions_url and no callbacks",
                key="advertise_url",
            )

    def _posts_back(self, url: str) -> bool:
        if self._protocol == "auto":
            return self._is_reached_from(url)
        return self._protocol == "callback"

    def _is_reached_from(self, url: str) -> bool:
        advertised = self._listener["advertise_url"]
        if advertised is None:
            stays_here = is_loopback_host(self._listener["host"])
        else:
            stays_here = is_loopback(advertised)
        return is_loopback(url) or not stays_here


def _was_interrupted(outcome: ExecutionOutcome) -> bool:
    """Whether the rollout was broken off in the middle, by neither its code nor this client."""
    if outcome.workflow.status is RolloutStatus.CANCELLED:
        return True
    return outcome.workflow.no_result in _BROKEN_OFF or outcome.result.no_result in _BROKEN_OFF


_BROKEN_OFF = frozenset({SERVER_RESTARTED, POLICY_GONE})


class _Elsewhere(ModelClient):
    """Stands for a policy that the rollouts reach without this client."""

    async def complete(self, request: ModelRequest, call: ModelCall) -> ModelReply:
        raise ModelError("this client serves no model: the policy has a URL of its own")


def _put(ended: asyncio.Queue[Rollout], rollout: Rollout, task: asyncio.Task[Any]) -> None:
    ended.put_nowait(rollout)
