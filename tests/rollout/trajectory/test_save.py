"""What an archived rollout says, and what cannot stop it from being archived."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.rollout.trajectory.convert import convert_sample_to_trajectory
from osmosis_ai.rollout.trajectory.report import TrajectoryReport, report_from_response
from osmosis_ai.rollout.trajectory.save import save_trajectory, snapshot_messages
from osmosis_ai.rollout.types import ExecutionResult, RolloutSample, RolloutStatus
from tests.rollout.trajectory.corpus import AGENT_CALL, ANSWER, ASK, CORPUS, REPORTS, report_of
from tests.rollout.trajectory.documents import archive


async def document_of(root: Path, messages: list[dict[str, Any]], **given: Any) -> dict[str, Any]:
    document = await archive(root, messages, **given)
    assert document is not None
    return document


def result_of(sample: RolloutSample | None) -> ExecutionResult:
    return ExecutionResult(status=RolloutStatus.SUCCESS, sample=sample)


async def test_a_document_names_its_rollout_and_keeps_the_reward(tmp_path: Path) -> None:
    document = await document_of(tmp_path, ASK + ANSWER, reward=0.5, label="42")
    assert document["schema_version"] == "ATIF-v1.7"
    assert document["session_id"] == document["trajectory_id"] == "r1"
    assert document["extra"]["osmosis"] == {"rollout_id": "r1", "label": "42", "reward": 0.5}
    assert document["final_metrics"] == {"total_steps": 3}
    assert [(step["source"], step["message"]) for step in document["steps"]] == [
        ("system", "be brief"),
        ("user", "6 * 7?"),
        ("agent", "42"),
    ]


async def test_tool_results_join_the_step_that_called(tmp_path: Path) -> None:
    document = await document_of(tmp_path, CORPUS["parallel tool calls"])
    step = document["steps"][2]
    assert [call["tool_call_id"] for call in step["tool_calls"]] == ["a", "b"]
    assert step["tool_calls"][0]["arguments"] == {"x": 6, "y": 7}
    assert step["observation"]["results"] == [
        {"content": "1", "source_call_id": "b"},
        {"content": "42", "source_call_id": "a"},
    ]


async def test_arguments_that_are_no_object_are_kept_as_they_came(tmp_path: Path) -> None:
    document = await document_of(tmp_path, CORPUS["malformed arguments"])
    assert [call["arguments"] for call in document["steps"][2]["tool_calls"]] == [
        {"_raw": '{"x": 6,'},
        {"_raw": "[1, 2]"},
        {"_raw": '{"x": NaN}'},
        {"_raw": 7},
        {"x": 6},
        {},
    ]


async def test_missing_ids_and_names_are_made_up(tmp_path: Path) -> None:
    document = await document_of(tmp_path, CORPUS["missing ids and names"])
    step = document["steps"][2]
    assert [call["tool_call_id"] for call in step["tool_calls"]] == ["call_0", "call_1"]
    assert {call["function_name"] for call in step["tool_calls"]} == {"unknown"}
    assert step["observation"]["results"] == [
        {"content": "42"},
        {"content": "42", "source_call_id": "call_0"},
        {"content": "42", "extra": {"tool_call_id": 7}},
    ]


async def test_a_tool_result_that_nobody_called_for_has_a_step_of_its_own(tmp_path: Path) -> None:
    document = await document_of(tmp_path, CORPUS["tool result without a call"])
    assert document["steps"][0] == {
        "step_id": 1,
        "source": "system",
        "message": "",
        "observation": {"results": [{"content": "42", "extra": {"tool_call_id": "gone"}}]},
        "extra": {"original_role": "tool"},
    }


async def test_unknown_roles_are_users_who_say_what_they_were(tmp_path: Path) -> None:
    document = await document_of(tmp_path, CORPUS["developer and unknown roles"])
    said = [(step["source"], step.get("extra")) for step in document["steps"][:4]]
    assert said == [
        ("system", None),
        ("user", {"original_role": "narrator"}),
        ("user", None),
        ("user", None),
    ]


async def test_reasoning_of_others_than_the_agent_is_set_aside(tmp_path: Path) -> None:
    document = await document_of(tmp_path, CORPUS["reasoning"])
    assert document["steps"][2]["reasoning_content"] == "six sevens"
    assert document["steps"][3]["reasoning_content"] == '["six",{"and":"seven"}]'
    assert document["steps"][4]["extra"] == {"reasoning_content": "not an agent's"}


async def test_usage_models_and_times_of_messages_become_metrics(tmp_path: Path) -> None:
    document = await document_of(tmp_path, CORPUS["usage and times in the messages"])
    first, second, third, fourth = document["steps"][2:]
    assert first["model_name"] == "m-1"
    assert first["timestamp"] == "2025-11-30T10:53:20+00:00"
    assert first["llm_call_count"] == 1
    assert first["metrics"] == {
        "prompt_tokens": 9,
        "completion_tokens": 1,
        "cached_tokens": 4,
        "cost_usd": 0.25,
        "extra": {"prompt_tokens_details": {"cached_tokens": 4}},
    }
    assert (second["model_name"], second["metrics"]) == ("m-2", {"prompt_tokens": 7})
    assert "metrics" not in third
    assert "timestamp" not in third
    assert "metrics" not in fourth
    assert document["final_metrics"] == {
        "total_prompt_tokens": 16,
        "total_completion_tokens": 1,
        "total_cached_tokens": 4,
        "total_cost_usd": 0.25,
        "total_steps": 6,
    }


async def test_what_had_to_change_is_named(tmp_path: Path) -> None:
    document = await document_of(
        tmp_path, [{"role": "user", "content": "\ud800"}], metrics={"score": float("nan")}
    )
    assert document["steps"][0]["message"] == "�"
    marks = " ".join(document["extra"]["osmosis"]["made_safe"])
    assert "[0].content" in marks
    assert "score" in marks


async def test_a_report_with_a_call_for_each_agent_step_fills_the_steps(tmp_path: Path) -> None:
    document = await document_of(tmp_path, ASK + ANSWER, report=REPORTS["one call"])
    step = document["steps"][2]
    assert step["model_name"] == "served"
    assert step["metrics"] == {
        "prompt_tokens": 10,
        "completion_tokens": 2,
        "cost_usd": 0.5,
        "completion_token_ids": [4, 2],
        "logprobs": [-0.5, -0.25],
    }
    assert document["final_metrics"]["total_prompt_tokens"] == 10


async def test_a_report_of_other_calls_is_kept_beside_the_steps(tmp_path: Path) -> None:
    """Four calls for one step: nobody knows which is whose, but the totals are right."""
    document = await document_of(tmp_path, ASK + ANSWER, report=REPORTS["four calls"])
    assert "metrics" not in document["steps"][2]
    assert len(document["extra"]["osmosis"]["unmatched_llm_call_metrics"]) == 4
    assert document["final_metrics"]["total_prompt_tokens"] == 40
    assert document["final_metrics"]["total_cost_usd"] == 2.0


async def test_totals_of_the_report_win_but_not_over_the_count_of_steps(tmp_path: Path) -> None:
    document = await document_of(tmp_path, ASK + ANSWER, report=REPORTS["totals"])
    assert document["final_metrics"] == {"total_prompt_tokens": 99, "total_steps": 3}


async def test_totals_that_cannot_be_read_fall_back_to_sums(tmp_path: Path) -> None:
    document = await document_of(tmp_path, ASK + ANSWER, report=REPORTS["broken totals"])
    assert document["final_metrics"]["total_prompt_tokens"] == 10


async def test_a_report_of_two_samples_is_kept_whole(tmp_path: Path) -> None:
    document = await document_of(tmp_path, ASK + ANSWER, report=REPORTS["two samples"])
    assert set(document["extra"]["osmosis"]["unmatched_sample_reports"]) == {"a", "b"}
    assert "metrics" not in document["steps"][2]


async def test_an_infinite_log_probability_costs_itself_alone(tmp_path: Path) -> None:
    ack = {
        "trajectory": {
            "samples": {
                "s": {"llm_call_metrics": [{"logprobs": [float("-inf")], "prompt_tokens": 3}]}
            }
        }
    }
    document = await document_of(tmp_path, ASK + ANSWER, report=report_from_response(ack))
    assert document["steps"][2]["metrics"]["prompt_tokens"] == 3
    assert document["steps"][2]["metrics"]["extra"] == {"not_finite": ["logprobs"]}


@pytest.mark.parametrize(
    "ack", [b"", b"ok", b"[1]", b"{}", b'{"trajectory": null}', b'{"other": 1}', {}]
)
def test_most_acknowledgements_hold_no_report(ack: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert report_from_response(ack) is None
    assert caplog.records == []


def test_a_malformed_report_costs_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    ack = b'{"trajectory": {"samples": {"s": {"llm_call_metrics": "many"}}}}'
    assert report_from_response(ack, rollout_id="r9") is None
    assert "r9" in caplog.text
    assert "llm_call_metrics" in caplog.text


def test_a_report_is_read_from_bytes() -> None:
    report = report_of(AGENT_CALL)
    ack = json.dumps({"trajectory": report.model_dump()}).encode()
    assert report_from_response(ack) == report


async def test_the_snapshot_is_archived_whatever_a_grader_does_later(tmp_path: Path) -> None:
    sample = RolloutSample(messages=[{"role": "assistant", "content": "before"}])
    snapshot = snapshot_messages(sample)
    sample.messages[0]["content"] = "after"  # type: ignore[index]  # what a grader may do
    await save_trajectory(
        rollout_id="r1", result=result_of(sample), artifact_root=tmp_path, messages=snapshot
    )
    document = json.loads((tmp_path / "r1" / "trajectory.json").read_text())
    assert document["steps"][0]["message"] == "before"


@pytest.mark.parametrize("sample", [None, RolloutSample(messages=ASK, trajectory_messages=None)])
async def test_nothing_is_written_where_nothing_is_to_be_archived(
    tmp_path: Path, sample: RolloutSample | None
) -> None:
    await save_trajectory(rollout_id="r1", result=result_of(sample), artifact_root=tmp_path)
    assert not (tmp_path / "r1").exists()


async def test_a_conversation_of_no_messages_costs_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert await archive(tmp_path, []) is None
    assert "r1" in caplog.text
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


async def test_messages_for_the_archive_stand_for_native_ones(tmp_path: Path) -> None:
    native = [{"role": "assistant", "content": [{"text": "42"}]}]
    document = await document_of(tmp_path, native, trajectory_messages=ANSWER)
    assert [step["message"] for step in document["steps"]] == ["42"]


async def test_diagnostics_are_written_before_anything_else(tmp_path: Path) -> None:
    await save_trajectory(
        rollout_id="r1",
        result=result_of(None),
        artifact_root=tmp_path,
        diagnostics={"b": float("nan"), "a": Path("x")},
    )
    text = (tmp_path / "r1" / "diagnostics.json").read_text()
    assert list(json.loads(text)) == ["a", "b", "made_safe"]


async def test_numbers_stand_on_one_line(tmp_path: Path) -> None:
    """Token ids one a line make a page of each step."""
    await archive(tmp_path, ASK + ANSWER, report=REPORTS["one call"])
    text = (tmp_path / "r1" / "trajectory.json").read_text()
    assert '"completion_token_ids": [4, 2]' in text
    assert '"logprobs": [-0.5, -0.25]' in text


async def test_a_root_that_cannot_be_written_costs_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "file"
    root.write_text("")
    await save_trajectory(
        rollout_id="r1", result=result_of(RolloutSample(messages=ANSWER)), artifact_root=root
    )
    assert "r1" in caplog.text


async def test_a_folder_in_the_files_place_is_no_reason_to_fail(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "r1" / "trajectory.json").mkdir(parents=True)
    assert (await archive_quietly(tmp_path)) == ["trajectory.json"]
    assert "r1" in caplog.text


async def archive_quietly(root: Path) -> list[str]:
    await save_trajectory(
        rollout_id="r1", result=result_of(RolloutSample(messages=ANSWER)), artifact_root=root
    )
    return sorted(path.name for path in (root / "r1").iterdir())


async def test_a_link_in_the_files_place_is_replaced_and_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("mine")
    (tmp_path / "r1").mkdir()
    (tmp_path / "r1" / "trajectory.json").symlink_to(elsewhere)
    assert await archive_quietly(tmp_path) == ["trajectory.json"]
    assert elsewhere.read_text() == "mine"
    assert not (tmp_path / "r1" / "trajectory.json").is_symlink()


@pytest.mark.parametrize("rollout_id", ["../out", "a/b", "", ".."])
async def test_an_id_cannot_leave_its_directory(
    tmp_path: Path, rollout_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    await save_trajectory(
        rollout_id=rollout_id,
        result=result_of(RolloutSample(messages=ANSWER)),
        artifact_root=root,
    )
    assert "path segment" in caplog.text
    assert names_below(tmp_path) == ["root"]


def names_below(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*"))


def test_a_sample_that_is_not_to_be_archived_has_no_document() -> None:
    sample = RolloutSample(messages=ANSWER, trajectory_messages=None)
    with pytest.raises(ValueError, match="not to be archived"):
        convert_sample_to_trajectory(sample, rollout_id="r1")


def test_requests_are_kept_beside_the_sample() -> None:
    trajectory = convert_sample_to_trajectory(
        RolloutSample(messages=ANSWER),
        rollout_id="r1",
        request_label="42",
        request_metadata={"row": 3},
        request_extra_fields={"run": 1},
        default_model_name="m",
    )
    block = trajectory["extra"]["osmosis"]
    assert block["label"] == "42"
    assert block["request_metadata"] == {"row": 3}
    assert block["request_extra_fields"] == {"run": 1}
    assert trajectory["agent"]["model_name"] == "m"


def test_a_report_without_samples_says_the_model_alone() -> None:
    assert TrajectoryReport(model_name="m").samples == {}
