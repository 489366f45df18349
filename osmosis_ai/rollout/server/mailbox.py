"""Mailbox: the answers one controller is owed for one rollout, and where they go."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field

from osmosis_ai.rollout.http import ControllerAuth, Target, header_lines
from osmosis_ai.rollout.server.entry import (
    Accepted,
    AnswerKind,
)
from osmosis_ai.rollout.trajectory.report import TrajectoryReport


class Letter(Target):
    """One answer, from the request for it to its arrival."""

    __slots__ = (
        "_arrived_at",
        "body",
        "is_given",
        "is_under_way",
        "is_waiting",
        "is_written",
        "kind",
    )

    def __init__(self, kind: AnswerKind, url: str, *, headers: bytes) -> None:
        super().__init__(url, headers=headers)
        self.kind = kind
        self.is_given = False
        self.is_written = False
        """Whether the journal has it."""
        self.is_waiting = False
        """Whether its mailbox's postman is to post it."""
        self.is_under_way = False
        self.body: bytes | None = None
        """What is to arrive; None before it is given and when it has arrived."""
        self._arrived_at: tuple[object, bytes] | None = None

    def give(self, body: bytes) -> None:
        """Put the answer in."""
        self.is_given = True
        self.body = body

    def note_arrived(self) -> None:
        """It was taken where it goes now."""
        self.body = None
        self._arrived_at = (self.address, self.headers)

    @property
    def has_arrived(self) -> bool:
        """Whether it was taken where it goes now, and not only where it went before."""
        return self._arrived_at == (self.address, self.headers)

    @property
    def is_stranded(self) -> bool:
        """Whether it was given, did not arrive and is not on its way."""
        return self.body is not None and not self.is_under_way and not self.is_waiting


@dataclass(slots=True)
class Mailbox:
    """The answers one controller is owed for one rollout."""

    rollout_id: str
    completion: Letter
    grader: Letter | None = None
    report: TrajectoryReport | None = field(default=None, repr=False)
    """The newest report that came with an acknowledgement."""
    is_archived: bool = False
    """Whether the trajectory has been written, so that a report goes into the file."""
    postman: asyncio.Task[None] | None = None
    """Posts what is waiting, in order."""

    def __iter__(self) -> Iterator[Letter]:
        """The letters, in the order they are given."""
        yield self.completion
        if self.grader is not None:
            yield self.grader

    @property
    def is_complete(self) -> bool:
        """Whether every answer has been given, arrived or not."""
        return all(letter.is_given for letter in self)

    def readdress(self, newer: Mailbox) -> None:
        """Send what has not arrived to where a newer request wants it."""
        self.completion.move(newer.completion)
        if self.grader is None:
            self.grader = newer.grader
        elif newer.grader is not None:
            self.grader.move(newer.grader)


def mailbox_for(accepted: Accepted) -> Mailbox:
    """The answers a rollout was promised; ValueError where a URL or the key cannot be used."""
    assert accepted.completion_url is not None, "a rollout that is polled has no mailbox"
    headers = header_lines(ControllerAuth(accepted.callback_key))
    completion = Letter(AnswerKind.COMPLETION, accepted.completion_url, headers=headers)
    if accepted.grader_url is None:
        return Mailbox(accepted.rollout_id, completion)
    grader = Letter(AnswerKind.GRADER, accepted.grader_url, headers=headers)
    return Mailbox(accepted.rollout_id, completion, grader)
