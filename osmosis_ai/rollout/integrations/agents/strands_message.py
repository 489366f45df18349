"""Chat messages as Strands' content blocks, and those as chat messages again."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from osmosis_ai._extras import requires_extra

with requires_extra("strands", "OsmosisStrandsAgent"):
    from strands.models.openai import OpenAIModel
    from strands.types.content import Messages, SystemContentBlock


def native_messages(messages: Iterable[Mapping[str, Any]]) -> Messages:
    """Text becomes a content block, an inline image Strands' own; other lists stay untouched."""
    return cast(Messages, [_native_message(message) for message in messages])


def chat_messages(
    messages: Sequence[Mapping[str, Any]],
    *,
    system: list[SystemContentBlock] | None = None,
) -> list[dict[str, Any]]:
    """Native messages as chat messages: the system prompt first, reasoning kept beside the text.

    Raises TypeError for a block that no chat message can hold.
    """
    chat = OpenAIModel.format_request_messages([], system_prompt_content=system)
    for message in messages:
        chat += _chat_messages(message)
    return chat


def _native_message(message: Mapping[str, Any]) -> Mapping[str, Any]:
    content = message.get("content")
    if isinstance(content, str):
        return {"role": message["role"], "content": [{"text": content}]}
    if isinstance(content, list) and any(_is_image(part) for part in content):
        return {**message, "content": [_native_part(part) for part in content]}
    return message


def _is_image(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "image_url"


def _native_part(part: Any) -> Any:
    if not _is_image(part):
        return {"text": part["text"]} if part.get("type") == "text" else part
    image = part["image_url"]
    url = image if isinstance(image, str) else image["url"]
    head, comma, data = url.partition(";base64,")
    if not comma or not head.startswith("data:image/"):
        raise ValueError(
            f"Strands takes an image of a prompt only inline, and {url[:60]!r} is a link: "
            "give it as data:image/png;base64,..."
        )
    kind = head.removeprefix("data:image/")
    return {"image": {"format": kind, "source": {"bytes": base64.b64decode(data)}}}


def _chat_messages(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    blocks = message["content"]
    # Without its reasoning: Strands would warn of each, and leave it out.
    spoken = [block for block in blocks if "reasoningContent" not in block]
    chat = OpenAIModel.format_request_messages(
        cast(Messages, [{"role": message["role"], "content": spoken}])
    )
    if message["role"] != "assistant":
        return chat
    # One that says nothing is still a turn.
    answer = chat[-1] if chat else {"role": "assistant", "content": ""}
    reasoning = "".join(
        block["reasoningContent"].get("reasoningText", {}).get("text", "")
        for block in blocks
        if "reasoningContent" in block
    )
    if reasoning:
        answer["reasoning_content"] = reasoning
    return [answer]
