"""The first of six outcomes that fits, and what goes with it."""

from __future__ import annotations

import pytest

from osmosis_ai.eval.outcome import Outcome, Verdict, classify, no_result
from osmosis_ai.rollout.types import (
    ExecutionOutcome,
    ExecutionResult,
    ModelUsage,
    RolloutErrorCategory,
    RolloutSample,
    RolloutStatus,
)
from tests.eval.workspace import failed, scored

OK = ExecutionResult(status=RolloutStatus.SUCCESS, sample=RolloutSample())
CANCELLED = ExecutionResult(status=RolloutStatus.CANCELLED, err_message="cancelled")
BARE = ExecutionResult(status=RolloutStatus.FAILURE, phase="grader")
UNREACHED = ModelUsage(calls=2, failed_calls=1, last_error="503 from the model")


def outcome_of(
    workflow: ExecutionResult,
    grader: ExecutionResult | None = None,
    usage: ModelUsage | None = None,
) -> Verdict:
    return classify(ExecutionOutcome(workflow=workflow, grader=grader, usage=usage))


def graded(sample: RolloutSample | None) -> ExecutionResult:
    return ExecutionResult(status=RolloutStatus.SUCCESS, sample=sample)


def test_a_graded_sample_is_scored() -> None:
    assert classify(scored(0.25)) == Verdict(Outcome.SCORED, reward=0.25)


def test_a_reward_of_zero_is_a_reward() -> None:
    assert classify(scored(0.0)) == Verdict(Outcome.SCORED, reward=0.0)


def test_a_workflow_that_survives_a_failed_call_is_scored() -> None:
    """It had another way; its record counts the failed call."""
    assert outcome_of(OK, graded(RolloutSample(reward=1.0)), UNREACHED).outcome is Outcome.SCORED


@pytest.mark.parametrize(
    "category", [RolloutErrorCategory.AGENT_ERROR, RolloutErrorCategory.TIMEOUT]
)
def test_a_workflow_that_raised_has_failed(category: RolloutErrorCategory) -> None:
    verdict = outcome_of(failed("why", err_category=category), BARE)
    assert verdict == Verdict(
        Outcome.WORKFLOW_FAILED, phase="workflow", category=category, message="why"
    )


def test_a_workflow_that_raised_after_the_model_did_not_answer_has_no_result() -> None:
    """A dead endpoint says nothing about the agent."""
    verdict = outcome_of(failed("KeyError"), None, UNREACHED)
    assert verdict.outcome is Outcome.NO_RESULT
    assert verdict.message == "the model did not answer: 503 from the model"


def test_a_workflow_that_raised_after_an_answer_has_failed() -> None:
    answered = ModelUsage(calls=2, failed_calls=1)
    assert outcome_of(failed(), None, answered).outcome is Outcome.WORKFLOW_FAILED


@pytest.mark.parametrize(
    "workflow",
    [
        CANCELLED,
        failed(no_result="the server died"),
        failed(err_category=RolloutErrorCategory.INTERNAL_ERROR),
        failed(err_category=RolloutErrorCategory.LEASE_EXPIRED),
        failed(err_category=RolloutErrorCategory.HTTP_ERROR),
        failed("Internal server error", err_category=None),
    ],
)
def test_a_workflow_that_was_lost_from_outside_has_no_result(workflow: ExecutionResult) -> None:
    assert outcome_of(workflow, BARE).outcome is Outcome.NO_RESULT


@pytest.mark.parametrize(
    "grader", [CANCELLED, failed("judge", no_result="judge is down"), failed(no_result="")]
)
def test_a_grade_that_was_lost_from_outside_has_no_result(grader: ExecutionResult) -> None:
    assert outcome_of(OK, grader).outcome is Outcome.NO_RESULT


def test_no_result_says_why() -> None:
    verdict = outcome_of(OK, failed("x", no_result="judge is down"))
    assert (verdict.phase, verdict.message) == ("grader", "judge is down")
    assert outcome_of(CANCELLED).message == "cancelled"
    assert outcome_of(ExecutionResult(status=RolloutStatus.CANCELLED)).message == "cancelled"


def test_what_was_raised_is_told_in_one_line() -> None:
    """Of a model that did not answer that is the reason, not what it made the workflow raise."""
    raised = failed("'x'", err_summary="KeyError: 'x' (main.py:3, in run)")
    assert outcome_of(raised).summary == "KeyError: 'x' (main.py:3, in run)"
    assert outcome_of(OK, raised).summary == "KeyError: 'x' (main.py:3, in run)"
    assert outcome_of(raised, None, UNREACHED).summary is None
    judge = failed("away", no_result="away", err_summary="NoResult: away (main.py:3, in grade)")
    assert outcome_of(OK, judge).summary == "NoResult: away (main.py:3, in grade)"


def test_the_driver_itself_may_have_no_result() -> None:
    assert no_result("gone", category="x") == Verdict(
        Outcome.NO_RESULT, category="x", message="gone"
    )


def test_a_grader_that_raised_has_failed() -> None:
    verdict = outcome_of(OK, failed("bad", err_category=RolloutErrorCategory.VALIDATION_ERROR))
    assert verdict == Verdict(
        Outcome.GRADER_FAILED, phase="grader", category="validation_error", message="bad"
    )


def test_a_failed_grade_with_nothing_but_a_sample_has_failed() -> None:
    grader = ExecutionResult(status=RolloutStatus.FAILURE, sample=RolloutSample())
    assert outcome_of(OK, grader).outcome is Outcome.GRADER_FAILED


@pytest.mark.parametrize(
    "sample",
    [
        None,
        RolloutSample(),
        RolloutSample.model_construct(reward=float("nan"), remove_sample=False),
    ],
)
def test_a_grade_without_a_reward_is_a_failed_grader_and_never_zero(
    sample: RolloutSample | None,
) -> None:
    verdict = outcome_of(OK, graded(sample))
    assert (verdict.outcome, verdict.reward) == (Outcome.GRADER_FAILED, None)
    assert verdict.message == "the grader left no reward"


def test_a_removed_sample_has_no_reward() -> None:
    sample = RolloutSample(remove_sample=True, reward=1.0)
    assert outcome_of(OK, graded(sample)) == Verdict(Outcome.REMOVED)


def test_what_nobody_grades_is_ungraded() -> None:
    """No grader, or nothing to grade by: a backend then answers with a bare failure."""
    assert outcome_of(OK) == Verdict(Outcome.UNGRADED)
    assert outcome_of(OK, BARE) == Verdict(Outcome.UNGRADED)
