"""Each answer of a rollout reaches its controller, or the log says which one did not and why."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from osmosis_ai.errors import ProtocolError
from osmosis_ai.rollout.http import ControllerAuth, HttpClient, Target, header_lines
from osmosis_ai.rollout.protocol import RolloutInitRequest
from osmosis_ai.rollout.trajectory.report import TrajectoryReport, report_from_response

logger = logging.getLogger(__name__)

Kind: TypeAlias = Literal["completion", "grader"]

# What may stand in a header as it is; any other id is named by its digest.
_PLAIN_ID = re.compile(r"[A-Za-z0-9._~-]{1,200}")


class Letter(Target):
    """One answer, from the request for it to its arrival."""

    __slots__ = ("body", "is_given", "is_under_way", "kind")

    def __init__(self, kind: Kind, url: str, *, headers: bytes) -> None:
        super().__init__(url, headers=headers)
        self.kind = kind
        self.is_given = False
        self.is_under_way = False
        self.body: bytes | None = None
        """What is to arrive; None before it is given and when it has arrived."""

    def give(self, body: bytes) -> None:
        """Put the answer in."""
        self.is_given = True
        self.body = body

    @property
    def is_stranded(self) -> bool:
        """Whether it was given, did not arrive and is not on its way."""
        return self.body is not None and not self.is_under_way


@dataclass(slots=True)
class Mailbox:
    """The answers one controller is owed for one rollout."""

    rollout_id: str
    completion: Letter
    grader: Letter | None = None
    report: TrajectoryReport | None = field(default=None, repr=False)
    """The newest report that came with an acknowledgement."""

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


def mailbox_for(rollout_id: str, body: RolloutInitRequest) -> Mailbox:
    """The answers a request asks for; ValueError where a URL or the key cannot be used."""
    headers = header_lines(ControllerAuth(body.controller_api_key))
    completion = Letter("completion", body.completion_callback_url, headers=headers)
    if body.grader_callback_url is None:
        return Mailbox(rollout_id, completion)
    return Mailbox(
        rollout_id, completion, Letter("grader", body.grader_callback_url, headers=headers)
    )


def idempotency_key(rollout_id: str, letter: Letter) -> str:
    """The same for every post of one answer, so that a controller can tell a repeated one."""
    if not _PLAIN_ID.fullmatch(rollout_id):
        rollout_id = hashlib.sha256(rollout_id.encode()).hexdigest()
    return f"{rollout_id}/{letter.kind}"


class Delivery:
    """Posts answers to controllers."""

    def __init__(self, client: HttpClient) -> None:
        self._client = client

    async def deliver(self, mailbox: Mailbox, letter: Letter, body: bytes) -> None:
        """Post one answer until it has arrived or cannot; never raises.

        An answer that did not arrive stays in its letter.
        """
        letter.give(body)
        await self._post(mailbox, letter, body)

    async def deliver_stranded(self, mailbox: Mailbox) -> None:
        """Post again what did not arrive."""
        for letter in mailbox:
            if letter.body is not None and not letter.is_under_way:
                await self._post(mailbox, letter, letter.body)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    async def _post(self, mailbox: Mailbox, letter: Letter, body: bytes) -> None:
        letter.is_under_way = True
        try:
            acknowledgement = await self._client.post(
                letter, body, idempotency_key=idempotency_key(mailbox.rollout_id, letter)
            )
        except ProtocolError as exc:
            logger.error(
                "rollout %s: its %s answer did not arrive: %s",
                mailbox.rollout_id,
                letter.kind,
                exc,
            )
            return
        finally:
            letter.is_under_way = False
        letter.body = None
        report = report_from_response(acknowledgement, rollout_id=mailbox.rollout_id)
        if report is not None:
            mailbox.report = report
