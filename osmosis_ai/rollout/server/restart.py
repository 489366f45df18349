"""A server begins with what earlier ones owed: it delivers that, and runs none of it again."""

from __future__ import annotations

import logging
import os
import secrets
import sqlite3
import time
from pathlib import Path
from typing import Any

import orjson

from osmosis_ai.errors import RunError
from osmosis_ai.rollout.protocol import (
    SERVER_RESTARTED,
    encode_completion,
    encode_grade,
    encode_result,
)
from osmosis_ai.rollout.server.entry import (
    Answer,
    AnswerKind,
    AnswerState,
    Entry,
)
from osmosis_ai.rollout.server.history import Ended
from osmosis_ai.rollout.server.journal import (
    Journal,
    abandoned_journals,
    is_held,
    open_journal,
)
from osmosis_ai.rollout.server.lease import Lease
from osmosis_ai.rollout.server.mailbox import Mailbox, mailbox_for
from osmosis_ai.rollout.server.recipient import Outcome, ungraded
from osmosis_ai.rollout.types import ExecutionResult, RolloutStatus

logger = logging.getLogger(__name__)

MAX_AGE_SEC = 24 * 3600.0
"""How old a journal may be that nobody holds, for a server to take it over."""

UNKNOWN = RolloutStatus.UNKNOWN

_KEPT_NO_LONGER = (AnswerState.DELIVERED, AnswerState.DROPPED)


def open_new_journal(folder: Path) -> Journal:
    """A journal of a server's own; RunError where the folder takes none."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    return open_journal(folder / f"{stamp}-{os.getpid()}-{secrets.token_hex(4)}.sqlite3")


async def adopt_abandoned(journal: Journal) -> None:
    """Take over the journals beside this one that no server holds any more, newest first."""
    for path in reversed(abandoned_journals(journal.path.parent, max_age_sec=MAX_AGE_SEC)):
        if is_held(path):
            continue
        try:
            await _adopt(journal, path)
        except (RunError, sqlite3.Error) as exc:
            logger.warning("the journal %s is not taken over: %s", path, exc)
        else:
            logger.info("took over the journal %s", path.name)


async def _adopt(journal: Journal, path: Path) -> None:
    other = open_journal(path)
    is_taken = False
    try:
        await journal.adopt(other.entries())
        is_taken = True
    finally:
        other.close(remove=is_taken)


async def finish_unfinished(journal: Journal) -> list[Mailbox]:
    """Give each rollout that was not brought to its end an answer; return what is to be posted."""
    missing = [
        _restarted(entry.accepted.rollout_id, kind)
        for entry in journal.unfinished()
        for kind in entry.missing
    ]
    if missing:
        await journal.answer(*missing)
    return [
        mailbox_from(entry)
        for entry in journal.unfinished()
        if entry.accepted.completion_url is not None
    ]


def ended_from(entry: Entry, *, journal: Journal, retention_sec: float) -> Ended:
    """A rollout that is over, as the journal remembers it."""
    accepted = entry.accepted
    bodies = {answer.kind: answer.body for answer in entry.answers}
    is_forgotten = _is_forgotten(entry, retention_sec)
    status, reward, err_message = Outcome(UNKNOWN) if is_forgotten else _outcome(bodies)
    lease: Lease | None = None
    if accepted.lease_token is not None:
        lease = Lease(
            accepted.rollout_id,
            wants_grade=True,
            token=accepted.lease_token,
            journal=journal,
            result=None if is_forgotten else bodies.get(AnswerKind.RESULT),
        )
    return Ended(
        accepted.digest,
        0.0,
        status,
        reward,
        err_message,
        accepted.grader_url is not None,
        lease=lease,
        is_forgotten=is_forgotten,
    )


def mailbox_from(entry: Entry) -> Mailbox:
    """The mailbox of a rollout that is over, with what is owed."""
    mailbox = mailbox_for(entry.accepted)
    mailbox.is_archived = True
    made = {answer.kind for answer in entry.answers}
    bodies = {answer.kind: answer.body for answer in entry.owed}
    for letter in mailbox:
        letter.is_given = letter.is_written = letter.kind in made
        letter.body = bodies.get(letter.kind)
    return mailbox


def _is_forgotten(entry: Entry, retention_sec: float) -> bool:
    """Whether what a rollout came to is no longer kept, or no longer told."""
    if any(not answer.body for answer in entry.answers):
        return True
    oldest = time.time() - retention_sec
    return all(
        answer.made_at < oldest
        and (answer.state in _KEPT_NO_LONGER or answer.kind is AnswerKind.RESULT)
        for answer in entry.answers
    )


def _restarted(rollout_id: str, kind: AnswerKind) -> Answer:
    result = ExecutionResult(
        status=RolloutStatus.FAILURE,
        err_message="the rollout server was restarted before the rollout had ended",
        phase="workflow",
        no_result=SERVER_RESTARTED,
    )
    if kind is AnswerKind.RESULT:
        return Answer(rollout_id, kind, encode_result(rollout_id, result, None))
    if kind is AnswerKind.COMPLETION:
        return Answer(rollout_id, kind, encode_completion(rollout_id, result))
    return Answer(rollout_id, kind, encode_grade(rollout_id, ungraded(SERVER_RESTARTED)))


def _outcome(bodies: dict[AnswerKind, bytes]) -> Outcome:
    said = {kind: orjson.loads(body) for kind, body in bodies.items() if body}
    last = said.get(AnswerKind.RESULT) or said.get(AnswerKind.COMPLETION)
    if last is None:
        return Outcome(UNKNOWN)
    grade = said.get(AnswerKind.GRADER, {})
    # A bare failure says that nothing was graded: the rollout stands as its workflow does.
    is_graded = grade.get("err_message") is not None or grade.get("sample") is not None
    if is_graded and last["status"] == RolloutStatus.SUCCESS:
        last = grade
    sample: dict[str, Any] = last.get("sample") or {}
    return Outcome(RolloutStatus(last["status"]), sample.get("reward"), last["err_message"])
