"""Which of the model calls of a rollout are its conversation, and whether it can be trained on."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from osmosis_ai.rollout.integrations.model_call import Message, ModelCall, Reply

State = Literal["clean", "re-tokenised", "branched", "incomplete"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a trainer may believe of a conversation.

    `clean`: each call's prompt holds what the policy said before, as it said it. `re-tokenised`:
    the same, in other words or tokens. `branched`: calls went on from one place in two ways.
    `incomplete`: a call of the conversation has no whole answer.
    """

    state: State
    turn: int | None = None
    """The first turn it is true of, from 1."""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Turn:
    """One thing the policy said."""

    call: ModelCall
    reply: Reply
    index: int
    """Where its message stands in the conversation."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """The main conversation of a rollout."""

    messages: list[Message]
    turns: list[Turn]
    verdict: Verdict
    side_calls: int
    """Calls with a prompt of their own: a title, a summary, a helper."""


def find_conversation(calls: Sequence[ModelCall]) -> Conversation:
    """The longest chain of calls, each going on from the answer of the one before.

    Of equally long ones it is the last. Failed tries of a request that was answered later do not
    count. There must be at least one call.
    """
    nodes = _link(calls)
    parents = {id(node.parent) for node in nodes}
    leaves = [node for node in nodes if id(node) not in parents]
    chain = list(max(leaves, key=lambda leaf: (leaf.depth, leaf.position)).ancestry())[::-1]
    others = [node for node in nodes if all(node is not one for one in chain)]
    branch = _first_branch(chain, others)
    on_branch = [node for node in others if _fork(chain, node) is not None]
    turns = list(_turns(chain))
    return Conversation(
        messages=_messages(chain, turns),
        turns=turns,
        verdict=_verdict(chain, turns, branch),
        side_calls=len(others) - len(on_branch),
    )


@dataclass(eq=False, slots=True)
class _Node:
    call: ModelCall
    position: int
    prefixes: list[int]
    """A number for each beginning of its prompt; equal where the conversations are."""
    parent: _Node | None = None
    parent_reply: Reply | None = None
    depth: int = 1

    def ancestry(self) -> Iterator[_Node]:
        node: _Node | None = self
        while node is not None:
            yield node
            node = node.parent


def _link(calls: Sequence[ModelCall]) -> list[_Node]:
    """Each call with the one whose answer its prompt goes on from."""
    keys = _Keys()
    nodes = [_Node(call, n, list(keys.prefixes(call.messages))) for n, call in enumerate(calls)]
    nodes = _without_retries(nodes)
    answered: dict[int, tuple[_Node, Reply]] = {}
    asked: dict[int, tuple[_Node, Reply]] = {}
    for node in nodes:
        parent = _find_parent(node, answered, asked)
        if parent is not None:
            node.parent, node.parent_reply = parent
            node.depth = node.parent.depth + 1
        for reply in node.call.replies:
            answered[keys.extend(node.prefixes[-1], reply.message)] = node, reply
        for reply in node.call.replies[:1]:
            asked[node.prefixes[-1]] = node, reply
    return nodes


def _find_parent(
    node: _Node,
    answered: dict[int, tuple[_Node, Reply]],
    asked: dict[int, tuple[_Node, Reply]],
) -> tuple[_Node, Reply] | None:
    """The newest answer in the prompt, else the newest call whose answer stands there reworded."""
    for prefix in reversed(node.prefixes):
        if prefix in answered:
            return answered[prefix]
    ends = [n for n, m in enumerate(node.call.messages) if m.get("role") == "assistant"]
    for end in reversed(ends):
        if node.prefixes[end] in asked:
            return asked[node.prefixes[end]]
    return None


def _without_retries(nodes: Sequence[_Node]) -> list[_Node]:
    """Of the calls with one prompt those that were answered, else the last."""
    groups: dict[int, list[_Node]] = {}
    for node in nodes:
        groups.setdefault(node.prefixes[-1], []).append(node)
    kept = [
        node
        for group in groups.values()
        for node in [one for one in group if one.call.replies] or group[-1:]
    ]
    return sorted(kept, key=lambda node: node.position)


class _Keys:
    """Numbers for the beginnings of conversations."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, str], int] = {}
        self._meanings: dict[int, str] = {}

    def prefixes(self, messages: Sequence[Message]) -> Iterator[int]:
        """One for each message, and 0 for the empty beginning."""
        key = 0
        yield key
        for message in messages:
            key = self.extend(key, message)
            yield key

    def extend(self, key: int, message: Message) -> int:
        meaning = self._meanings.get(id(message))
        if meaning is None:
            meaning = self._meanings[id(message)] = _meaning(message)
        return self._numbers.setdefault((key, meaning), len(self._numbers) + 1)


def _meaning(message: Message) -> str:
    """What a message says, whichever way it is written down."""
    said = {
        "role": message.get("role"),
        "content": _content(message.get("content")),
        "tool_calls": [
            [_function(call).get("name"), _value(_function(call).get("arguments"))]
            for call in message.get("tool_calls") or ()
        ],
        "tool_call_id": message.get("tool_call_id"),
    }
    return json.dumps(said, sort_keys=True)


def _content(content: Any) -> Any:
    if isinstance(content, list) and all(
        isinstance(part, dict) and isinstance(part.get("text"), str) for part in content
    ):
        content = "".join(part["text"] for part in content)
    return content.strip() if isinstance(content, str) else content or ""


def _function(call: Any) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    return function if isinstance(function, dict) else {}


def _value(arguments: Any) -> Any:
    try:
        return json.loads(arguments)
    except (TypeError, ValueError):
        return arguments


def _fork(chain: list[_Node], node: _Node) -> int | None:
    """The turn of the chain where `node` went another way; None where it is another conversation.

    Where one's first prompt is the beginning of the other's, history was rewritten.
    """
    known = {id(one): turn for turn, one in enumerate(chain, 1)}
    root = node
    for ancestor in node.ancestry():
        if ancestor.parent is not None and id(ancestor.parent) in known:
            return known[id(ancestor.parent)] + 1
        root = ancestor
    first, other = chain[0].prefixes, root.prefixes
    shared = min(len(first), len(other))
    return 1 if shared > 1 and first[:shared] == other[:shared] else None


def _first_branch(chain: list[_Node], others: list[_Node]) -> int | None:
    turns = [turn for node in others if (turn := _fork(chain, node)) is not None]
    return min(turns, default=None)


def _turns(chain: list[_Node]) -> Iterator[Turn]:
    for node, child in zip(chain, [*chain[1:], None], strict=True):
        if node.call.replies:
            reply = node.call.replies[0] if child is None else child.parent_reply
            assert reply is not None
            yield Turn(node.call, reply, index=len(node.call.messages))


def _messages(chain: list[_Node], turns: list[Turn]) -> list[Message]:
    """The last prompt and its answer, what the policy said standing as it said it."""
    messages = list(chain[-1].call.messages)
    for turn in turns:
        messages[turn.index : turn.index + 1] = [turn.reply.message]
    return messages


def _verdict(chain: list[_Node], turns: list[Turn], branch: int | None) -> Verdict:
    last = chain[-1].call
    if not last.replies:
        return Verdict("incomplete", len(chain), last.error or "")
    if branch is not None:
        return Verdict("branched", branch, "the agent went on from here in more than one way")
    for number, (turn, after) in enumerate(pairwise(turns), 1):
        reason = _difference(turn, after.call)
        if reason is not None:
            return Verdict("re-tokenised", number, reason)
    return Verdict("clean")


def _difference(turn: Turn, after: ModelCall) -> str | None:
    """Why the next prompt does not hold a turn as the policy said it, or None."""
    if turn.call.prompt_token_ids and turn.reply.token_ids and after.prompt_token_ids:
        before = turn.call.prompt_token_ids + turn.reply.token_ids
        if after.prompt_token_ids[: len(before)] == before:
            return None
        return "the next prompt does not begin with the tokens of this turn"
    said, echoed = turn.reply.message, after.messages[turn.index]
    if _text(said) != _text(echoed):
        return "the text was changed when it was sent back"
    if _arguments(said) != _arguments(echoed):
        return "the arguments of a tool call were written anew"
    reasoning = said.get("reasoning_content") or said.get("reasoning")
    if reasoning and reasoning not in (echoed.get("reasoning_content"), echoed.get("reasoning")):
        return "the reasoning was not sent back"
    return None


def _text(message: Message) -> Any:
    content = message.get("content")
    if isinstance(content, list) and all("text" in part for part in content):
        return "".join(part["text"] for part in content)
    return content or ""


def _arguments(message: Message) -> list[Any]:
    return [_function(call).get("arguments") for call in message.get("tool_calls") or ()]
