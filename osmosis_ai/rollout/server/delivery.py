"""Each answer of a rollout reaches its controller, or the log says which one did not and why.

With a journal an answer is written down, and then a postman of its mailbox posts it for as long as
it takes; without one it is posted while the rollout waits.
"""

from __future__ import annotations

import asyncio
import logging

from osmosis_ai.errors import ProtocolError, RunError
from osmosis_ai.rollout.http import RETRIED_STATUSES, HttpClient
from osmosis_ai.rollout.server.entry import (
    Answer,
    AnswerState,
    idempotency_key,
)
from osmosis_ai.rollout.server.journal import Journal
from osmosis_ai.rollout.server.mailbox import Letter, Mailbox
from osmosis_ai.rollout.trajectory.report import report_from_response
from osmosis_ai.rollout.trajectory.save import add_report

logger = logging.getLogger(__name__)

WINDOW_SEC = 3600.0
"""How long an answer that is on disk is posted again and again."""


class Delivery:
    """Posts answers to controllers."""

    def __init__(self, client: HttpClient, *, window_sec: float = WINDOW_SEC) -> None:
        self.journal: Journal | None = None
        """Where answers are written down; given to it by a server that begins."""
        self._client = client
        self._window_sec = window_sec
        self._busy: dict[str, Mailbox] = {}
        self._owed: dict[Letter, float] = {}
        """Answers on their way, and since when; the oldest first."""

    async def deliver(self, mailbox: Mailbox, letter: Letter, body: bytes) -> None:
        """Take one answer; never raises.

        Returns when it is on disk; without a journal, when it has arrived or cannot. An answer that
        did not arrive stays in its letter.
        """
        letter.give(body)
        await self._deliver(mailbox, letter)

    async def deliver_stranded(self, mailbox: Mailbox) -> None:
        """Take again what was given, did not arrive and is not on its way; never raises."""
        for letter in mailbox:
            if letter.is_stranded:
                await self._deliver(mailbox, letter)

    def hand_over_written(self, mailbox: Mailbox) -> None:
        """Hand over what is on disk, did not arrive and is not on its way."""
        for letter in mailbox:
            if letter.is_stranded and letter.is_written:
                self.hand_over(mailbox, letter)

    def hand_over(self, mailbox: Mailbox, letter: Letter) -> None:
        """Have a mailbox's postman post an answer, after those that wait already."""
        letter.is_waiting = True
        self._note_owed(letter)
        if mailbox.postman is None:
            self._busy[mailbox.rollout_id] = mailbox
            mailbox.postman = asyncio.get_running_loop().create_task(self._go_round(mailbox))

    def mailbox(self, rollout_id: str) -> Mailbox | None:
        """The mailbox of a rollout whose postman is on his way."""
        return self._busy.get(rollout_id)

    @property
    def oldest_sec(self) -> float | None:
        """How long the oldest answer that is on its way has been so; None without any."""
        since = next(iter(self._owed.values()), None)
        return None if since is None else asyncio.get_running_loop().time() - since

    async def drain(self, limit_sec: float) -> None:
        """Give the postmen some more time; what they do not bring stays in the journal."""
        if tasks := self._postmen():
            await asyncio.wait(tasks, timeout=limit_sec)
        if tasks := self._postmen():
            logger.warning(
                "%d rollouts have answers that did not arrive yet; the journal keeps them for the "
                "next server",
                len(tasks),
            )
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _note_owed(self, letter: Letter) -> None:
        self._owed.setdefault(letter, asyncio.get_running_loop().time())

    def _postmen(self) -> list[asyncio.Task[None]]:
        return [box.postman for box in self._busy.values() if box.postman is not None]

    async def _deliver(self, mailbox: Mailbox, letter: Letter) -> None:
        self._note_owed(letter)
        if self.journal is None:
            await self._post(mailbox, letter)
            return
        await self._write_down(self.journal, mailbox, letter)
        if letter.is_stranded:  # nobody else has taken it in the meantime
            self.hand_over(mailbox, letter)
        if not letter.is_written and mailbox.postman is not None:
            await asyncio.wait([mailbox.postman])

    async def _write_down(self, journal: Journal, mailbox: Mailbox, letter: Letter) -> None:
        assert letter.body is not None, "what has arrived is not written again"
        try:
            await journal.answer(Answer(mailbox.rollout_id, letter.kind, letter.body))
        except RunError as exc:
            logger.error("rollout %s: it is posted unwritten: %s", mailbox.rollout_id, exc)
        else:
            letter.is_written = True

    async def _go_round(self, mailbox: Mailbox) -> None:
        try:
            while waiting := [letter for letter in mailbox if letter.is_waiting]:
                await self._post(mailbox, waiting[0])
        finally:
            mailbox.postman = None
            del self._busy[mailbox.rollout_id]

    async def _post(self, mailbox: Mailbox, letter: Letter) -> None:
        assert letter.body is not None, "what has arrived is not posted again"
        letter.is_waiting, letter.is_under_way = False, True
        body = letter.body
        try:
            acknowledgement = await self._client.post(
                letter,
                body,
                idempotency_key=idempotency_key(mailbox.rollout_id, letter.kind),
                window_sec=self._window_sec if letter.is_written else None,
            )
        except ProtocolError as exc:
            logger.error(
                "rollout %s: its %s answer did not arrive: %s",
                mailbox.rollout_id,
                letter.kind,
                exc,
            )
            self._settle(mailbox, letter, body, _state_after(exc))
            return
        finally:
            letter.is_under_way = False
            self._owed.pop(letter, None)
        letter.note_arrived()
        self._settle(mailbox, letter, body, AnswerState.DELIVERED)
        self._keep_report(mailbox, acknowledgement)

    def _settle(self, mailbox: Mailbox, letter: Letter, body: bytes, state: AnswerState) -> None:
        if self.journal is None:
            return
        if not letter.is_written:
            # Else the next server would give the rollout another answer.
            self.journal.note(Answer(mailbox.rollout_id, letter.kind, body, state))
        self.journal.settle(mailbox.rollout_id, letter.kind, state)

    def _keep_report(self, mailbox: Mailbox, acknowledgement: bytes) -> None:
        report = report_from_response(acknowledgement, rollout_id=mailbox.rollout_id)
        if report is None:
            return
        if mailbox.is_archived:
            add_report(mailbox.rollout_id, report)
        else:
            mailbox.report = report


def _state_after(error: ProtocolError) -> AnswerState:
    refused = error.status_code is not None and error.status_code not in RETRIED_STATUSES
    return AnswerState.REFUSED if refused else AnswerState.EXPIRED
