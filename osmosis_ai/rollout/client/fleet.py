"""Fleet: the servers of a client, and which of them takes the next rollout."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from osmosis_ai.errors import BackendError
from osmosis_ai.rollout.client.server_client import ServerClient
from osmosis_ai.rollout.flight.flight import Flight


class RolloutServer:
    """One server, as far as a client knows it: how full it is, and whether it is there."""

    def __init__(self, link: ServerClient, *, posts_back: bool = True) -> None:
        self.link = link
        self.posts_back = posts_back
        """Whether its answers reach the client's own listener."""
        self.limit: int | None = None
        """How many rollouts it runs at once; None is unlimited."""
        self.flights: set[Flight] = set()
        self.loss: BackendError | None = None
        """Why nothing is sent there now."""
        self.is_lost_for_good = False
        self.news: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Ends when whoever waits for an answer of this server had better look after it."""
        self.is_accepting = True
        """False while it says that it takes no rollouts, as one does that is about to end."""
        self._others = 0
        self._rests_until = -math.inf
        self._seen: set[Flight] = set()
        self._instance: object = None

    @property
    def url(self) -> str:
        """Where it is."""
        return self.link.url

    @property
    def free(self) -> float:
        """For how many more rollouts it has room, those of other clients counted as last heard."""
        if self.limit is None:
            return math.inf
        return self.limit - len(self.flights) - self._others

    @property
    def resting_sec(self) -> float:
        """Seconds until it takes rollouts again, as it said."""
        return max(0.0, self._rests_until - asyncio.get_running_loop().time())

    @contextmanager
    def carrying(self, flight: Flight) -> Iterator[None]:
        """Count a rollout as one of this server's."""
        self.flights.add(flight)
        try:
            yield
        finally:
            self.flights.discard(flight)
            self._seen.discard(flight)

    def rest(self, pause_sec: float) -> None:
        """It takes nothing for a while."""
        self._rests_until = asyncio.get_running_loop().time() + pause_sec

    def lose(self, error: BackendError, *, for_good: bool = False) -> None:
        """It is gone, or takes nothing from us at all."""
        self.loss, self.is_lost_for_good = error, for_good
        self.stir()

    def welcome(self) -> None:
        """It is back."""
        self.loss = None

    def stir(self) -> None:
        """Let those that wait for its answers look after them."""
        news, self.news = self.news, asyncio.get_running_loop().create_future()
        news.set_result(None)

    def hear(self, health: dict[str, Any]) -> bool:
        """Take note of what it says of itself; True where it may have forgotten rollouts.

        That is another instance, or fewer rollouts in flight than have been sent there for a while.
        """
        said = _Said(health)
        self.limit = said.limit
        self.is_accepting = said.is_accepting
        self._others = max(0, said.held - len(self.flights))
        before, self._instance = self._instance, said.instance
        is_another = before is not None and before != said.instance
        stayed = len(self._seen)
        self._seen = set(self.flights)
        return is_another or (said.active is not None and said.active < stayed)


class Fleet:
    """Several servers that run the same rollouts."""

    def __init__(self, servers: Sequence[RolloutServer]) -> None:
        self.servers = tuple(servers)

    @property
    def limit(self) -> int | None:
        """How many rollouts the servers that are there run at once; None is unlimited."""
        limits = [server.limit for server in self._there()]
        return None if None in limits else sum(limit for limit in limits if limit is not None)

    @property
    def is_there(self) -> bool:
        """Whether any server is."""
        return any(True for _ in self._there())

    @property
    def is_hopeless(self) -> bool:
        """Whether no server will be there again."""
        return all(server.is_lost_for_good for server in self.servers)

    @property
    def problem(self) -> str:
        """Why no server is there."""
        return "; ".join(str(server.loss) for server in self.servers if server.loss is not None)

    @property
    def rested_in_sec(self) -> float:
        """Seconds until some server takes rollouts, as they said."""
        return min((server.resting_sec for server in self._there()), default=0.0)

    def pick(self) -> RolloutServer | None:
        """The server with the most room; None where there is no server."""
        return min(self._there(), key=_reluctance, default=None)

    def carrier(self, flight: Flight) -> RolloutServer | None:
        """Where a rollout is."""
        return next((server for server in self.servers if flight in server.flights), None)

    def _there(self) -> Iterator[RolloutServer]:
        return (server for server in self.servers if server.loss is None)


class _Said:
    """What the body of `GET /health` says, where it makes sense."""

    def __init__(self, health: dict[str, Any]) -> None:
        counts, life = _object(health.get("concurrency")), _object(health.get("lifecycle"))
        active = life.get("active_rollouts")
        self.limit = _positive(counts.get("max_concurrent"))
        self.held = (_positive(counts.get("running")) or 0) + (_positive(counts.get("queued")) or 0)
        self.active = active if isinstance(active, int) else None
        self.is_accepting = life.get("accepting_rollouts") is not False
        self.instance = health.get("instance_id") or health.get("process_id")


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _positive(value: object) -> int | None:
    return value if isinstance(value, int) and value > 0 else None


def _reluctance(server: RolloutServer) -> tuple[bool, float, float, int]:
    return not server.is_accepting, server.resting_sec, -server.free, len(server.flights)
