"""Mailbox: the answers one controller is owed for one rollout, and where they go."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field

from osmosis_ai.rollout.http import ControllerAuth, Target, header_lines
from osmosis_ai.rollout.server.journal import Accepted, AnswerKind
from osmosis_ai.rollout.trajectory.report import TrajectoryReport


@dataclass(slots=True)
class Letter:
    """One answer, from the request for it to its arrival."""

    kind: AnswerKind
    target: Target
    is_given: bool = False
    is_waiting: bool = False
    """Whether it is its mailbox's postman who posts it."""
    is_under_way: bool = False
    body: bytes | None = field(default=None, repr=False)
    """What is to arrive; None before it is given and when it has arrived."""

    def give(self, body: bytes) -> None:
        """Put the answer in."""
        self.is_given = True
        self.body = body

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

    @property
    def stranded(self) -> list[Letter]:
        """What was given, did not arrive and is not on its way."""
        return [letter for letter in self if letter.is_stranded]

    def is_elsewhere(self, newer: Mailbox) -> bool:
        """Whether a newer request wants an answer at another place than this one."""
        return any(
            known is None or known.target.address != wanted.target.address
            for known, wanted in zip((self.completion, self.grader), newer, strict=False)
        )

    def readdress(self, newer: Mailbox) -> None:
        """Send what has not arrived to where a newer request wants it."""
        self.completion.target.move(newer.completion.target)
        if self.grader is None:
            self.grader = newer.grader
        elif newer.grader is not None:
            self.grader.target.move(newer.grader.target)


def mailbox_for(accepted: Accepted) -> Mailbox:
    """The answers a rollout was promised; ValueError where a URL or the key cannot be used."""
    assert accepted.completion_url is not None, "a rollout that is polled has no mailbox"
    headers = header_lines(ControllerAuth(accepted.callback_key))
    completion = Letter(AnswerKind.COMPLETION, Target(accepted.completion_url, headers=headers))
    mailbox = Mailbox(accepted.rollout_id, completion)
    if accepted.grader_url is not None:
        target = Target(accepted.grader_url, headers=headers)
        mailbox.grader = Letter(AnswerKind.GRADER, target)
    return mailbox
