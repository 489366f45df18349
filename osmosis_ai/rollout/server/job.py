"""One rollout on its way from the backend to its answers and its trajectory."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field

from osmosis_ai.rollout.backend.base import ExecutionBackend
from osmosis_ai.rollout.context import RolloutContext
from osmosis_ai.rollout.protocol import StartRequest
from osmosis_ai.rollout.raised import summarize_error
from osmosis_ai.rollout.safe_json import SafeJson
from osmosis_ai.rollout.server.recipient import NOT_ASKED_FOR, Outcome, Recipient, ungraded
from osmosis_ai.rollout.trajectory.save import save_trajectory, snapshot_messages
from osmosis_ai.rollout.types import ExecutionRequest, ExecutionResult, RolloutStatus

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Job:
    """One rollout between its admission and its end."""

    request: ExecutionRequest
    body: StartRequest
    digest: str
    recipient: Recipient = field(repr=False)
    admitted: asyncio.Future[bool] | None = field(default=None, repr=False)
    """Whether it could be written down, once that is known; None where nothing is written."""
    has_begun: bool = False
    completion: ExecutionResult | None = None
    grade: ExecutionResult | None = None
    _snapshot: SafeJson | None = field(default=None, repr=False)

    async def run(self, backend: ExecutionBackend) -> None:
        """Run it, give each answer exactly once whatever the backend does, and archive it."""
        self.has_begun = True
        wants_grade = self.recipient.wants_grade or backend.capture_final_result
        rest: ExecutionResult | None = None
        try:
            with self._context():
                await backend.execute(
                    self.request, self._complete, self._grade if wants_grade else None
                )
        except asyncio.CancelledError:
            rest = _cancelled()
            # The cancellation may have struck while an answer was on its way.
            await self.recipient.take_interrupted()
        except Exception as exc:  # the backend's failure: a controller must not wait for ever
            logger.exception("rollout %s: its backend failed", self.request.id)
            rest = _no_answer(f"its backend raised {summarize_error(exc)}")
        if self.completion is None or not self.recipient.is_complete:
            rest = rest or _no_answer("its backend ended without an answer")
            await self._answer_rest(rest, no_grade=rest.no_result if wants_grade else NOT_ASKED_FOR)
        await self._archive()

    @property
    def outcome(self) -> Outcome:
        """How the rollout stands, by the answers given so far."""
        if (otherwise := self.recipient.ended_by_itself) is not None:
            return otherwise
        completion, grade = self.completion, self.grade
        if completion is None:
            return Outcome(RolloutStatus.RUNNING if self.has_begun else RolloutStatus.QUEUED)
        if grade is None or not completion.succeeded:
            return Outcome(completion.status, err_message=completion.err_message)
        if grade.succeeded and grade.sample is not None and not grade.sample.remove_sample:
            return Outcome(RolloutStatus.SUCCESS, reward=grade.sample.reward)
        if grade.err_message is not None:
            return Outcome(RolloutStatus.FAILURE, err_message=grade.err_message)
        return Outcome(RolloutStatus.SUCCESS)  # removed, or there was nothing to grade by

    def _context(self) -> RolloutContext:
        return RolloutContext(
            chat_completions_url=self.body.chat_completions_url,
            api_key=self.body.policy_key,
            rollout_id=self.request.id,
        )

    async def _complete(self, result: ExecutionResult) -> None:
        if self.completion is not None:
            logger.warning("rollout %s: a second completion is dropped", self.request.id)
            return
        self.completion = result
        self._snapshot = snapshot_messages(result.sample)
        await self.recipient.take_completion(result)

    async def _grade(self, result: ExecutionResult) -> None:
        if self.grade is not None:
            logger.warning("rollout %s: a second grader answer is dropped", self.request.id)
            return
        self.grade = result
        await self.recipient.take_grade(result)

    async def _answer_rest(self, rest: ExecutionResult, *, no_grade: str | None) -> None:
        """Give the answers that the backend did not."""
        if self.completion is None:
            await self._complete(rest)
        if not self.recipient.is_complete:
            self.grade = self.grade or ungraded(no_grade)
            await self.recipient.take_grade(self.grade)

    async def _archive(self) -> None:
        assert self.completion is not None, "a job is archived when its answers have been given"
        result = self.completion
        diagnostics = result.extra_fields
        if self.grade is not None:
            result = self.grade if self.grade.sample is not None else result
            diagnostics = self.grade.extra_fields or diagnostics
        await save_trajectory(
            rollout_id=self.request.id,
            result=result,
            request_label=self.request.label,
            request_metadata=self.request.metadata,
            request_extra_fields=self.body.extra_fields,
            report=self.recipient.report,
            diagnostics=diagnostics,
            messages=self._snapshot,
        )
        self.recipient.note_archived()


def _cancelled() -> ExecutionResult:
    return ExecutionResult(
        status=RolloutStatus.CANCELLED, err_message="cancelled", phase="workflow"
    )


def _no_answer(why: str) -> ExecutionResult:
    return ExecutionResult(
        status=RolloutStatus.FAILURE,
        err_message="Internal server error",
        phase="workflow",
        no_result=f"the rollout server failed: {why}",
    )
