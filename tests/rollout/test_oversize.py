"""A sample that is too large is cut until it fits, says so, and keeps its reward."""

from __future__ import annotations

import json
from typing import Any

import pytest

from osmosis_ai.rollout.oversize import MAX_SAMPLE_BYTES, cut_sample
from osmosis_ai.rollout.protocol import encode_grade, encode_sample
from osmosis_ai.rollout.types import ExecutionResult, RolloutSample, RolloutStatus


def a_sample(*contents: str, **fields: Any) -> bytes:
    messages = [{"role": "user", "content": content} for content in contents]
    sample = RolloutSample(messages=messages, reward=0.5, **fields)
    return encode_sample(sample, rewarded=True)


def cut(sample: bytes, *, max_bytes: int) -> Any:
    fitting = cut_sample(sample, max_bytes=max_bytes)
    assert len(fitting) <= max_bytes
    document = json.loads(fitting)
    assert document["reward"] == 0.5
    return document


def test_what_fits_is_the_very_same() -> None:
    sample = a_sample("hello")
    assert cut_sample(sample, max_bytes=len(sample)) is sample


def test_a_long_text_is_cut_and_a_short_one_is_not() -> None:
    document = cut(a_sample("x" * 200_000, "short"), max_bytes=50_000)
    long, short = (message["content"] for message in document["messages"])
    assert long == "x" * 10_000 + "… [cut: 200,000 characters]"
    assert short == "short"
    assert document["extra_fields"]["cut"] == {
        "messages": "of 200,064 bytes; texts end after 10,000 characters"
    }


def test_texts_are_cut_wherever_they_stand() -> None:
    """A picture or the arguments of a tool call are as long as any answer."""
    parts = [{"type": "image_url", "image_url": {"url": "data:" + "A" * 50_000}}, 7]
    sample = RolloutSample(messages=[{"role": "user", "content": parts}], reward=0.5)
    document = cut(encode_sample(sample, rewarded=True), max_bytes=20_000)
    picture, number = document["messages"][0]["content"]
    assert picture["image_url"]["url"].endswith("… [cut: 50,005 characters]")
    assert number == 7


def test_too_many_messages_lose_those_in_the_middle() -> None:
    """How it began and how it ended tell more than the middle."""
    document = cut(a_sample(*(f"message {number}" for number in range(5000))), max_bytes=20_000)
    contents = [message["content"] for message in document["messages"]]
    assert contents[0] == "message 0"
    assert contents[-1] == "message 4999"
    assert 100 < len(contents) < 5000
    assert "messages after the first" in document["extra_fields"]["cut"]["messages"]


def test_one_message_of_countless_small_parts_is_left_out() -> None:
    sample = RolloutSample(messages=[{"role": "user", "content": list(range(20_000))}], reward=0.5)
    document = cut(encode_sample(sample, rewarded=True), max_bytes=10_000)
    assert document["messages"] == []


@pytest.mark.parametrize("name", ["metrics", "extra_fields"])
def test_what_is_no_message_is_left_out_only_where_it_is_large(name: str) -> None:
    large = {"all": "y" * 30_000}
    document = cut(a_sample("x", label="4", **{name: large}), max_bytes=20_000)
    assert document["label"] == "4"
    assert "all" not in document[name]
    assert document["extra_fields"]["cut"][name] == "30,010 bytes were left out"


def test_a_large_label_is_left_out() -> None:
    assert cut(a_sample("x", label="4" * 30_000), max_bytes=20_000)["label"] is None


def test_a_grade_of_any_size_fits_a_controllers_body() -> None:
    """The reward is what a trainer waits for, and it arrives."""
    messages = [{"role": "tool", "content": "z" * (MAX_SAMPLE_BYTES + 1)}]
    result = ExecutionResult(
        status=RolloutStatus.SUCCESS, sample=RolloutSample(messages=messages, reward=0.5)
    )
    body = encode_grade("r", result)
    assert len(body) < MAX_SAMPLE_BYTES
    assert json.loads(body)["sample"]["reward"] == 0.5
