"""A sample becomes an ATIF document, with what the controller reported of its model calls."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from osmosis_ai import __version__
from osmosis_ai.rollout.trajectory import convert_sample_to_trajectory
from osmosis_ai.rollout.trajectory.report import SampleReport
from osmosis_ai.rollout.types import RolloutSample

MESSAGES = [
    {"role": "user", "content": "2 + 2"},
    {"role": "assistant", "content": "3?", "usage": {"prompt_tokens": 5, "cost_usd": 0.1}},
    {"role": "user", "content": "no"},
    {"role": "assistant", "content": "4", "usage": {"prompt_tokens": 7}},
]


def convert(sample: RolloutSample | None = None, **fields: Any) -> Any:
    sample = sample or RolloutSample(messages=MESSAGES)
    return convert_sample_to_trajectory(sample, rollout_id="r", **fields)


def report(**fields: Any) -> SampleReport:
    return SampleReport.model_validate(fields)


def test_the_least_a_document_says() -> None:
    sample = RolloutSample(messages=[{"role": "user", "content": "x"}])
    assert convert(sample) == {
        "schema_version": "ATIF-v1.7",
        "session_id": "r",
        "trajectory_id": "r",
        "agent": {"name": "osmosis-rollout-sdk", "version": __version__},
        "steps": [{"step_id": 1, "source": "user", "message": "x"}],
        "final_metrics": {"total_steps": 1},
        "extra": {"osmosis": {"rollout_id": "r"}},
    }


def test_what_a_document_says_of_the_rollout() -> None:
    sample = RolloutSample(
        messages=MESSAGES, label="4", reward=0.0, metrics={"turns": 2}, extra_fields={"a": 1}
    )
    document = convert(
        sample,
        request_label="other",
        request_metadata={"row": 1},
        request_extra_fields={"b": 2},
        default_model_name="m",
    )
    assert document["agent"]["model_name"] == "m"
    assert document["extra"]["osmosis"] == {
        "rollout_id": "r",
        "label": "4",
        "reward": 0.0,
        "sample_metrics": {"turns": 2},
        "sample_extra_fields": {"a": 1},
        "request_metadata": {"row": 1},
        "request_extra_fields": {"b": 2},
    }


def test_the_requests_label_stands_in_for_the_samples() -> None:
    assert convert(request_label="")["extra"]["osmosis"]["label"] == ""


def test_what_says_nothing_is_left_out() -> None:
    document = convert(request_metadata={}, request_extra_fields={})
    assert document["extra"]["osmosis"] == {"rollout_id": "r"}


def test_the_archives_messages_go_before_the_native_ones() -> None:
    sample = RolloutSample(
        messages=[{"role": "user", "content": [{"text": "native"}]}],
        trajectory_messages=[{"role": "user", "content": "chat"}],
    )
    assert convert(sample)["steps"][0]["message"] == "chat"


def test_messages_that_are_given_go_before_both() -> None:
    assert convert(messages=[{"role": "user", "content": "then"}])["steps"][0]["message"] == "then"


def test_a_sample_that_is_not_to_be_archived_is_not_converted() -> None:
    with pytest.raises(ValueError, match="trajectory_messages is None"):
        convert(RolloutSample(messages=MESSAGES, trajectory_messages=None))


@pytest.mark.parametrize("messages", [None, []])
def test_no_messages_are_no_document(messages: Any) -> None:
    with pytest.raises(ValueError, match="at least one step"):
        convert(RolloutSample(), messages=messages)


def test_totals_are_summed_over_the_steps() -> None:
    assert convert()["final_metrics"] == {
        "total_prompt_tokens": 12,
        "total_cost_usd": 0.1,
        "total_steps": 4,
    }


def test_reported_calls_join_the_agent_steps_in_order() -> None:
    calls = [
        {"completion_tokens": 1, "model_name": "a", "completion_token_ids": [9]},
        {"prompt_tokens": 70, "cached_tokens": 3},
    ]
    document = convert(report=report(model_name="m", llm_call_metrics=calls))
    first, second = document["steps"][1], document["steps"][3]
    assert document["agent"]["model_name"] == "m"
    assert first["model_name"] == "a"
    assert first["metrics"] == {
        "prompt_tokens": 5,
        "cost_usd": 0.1,
        "completion_tokens": 1,
        "completion_token_ids": [9],
    }
    assert "model_name" not in second
    assert second["metrics"] == {"prompt_tokens": 70, "cached_tokens": 3}
    assert [first["llm_call_count"], second["llm_call_count"]] == [1, 1]
    assert document["final_metrics"] == {
        "total_prompt_tokens": 75,
        "total_completion_tokens": 1,
        "total_cached_tokens": 3,
        "total_cost_usd": 0.1,
        "total_steps": 4,
    }


def test_a_reported_call_without_numbers_is_a_call() -> None:
    sample = RolloutSample(messages=[{"role": "assistant", "content": "x"}])
    (step,) = convert(sample, report=report(llm_call_metrics=[{}]))["steps"]
    assert step["llm_call_count"] == 1
    assert "metrics" not in step


@pytest.mark.parametrize("count", [1, 3])
def test_reported_calls_that_fit_no_steps_are_kept_and_counted(count: int) -> None:
    """A wrong step would be worse than none, and the cost was paid all the same."""
    calls = [{"prompt_tokens": 100, "model_name": "a"}] * count
    document = convert(report=report(llm_call_metrics=calls))
    assert document["extra"]["osmosis"]["unmatched_llm_call_metrics"] == calls
    assert document["steps"][1]["metrics"] == {"prompt_tokens": 5, "cost_usd": 0.1}
    assert document["final_metrics"] == {
        "total_prompt_tokens": 100 * count,
        "total_cost_usd": 0.1,
        "total_steps": 4,
    }


def test_reported_totals_win() -> None:
    totals = {"total_prompt_tokens": 1, "total_cost_usd": 2, "total_steps": 99, "extra": {"a": 1}}
    assert convert(report=report(final_metrics=totals))["final_metrics"] == {
        "total_prompt_tokens": 1,
        "total_cost_usd": 2.0,
        "total_steps": 4,
        "extra": {"a": 1},
    }


@pytest.mark.parametrize(
    "totals", [{"total_prompt_tokens": "x"}, {"total_cost_usd": float("nan")}, {"extra": 1}]
)
def test_sums_stand_for_totals_that_cannot_be_read(
    totals: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    document = convert(report=report(final_metrics=totals))
    assert document["final_metrics"]["total_prompt_tokens"] == 12
    assert "final_metrics are ignored" in caplog.text


def test_reports_on_several_samples_are_kept_aside() -> None:
    reports = {"a": report(model_name="m"), "b": report(llm_call_metrics=[{"prompt_tokens": 1}])}
    document = convert(unmatched_sample_reports=reports)
    assert document["extra"]["osmosis"]["unmatched_sample_reports"] == {
        "a": {"model_name": "m", "llm_call_metrics": []},
        "b": {"llm_call_metrics": [{"prompt_tokens": 1}]},
    }
    assert document["final_metrics"]["total_prompt_tokens"] == 12
