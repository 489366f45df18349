"""What a journal knows of a rollout: who asked for it, and how far its answers have come."""

from __future__ import annotations

import hashlib
import re
import time
from dataclasses import dataclass, field
from enum import StrEnum

# What may stand in a header as it is; any other id is named by its digest.
_PLAIN_ID = re.compile(r"[A-Za-z0-9._~-]{1,200}")


class AnswerKind(StrEnum):
    """Which answer of a rollout."""

    COMPLETION = "completion"
    GRADER = "grader"
    RESULT = "result"
    """Both in one, for whoever polls."""


class AnswerState(StrEnum):
    """How far an answer has come."""

    OWED = "owed"
    DELIVERED = "delivered"
    REFUSED = "refused"
    EXPIRED = "expired"
    DROPPED = "dropped"


@dataclass(frozen=True, slots=True)
class Accepted:
    """A rollout the server has promised to run, and where its answers go."""

    rollout_id: str
    digest: str
    completion_url: str | None = None
    grader_url: str | None = None
    callback_key: str | None = field(default=None, repr=False)
    accepted_at: float = field(default_factory=time.time)
    lease_token: str | None = field(default=None, repr=False)
    """What opens the result of a rollout that is polled."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer as it is posted: the same bytes and key however often.

    A body that is empty is no longer kept.
    """

    rollout_id: str
    kind: AnswerKind
    body: bytes = field(repr=False)
    state: AnswerState = AnswerState.OWED
    made_at: float = field(default_factory=time.time)


@dataclass(frozen=True, slots=True)
class Entry:
    """A rollout as the journal knows it."""

    accepted: Accepted
    answers: tuple[Answer, ...]

    @property
    def owed(self) -> tuple[Answer, ...]:
        """The answers still to be delivered, in order."""
        return tuple(answer for answer in self.answers if answer.state is AnswerState.OWED)

    @property
    def missing(self) -> tuple[AnswerKind, ...]:
        """The answers that were promised and never made, in order."""
        if self.accepted.completion_url is None:
            promised = [AnswerKind.RESULT]
        elif self.accepted.grader_url is None:
            promised = [AnswerKind.COMPLETION]
        else:
            promised = [AnswerKind.COMPLETION, AnswerKind.GRADER]
        made = {answer.kind for answer in self.answers}
        return tuple(kind for kind in promised if kind not in made)


def idempotency_key(rollout_id: str, kind: AnswerKind) -> str:
    """The key under which an answer is posted: the same for every post of it."""
    if not _PLAIN_ID.fullmatch(rollout_id):
        rollout_id = hashlib.sha256(rollout_id.encode()).hexdigest()
    return f"{rollout_id}/{kind}"
