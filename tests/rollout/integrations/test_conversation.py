"""Model calls become one conversation and a verdict on it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from osmosis_ai.rollout.integrations.conversation import Conversation, find_conversation
from osmosis_ai.rollout.integrations.model_call import ModelCall, Reply, read_call

SYSTEM = {"role": "system", "content": "You multiply."}
USER = {"role": "user", "content": "6 times 7"}
PROMPT = [SYSTEM, USER]
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "42"}


def says(text: str, **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **fields}


def wants(arguments: str) -> dict[str, Any]:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def call(messages: list[Any], *said: dict[str, Any], **fields: Any) -> ModelCall:
    return ModelCall(messages, [Reply(message, "stop") for message in said], **fields)


def failed(messages: list[Any]) -> ModelCall:
    return ModelCall(messages, error="HTTP 503")


def verdict(*calls: ModelCall) -> tuple[str, int | None]:
    found = find_conversation(calls).verdict
    return found.state, found.turn


def texts(conversation: Conversation) -> list[Any]:
    return [message.get("content") for message in conversation.messages]


def test_calls_that_go_on_from_each_other_are_one_clean_conversation() -> None:
    first, second = wants('{"a": 6}'), says("42")
    found = find_conversation(
        [call(PROMPT, first), call([*PROMPT, first, RESULT], second)],
    )
    assert found.messages == [*PROMPT, first, RESULT, second]
    assert [turn.index for turn in found.turns] == [2, 4]
    assert found.verdict.state == "clean"
    assert found.side_calls == 0


def test_a_call_with_a_prompt_of_its_own_is_a_side_call() -> None:
    title = [{"role": "system", "content": "Write a title."}, USER]
    first = says("42")
    more = {"role": "user", "content": "and 8?"}
    found = find_conversation(
        [
            call(PROMPT, first),
            call(title, says("Sums")),
            call([*PROMPT, first, more], says("48")),
        ]
    )
    assert texts(found) == ["You multiply.", "6 times 7", "42", "and 8?", "48"]
    assert found.verdict.state == "clean"
    assert found.side_calls == 1


def test_of_two_conversations_equally_long_the_last_counts() -> None:
    other = [{"role": "user", "content": "other"}]
    assert texts(find_conversation([call(PROMPT, says("a")), call(other, says("b"))]))[-1] == "b"


def test_tries_that_failed_do_not_count_when_one_was_answered() -> None:
    found = find_conversation([failed(PROMPT), failed(PROMPT), call(PROMPT, says("42"))])
    assert found.verdict.state == "clean"
    assert len(found.turns) == 1


def test_a_last_call_that_was_never_answered_leaves_it_incomplete() -> None:
    first = says("hm")
    more = [*PROMPT, first, USER]
    found = find_conversation([call(PROMPT, first), failed(more), failed(more)])
    assert (found.verdict.state, found.verdict.turn) == ("incomplete", 2)
    assert found.verdict.reason == "HTTP 503"
    assert found.messages == more


def test_only_failed_calls_leave_the_prompt() -> None:
    found = find_conversation([failed(PROMPT)])
    assert (found.messages, found.turns, found.verdict.turn) == (PROMPT, [], 1)


@pytest.mark.parametrize(
    ("echo", "state"),
    [
        ({"role": "assistant", "content": [{"type": "text", "text": " 42\n"}]}, "clean"),
        (says("42"), "re-tokenised"),
        ({**says(" 42\n"), "reasoning_content": "six sevens"}, "clean"),
    ],
)
def test_a_turn_sent_back_in_other_words_is_named(echo: dict[str, Any], state: str) -> None:
    first = says(" 42\n")
    found = find_conversation([call(PROMPT, first), call([*PROMPT, echo, USER], says("48"))])
    assert found.verdict.state == state
    assert found.verdict.turn == (1 if state != "clean" else None)
    assert found.messages[2] == first, "what the policy said stands as it said it"


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_that_is_not_sent_back_is_named(field: str) -> None:
    first = {**says("42"), field: "six sevens"}
    found = find_conversation([call(PROMPT, first), call([*PROMPT, says("42"), USER], says("48"))])
    assert found.verdict.reason == "the reasoning was not sent back"


def test_arguments_written_anew_are_named() -> None:
    written, anew = wants('{"a": 6}'), wants('{"a":6}')
    calls = [call(PROMPT, written), call([*PROMPT, anew, RESULT], says("42"))]
    assert verdict(*calls) == ("re-tokenised", 1)


def test_arguments_that_are_no_json_are_compared_as_they_are() -> None:
    broken = wants("{no json")
    assert verdict(call(PROMPT, broken), call([*PROMPT, broken, RESULT], says("?"))) == (
        "clean",
        None,
    )


def test_token_ids_decide_where_the_endpoint_returns_them() -> None:
    first, more = says(" 42"), [*PROMPT, says("42"), USER]

    def tokens(after: list[int]) -> tuple[str, int | None]:
        reply = Reply(first, "stop", token_ids=[3, 4])
        return verdict(
            ModelCall(PROMPT, [reply], prompt_token_ids=[1, 2]),
            call(more, says("48"), prompt_token_ids=after),
        )

    assert tokens([1, 2, 3, 4, 5]) == ("clean", None)
    assert tokens([1, 2, 3, 9, 5]) == ("re-tokenised", 1)


def test_going_on_in_two_ways_is_a_branch_at_its_turn() -> None:
    first = says("hm")
    one, other = [*PROMPT, first, USER], [*PROMPT, first, SYSTEM]
    calls = [call(PROMPT, first), call(one, says("a")), call(other, says("b"))]
    assert verdict(*calls) == ("branched", 2)


def test_asking_the_first_question_twice_is_a_branch_at_the_first_turn() -> None:
    assert verdict(call(PROMPT, says("a")), call(PROMPT, says("b"))) == ("branched", 1)


def test_a_rewritten_history_is_a_branch() -> None:
    """An agent that sums up its past goes on from what the policy never said."""
    first = says("a long answer")
    calls = [call(PROMPT, first), call([*PROMPT, first, USER], says("more"))]
    reworded = call([*PROMPT, says("in short: 42"), USER], says("b"))
    assert verdict(*calls, reworded) == ("branched", 2)
    left_out = call([*PROMPT, USER], says("b"))
    assert verdict(*calls, left_out) == ("branched", 1)
    assert verdict(left_out, *calls) == ("branched", 1)


def test_an_answer_that_always_comes_back_reworded_is_still_one_conversation() -> None:
    """As with agents that write tool calls into the text."""
    first = wants('{"a": 6}')
    told = [*PROMPT, says("Calling f with a=6"), USER]
    found = find_conversation([call(PROMPT, first), call(told, says("42"))])
    assert found.verdict.state == "re-tokenised"
    assert found.verdict.reason == "the text was changed when it was sent back"
    assert found.messages == [*PROMPT, first, USER, says("42")]
    assert found.side_calls == 0


def test_a_prompt_with_examples_goes_on_from_none_of_our_answers() -> None:
    examples = [SYSTEM, USER, says("an example"), USER]
    found = find_conversation([call([RESULT], says("x")), call(examples, says("y"))])
    assert (found.verdict.state, found.side_calls) == ("clean", 1)


def test_the_choice_that_was_gone_on_from_is_the_turn() -> None:
    more = [*PROMPT, says("b"), USER]
    found = find_conversation([call(PROMPT, says("a"), says("b")), call(more, says("c"))])
    assert texts(found)[2:] == ["b", "6 times 7", "c"]
    assert found.verdict.state == "clean"


def test_strange_messages_are_no_obstacle() -> None:
    odd: list[Any] = [
        {"role": "user", "content": [{"type": "image_url"}, "text"]},
        {"role": "user", "content": "\ud800", "n": float("nan")},
        {"role": "assistant", "tool_calls": ["no call", {"function": "none"}]},
        {},
    ]
    assert verdict(call(odd, {})) == ("clean", None)


def test_two_hundred_turns_are_one_conversation() -> None:
    messages: list[Any] = [*PROMPT]
    calls = []
    for number in range(200):
        reply = says(f"turn {number}")
        calls.append(call(list(messages), reply))
        messages += [reply, {"role": "user", "content": f"more {number}"}]
    found = find_conversation(calls)
    assert len(found.turns) == 200
    assert found.verdict.state == "clean"


def events(*chunks: dict[str, Any]) -> bytes:
    return b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks)


def chunk(delta: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"model": "m", "choices": [{"index": 0, "delta": delta, **fields}]}


def part(index: int | None, **fields: Any) -> dict[str, Any]:
    place = {} if index is None else {"index": index}
    return {"tool_calls": [{**place, **fields}]}


def test_a_stream_is_read_as_the_completion_it_is_of() -> None:
    answer = events(
        {**chunk({"role": "assistant", "content": "Hel"}), "prompt_token_ids": [1]},
        chunk({"content": "lo", "refusal": None}, token_ids=[2], logprobs={"content": [{"l": 1}]}),
        chunk(part(0, id="a", function={"name": "f", "arguments": "{"})),
        chunk(part(1, id="b", function={"name": "g", "arguments": "[]"})),
        chunk(
            part(0, function={"arguments": "}"}),
            token_ids=[3],
            logprobs={"content": [{"l": 2}], "refusal": None},
        ),
        chunk({"annotations": [1], "tool_calls": None}, finish_reason="tool_calls"),
        {"choices": [], "usage": {"total_tokens": 9}},
    )
    seen = read_call(PROMPT, 200, b": ping\n\n" + answer + b"data: [DONE]\n\n")
    assert (seen.model, seen.usage, seen.prompt_token_ids) == ("m", {"total_tokens": 9}, [1])
    reply = seen.replies[0]
    assert (reply.token_ids, reply.finish_reason) == ([2, 3], "tool_calls")
    assert reply.logprobs == {"content": [{"l": 1}, {"l": 2}], "refusal": None}
    assert reply.message["content"] == "Hello"
    assert reply.message["annotations"] == [1]
    assert [(c["id"], c["function"]) for c in reply.message["tool_calls"]] == [
        ("a", {"name": "f", "arguments": "{}"}),
        ("b", {"name": "g", "arguments": "[]"}),
    ]


@pytest.mark.parametrize(
    ("status", "answer", "error"),
    [
        (None, b"", "it was not answered"),
        (503, b"no JSON", "HTTP 503: no JSON"),
        (429, b'{"error": {"message": "slow down"}}', "HTTP 429: slow down"),
        (400, b'{"error": "bad"}', "HTTP 400: bad"),
        (200, events(chunk({"content": "4"})), "its answer ended before it was finished"),
        (200, events(chunk({"content": "4"}), {"error": {"message": "crash"}}), "crash"),
        (200, b'{"choices": [', "its answer ended before it was finished"),
        (200, b"[]", "its answer ended before it was finished"),
        (200, b'{"choices": "none"}', "its answer ended before it was finished"),
    ],
)
def test_an_answer_that_is_none_says_why(status: int | None, answer: bytes, error: str) -> None:
    seen = read_call(PROMPT, status, answer)
    assert (seen.replies, seen.error) == ([], error)


def test_lone_surrogates_and_nan_cost_nothing() -> None:
    body = b'{"choices": [{"message": {"content": "\\ud800"}, "finish_reason": "stop", "x": NaN}]}'
    assert read_call(PROMPT, 200, body).replies[0].message["content"] == "\ud800"


def test_a_choice_without_a_message_is_an_empty_turn() -> None:
    body = b'{"choices": [{"finish_reason": "length", "message": null}]}'
    assert read_call(PROMPT, 200, body).replies[0].message == {}
