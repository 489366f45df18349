"""A controller's report is read from whatever it answers."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from osmosis_ai.rollout.trajectory import report_from_response

CALLS = [{"prompt_tokens": 3, "completion_token_ids": [1, 2], "surprise": True}]
REPORT = {"model_name": "m", "samples": {"any": {"llm_call_metrics": CALLS}}}


@pytest.mark.parametrize(
    "body",
    [
        {"trajectory": REPORT, "other": 1},
        json.dumps({"trajectory": REPORT, "other": 1}).encode(),
    ],
)
def test_a_report_is_found_in_an_answer(body: Any) -> None:
    report = report_from_response(body)
    assert report is not None
    assert report.model_name == "m"
    (call,) = report.samples["any"].llm_call_metrics
    assert (call.prompt_tokens, call.completion_token_ids) == (3, [1, 2])


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"ok", b'"trajectory"', b'{"trajectory": null}', {}, {"trajectory": None}]
)
def test_an_answer_without_a_report_has_none(body: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert report_from_response(body) is None
    assert caplog.records == []


def test_an_answer_that_is_not_json_is_nothing_to_warn_of(caplog: pytest.LogCaptureFixture) -> None:
    assert report_from_response(b'<p>"trajectory"</p>') is None
    assert caplog.records == []


@pytest.mark.parametrize(
    ("report", "where"),
    [
        ("x", "trajectory"),
        ({"samples": []}, "trajectory.samples"),
        ({"samples": {"a": {"llm_call_metrics": 1}}}, "trajectory.samples.a.llm_call_metrics"),
        ({"samples": {"a": {"llm_call_metrics": [{"prompt_tokens": -1}]}}}, "prompt_tokens"),
        ({"samples": {"a": {"llm_call_metrics": [{"prompt_token_ids": [2**60]}]}}}, "ids"),
    ],
)
def test_a_malformed_report_costs_a_warning(
    report: Any, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    body = json.dumps({"trajectory": report}).encode()
    assert report_from_response(body, rollout_id="r-7") is None
    assert "r-7" in caplog.text
    assert where in caplog.text


def test_numbers_that_are_not_finite_cost_no_more_than_themselves() -> None:
    """Log probabilities of minus infinity are common; the token ids beside them are training."""
    call = {
        "completion_token_ids": [1],
        "logprobs": [float("-inf")],
        "cost_usd": float("nan"),
        "extra": {"a": 1},
    }
    body = json.dumps({"trajectory": {"samples": {"a": {"llm_call_metrics": [call]}}}}).encode()
    report = report_from_response(body)
    assert report is not None
    (read,) = report.samples["a"].llm_call_metrics
    assert read.model_dump(exclude_none=True) == {
        "completion_token_ids": [1],
        "extra": {"a": 1, "not_finite": ["cost_usd", "logprobs"]},
    }


def test_finite_numbers_are_kept() -> None:
    call = {"logprobs": [-0.5, 0], "cost_usd": "0.25"}
    report = report_from_response({"trajectory": {"samples": {"a": {"llm_call_metrics": [call]}}}})
    assert report is not None
    (read,) = report.samples["a"].llm_call_metrics
    assert read.model_dump(exclude_none=True) == {"logprobs": [-0.5, 0.0], "cost_usd": 0.25}
