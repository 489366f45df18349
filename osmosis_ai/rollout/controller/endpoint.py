"""RolloutEndpoint: the URLs of one rollout, what went over them, and whether its time is up."""

from __future__ import annotations

import asyncio
import itertools
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, NamedTuple, Self
from urllib.parse import quote

from osmosis_ai.rollout.controller.asgi import HttpError
from osmosis_ai.rollout.controller.clock import DeadlineClock
from osmosis_ai.rollout.controller.model.base import ModelCall
from osmosis_ai.rollout.controller.rendezvous import Commit, Rendezvous
from osmosis_ai.rollout.safe_json import safe_text
from osmosis_ai.rollout.types import ModelUsage

PAST_DEADLINE = "the deadline of this rollout has passed"
CLOSED = "this rollout has ended"


class RolloutEndpoint:
    """What a controller offers one rollout; a context manager that closes it.

    Made by `Controller.open_rollout`. After `close` its URLs answer 404.
    """

    def __init__(
        self,
        *,
        base_url: str,
        api_key: str,
        first_call: ModelCall,
        clock: DeadlineClock,
        close: Callable[[RolloutEndpoint], None],
    ) -> None:
        self.rollout_id = first_call.rollout_id
        self.key = path_key(first_call.rollout_id)
        self.chat_completions_url = f"{base_url}/v1/rollouts/{quote(self.key, safe='')}"
        """OpenAI-compatible base URL; clients append `/chat/completions`."""
        self.api_key = api_key
        """Opens the model's URL of this rollout, and nothing else."""
        self.token = self.api_key.encode()
        self.callbacks: Rendezvous | None = None
        """Where a server's answers arrive, once `expect_callbacks` was called."""
        self._first_call = first_call
        self._turns = itertools.count()
        self._tally = _Tally()
        self._open_calls: set[OpenCall] = set()
        self._clock = clock
        self._ends_at = math.inf
        self._on_deadline: Callable[[], None] | None = None
        self._rang = threading.Event()
        self._close = close
        self._end: str | None = None

    @property
    def is_expired(self) -> bool:
        """Whether the deadline has passed, also where nobody had a moment to notice it."""
        return self._rang.is_set() or self._clock.now() > self._ends_at

    @property
    def remaining_sec(self) -> float:
        """Seconds to the deadline."""
        return self._ends_at - self._clock.now()

    def set_deadline(self, after_sec: float, on_deadline: Callable[[], None] | None = None) -> None:
        """Give the rollout so many seconds from now.

        `on_deadline` is called in the listener's thread.
        """
        self._ends_at = self._clock.now() + after_sec
        self._on_deadline = on_deadline
        self._clock.set(self, self._ends_at)

    def usage(self) -> ModelUsage:
        """The model calls so far."""
        return ModelUsage(**self._tally._asdict())

    def expect_callbacks(self, *, commit: Commit | None = None) -> Callbacks:
        """Open the two URLs a rollout server posts its answers to."""
        self.callbacks = Rendezvous(self.rollout_id, commit=commit)
        return Callbacks(
            completion_url=f"{self.chat_completions_url}/completion",
            grader_url=f"{self.chat_completions_url}/grader",
            api_key=self.callbacks.api_key,
            rendezvous=self.callbacks,
        )

    def stop_calls(self, reason: str = CLOSED) -> None:
        """Take no further model calls, and end the open ones."""
        self._end = self._end or reason
        if self._open_calls:
            self._clock.loop.call_soon_threadsafe(self.end_calls, reason)

    def close(self) -> None:
        """Take the URLs off the listener, and end the calls that are still open."""
        self._clock.drop(self)
        self.stop_calls()
        self._close(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # What follows belongs to the listener's thread.

    def begin_call(self) -> OpenCall:
        """Count one more call; raises HttpError 410 where the rollout has none left."""
        call = OpenCall(self, replace(self._first_call, turn=next(self._turns)))
        self._open_calls.add(call)
        if self._end is not None:
            self._open_calls.discard(call)
            raise HttpError(410, self._end)
        self._tally = self._tally.with_call()
        return call

    def count_call(self, *, fault: str | None, usage: Any) -> None:
        """Count how a call ended: with a fault outside the agent, or with tokens."""
        self._tally = self._tally.with_end(fault, usage)

    def end_call(self, call: OpenCall) -> None:
        """Nothing goes on in this call any more."""
        self._open_calls.discard(call)

    def expire(self) -> None:
        """The clock rang."""
        self._rang.set()
        self.end_calls(PAST_DEADLINE)
        if self._on_deadline is not None:
            self._on_deadline()

    def end_calls(self, reason: str) -> None:
        """Take no further calls, and end the open ones."""
        self._end = self._end or reason
        for call in self._open_calls:
            call.interrupt(reason)


@dataclass(frozen=True, slots=True)
class Callbacks:
    """What a rollout server is told to send its answers to, and where to wait for them."""

    completion_url: str
    grader_url: str
    api_key: str
    rendezvous: Rendezvous


class OpenCall:
    """One model call that is going on in the current task; others may interrupt it."""

    def __init__(self, endpoint: RolloutEndpoint, call: ModelCall) -> None:
        self.endpoint = endpoint
        self.call = call
        self.ended_because: str | None = None
        """Why the call was interrupted."""
        self.last_fault: str | None = None
        """Why the newest try of this call failed."""
        self.is_answering = False
        """Whether the client has been sent the beginning of an answer."""
        self._is_counted = False
        self._task = asyncio.current_task()

    def interrupt(self, reason: str) -> None:
        """Cancel the task, once, and leave the reason."""
        if self.ended_because is None and self._task is not None:
            self.ended_because = reason
            self._task.cancel()

    def count(self, *, fault: str | None, usage: Any = None) -> None:
        """Say how the call ended; only the first word counts."""
        if not self._is_counted:
            self._is_counted = True
            self.endpoint.count_call(fault=fault, usage=usage)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # A client that hung up while a failed call was tried again has not seen the model.
        self.count(fault=self.last_fault)
        self.endpoint.end_call(self)


def path_key(rollout_id: str) -> str:
    """A rollout's name in URLs; ids may hold what no URL can."""
    return safe_text(rollout_id)


class _Tally(NamedTuple):
    """Counts that are replaced as a whole, so that another thread never reads half an update."""

    calls: int = 0
    failed_calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    last_error: str | None = None

    def with_call(self) -> _Tally:
        return self._replace(calls=self.calls + 1)

    def with_end(self, fault: str | None, usage: Any) -> _Tally:
        if fault is not None:
            return self._replace(failed_calls=self.failed_calls + 1, last_error=fault)
        prompt, completion = _count(usage, "prompt_tokens"), _count(usage, "completion_tokens")
        return self._replace(
            prompt_tokens=self.prompt_tokens + prompt,
            completion_tokens=self.completion_tokens + completion,
            total_tokens=self.total_tokens + (_count(usage, "total_tokens") or prompt + completion),
            last_error=None,
        )


def _count(usage: Any, key: str) -> int:
    value = usage.get(key) if isinstance(usage, dict) else None
    return value if isinstance(value, int) and value > 0 else 0
