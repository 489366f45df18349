"""RolloutEndpoint: the URLs of one rollout, what went over them, and whether its time is up."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import NamedTuple, Self
from urllib.parse import quote

from osmosis_ai.rollout.controller.asgi import HttpError
from osmosis_ai.rollout.controller.budget import RolloutMeter
from osmosis_ai.rollout.controller.clock import DeadlineClock
from osmosis_ai.rollout.controller.model.base import ModelCall
from osmosis_ai.rollout.controller.rendezvous import Commit, Rendezvous
from osmosis_ai.rollout.controller.usage import AnsweredCall, Receipt, Tally, count_all, make_report
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
        meter: RolloutMeter | None = None,
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
        self._tally = Tally()
        self._answered: list[AnsweredCall] = []
        self._open_calls: set[OpenCall] = set()
        self._busy = _Busy()
        self._clock = clock
        self._ends_at = math.inf
        self._on_deadline: Callable[[], None] | None = None
        self._rang = False
        self._close = close
        self._meter = meter
        self._end: str | None = None
        self._got_on_at = clock.now()

    @property
    def is_expired(self) -> bool:
        """Whether the deadline has passed, also where nobody had a moment to notice it."""
        return self._rang or self._clock.now() > self._ends_at

    @property
    def limit_reached(self) -> str | None:
        """The limit of its own that it asked for more than, as `name = value`."""
        return None if self._meter is None else self._meter.reached

    @property
    def run_limit_reached(self) -> str | None:
        """The limit of the whole run that it asked for more than."""
        return None if self._meter is None else self._meter.run_reached

    @property
    def remaining_sec(self) -> float:
        """Seconds to the deadline."""
        return self._ends_at - self._clock.now()

    def set_deadline(self, after_sec: float, on_deadline: Callable[[], None] | None = None) -> None:
        """Give the rollout so many seconds from now.

        `on_deadline` is also called when it asks for more than its budget.

        `on_deadline` is called in the listener's thread.
        """
        self._ends_at = self._clock.now() + after_sec
        self._on_deadline = on_deadline
        self.note_progress()
        self._clock.set(self, self._ends_at)

    def clear_deadline(self) -> None:
        """Let it have the time it takes, until another deadline is set."""
        self._ends_at = math.inf
        self._clock.drop(self)

    def usage(self) -> ModelUsage:
        """The model calls so far."""
        return self._tally.usage()

    def answered_calls(self) -> list[AnsweredCall]:
        """The calls so far that were answered, as they ended."""
        return list(self._answered)

    @property
    def model_sec(self) -> float:
        """Seconds so far in which at least one model call was open, retries included."""
        return self._busy.total_sec(self.now())

    @property
    def row(self) -> int:
        """Of the item it is for."""
        return self._first_call.row

    @property
    def attempt(self) -> int:
        """Of the item it is for."""
        return self._first_call.attempt

    @property
    def is_calling(self) -> bool:
        """Whether a model call is open now."""
        return bool(self._open_calls)

    @property
    def idle_sec(self) -> float:
        """Seconds since it last got on: a call that began or ended, a chunk, an answer."""
        return self.now() - self._got_on_at

    def note_progress(self) -> None:
        """It gets on."""
        self._got_on_at = self.now()

    def now(self) -> float:
        """The time that calls and deadlines are measured in; a debugger's prompt takes none."""
        return self._clock.now()

    def expect_callbacks(self, *, commit: Commit | None = None) -> Callbacks:
        """Open the two URLs a rollout server posts its answers to."""
        self.callbacks = Rendezvous(
            self.rollout_id, commit=commit, report=lambda: make_report(self._answered)
        )
        return Callbacks(
            # Others than any before: a server gives again what it gave at another place.
            completion_url=f"{self.chat_completions_url}/completion?to={self.callbacks.name}",
            grader_url=f"{self.chat_completions_url}/grader?to={self.callbacks.name}",
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
        one = self._first_call
        turn = next(self._turns)
        call = OpenCall(self, ModelCall(one.rollout_id, one.row, one.attempt, turn, one.seed))
        self._open_calls.add(call)
        if self._end is not None:
            self._open_calls.discard(call)
            raise HttpError(410, self._end)
        if self._meter is not None:
            self._ask_for_one_more(self._meter, call)
        self._tally = self._tally.with_call()
        self._got_on_at = call.began
        if self._busy.since is None:
            self._busy = _Busy(self._busy.sec, since=call.began)
        return call

    def _ask_for_one_more(self, meter: RolloutMeter, call: OpenCall) -> None:
        refusal = meter.begin_call()
        if refusal is None:
            return
        self._open_calls.discard(call)
        self._end = refusal
        # What a call before this one failed of has not ended the rollout.
        self.count_refusal()
        if self._on_deadline is not None:
            self._on_deadline()
        raise HttpError(410, refusal)

    def count_retry(self) -> None:
        """A call is asked once more."""
        self._tally = self._tally.with_retry()

    def count_failure(self, fault: str, status: int | None) -> None:
        """A call failed for reasons outside the agent."""
        self._tally = self._tally.with_failure(fault, status)

    def count_refusal(self) -> None:
        """A call came to nothing for reasons of its own."""
        self._tally = self._tally.with_refusal()

    def count_answer(self, answered: AnsweredCall) -> None:
        """A call was answered."""
        self._tally = self._tally.with_answer(answered.receipt)
        if self._meter is not None:
            receipt = answered.receipt
            self._meter.add_answer(tokens=count_all(receipt.usage), cost_usd=receipt.cost_usd)
        self._answered.append(answered)

    def end_call(self, call: OpenCall) -> None:
        """Nothing goes on in this call any more."""
        self._open_calls.discard(call)
        self.note_progress()
        if not self._open_calls:
            self._busy = _Busy(self._busy.total_sec(self._got_on_at))

    def expire(self) -> None:
        """The clock rang."""
        self._rang = True
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
        self.began = endpoint.now()
        self.is_answering = False
        """Whether the client has been sent the beginning of an answer."""
        self._last_failure: tuple[str, int | None] | None = None
        self._retries = 0
        self._is_counted = False
        self._task = asyncio.current_task()

    def interrupt(self, reason: str) -> None:
        """Cancel the task, once, and leave the reason."""
        if self.ended_because is None and self._task is not None:
            self.ended_because = reason
            self._task.cancel()

    def note_failure(self, fault: str, status: int | None) -> None:
        """This try failed; the call goes on all the same."""
        self._last_failure = (fault, status)

    def retry(self) -> None:
        """Another try begins."""
        self._retries += 1
        self.endpoint.count_retry()

    # How the call ended: only the first word counts.

    def answered(self, receipt: Receipt) -> None:
        """The model has answered."""
        if self._counts_now():
            latency_sec = self.endpoint.now() - self.began
            self.endpoint.count_answer(
                AnsweredCall(self.call.turn, latency_sec, self._retries, receipt)
            )

    def failed(self, fault: str, status: int | None) -> None:
        """It failed for reasons outside the agent; a status of None is no answer at all."""
        if self._counts_now():
            self.endpoint.count_failure(fault, status)

    def dropped(self) -> None:
        """It came to nothing for reasons of its own: refused by the model, or given up."""
        if self._counts_now():
            self.endpoint.count_refusal()

    def _count_end(self) -> None:
        # A client that hung up while a failed call was tried again has not seen the model.
        if self._last_failure is not None:
            self.failed(*self._last_failure)
        self.dropped()

    def _counts_now(self) -> bool:
        is_first, self._is_counted = not self._is_counted, True
        return is_first

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._is_counted:
            self._count_end()
        self.endpoint.end_call(self)


class _Busy(NamedTuple):
    """How long calls were open, and since when one is; replaced as a whole, as counts are."""

    sec: float = 0.0
    since: float | None = None

    def total_sec(self, now: float) -> float:
        return self.sec if self.since is None else self.sec + now - self.since


def path_key(rollout_id: str) -> str:
    """A rollout's name in URLs; ids may hold what no URL can."""
    return safe_text(rollout_id)
