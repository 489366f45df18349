"""One model call: asked, checked, asked again where that may help."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

from osmosis_ai.errors import ModelError
from osmosis_ai.rollout.controller.asgi import error_body
from osmosis_ai.rollout.controller.endpoint import OpenCall
from osmosis_ai.rollout.controller.model.base import (
    ModelClient,
    ModelReply,
    ModelRequest,
)
from osmosis_ai.rollout.controller.retry import RetryPolicy, is_outside_the_agent, is_passing
from osmosis_ai.rollout.controller.sse import StreamWatch, error_message
from osmosis_ai.rollout.safe_json import load_json

logger = logging.getLogger(__name__)

BAD_GATEWAY = 502


@dataclass(frozen=True, slots=True)
class Stream:
    """An event stream that has begun as one: its first chunk is here."""

    first: bytes
    rest: AsyncGenerator[bytes, None]
    watch: StreamWatch
    content_type: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What comes of a call: a completion, a stream, or an error for the rollout to read.

    `fault` says why the call failed where the reason lies outside the agent; `model_status` is the
    status with which the model said so.
    """

    status: int
    body: bytes = b""
    completion: dict[str, Any] | None = None
    stream: Stream | None = None
    fault: str | None = None
    model_status: int | None = None
    retry_after: str | None = None


async def ask(
    model: ModelClient, request: ModelRequest, call: OpenCall, *, retry: RetryPolicy
) -> Answer:
    """The model's answer, after as many tries as the policy and the deadline allow."""
    failures = 0
    while True:
        answer = await _try(model, request, call)
        if answer.fault is None or not is_passing(answer.status):
            return answer
        failures += 1
        call.note_failure(answer.fault, answer.model_status)
        pause_sec = retry.pause_sec(failures, retry_after=answer.retry_after)
        if pause_sec is None or pause_sec >= call.endpoint.remaining_sec:
            return answer
        await retry.sleep(pause_sec)
        call.retry()


async def _try(model: ModelClient, request: ModelRequest, call: OpenCall) -> Answer:
    try:
        reply = await model.complete(request, call.call)
        if not 200 <= reply.status < 300:
            return _refusal(reply)
        if reply.chunks is not None:
            return Answer(reply.status, stream=await _begin(reply, reply.chunks))
        return Answer(reply.status, reply.body, completion=_parse_completion(reply.body))
    except ModelError as error:
        return _failure(BAD_GATEWAY, str(error))
    except Exception as error:  # a model client's own bug is not the agent's failure
        logger.exception("rollout %s: the model client failed", call.call.rollout_id)
        return _failure(500, f"the model client failed: {type(error).__name__}: {error}")


def _failure(status: int, fault: str) -> Answer:
    return Answer(status, error_body(fault, status=status), fault=fault)


def _refusal(reply: ModelReply) -> Answer:
    """An answer that is an error: JSON passes as it is, a page of HTML becomes a sentence."""
    message = error_message(_parse(reply.body))
    text = f"the model endpoint answered {reply.status}: {message or _excerpt(reply.body)}"
    body = reply.body if message else error_body(text, status=reply.status)
    fault = text if is_outside_the_agent(reply.status) else None
    return Answer(
        reply.status,
        body,
        fault=fault,
        model_status=reply.status,
        retry_after=reply.retry_after,
    )


async def _begin(reply: ModelReply, chunks: AsyncGenerator[bytes, None]) -> Stream:
    # Errors up to the first chunk can still be answered as errors, and tried again.
    watch = StreamWatch()
    first = await anext(chunks, b"")
    watch.feed(first)
    if not first:
        raise ModelError("the model's stream ended before it began")
    if watch.error is not None:
        await chunks.aclose()
        raise ModelError(f"the model's stream begins with an error: {watch.error}")
    return Stream(first, chunks, watch, reply.content_type)


def _parse_completion(body: bytes) -> dict[str, Any]:
    completion = _parse(body)
    if not isinstance(completion, dict):
        raise ModelError(f"the model's answer is not a JSON object: {_excerpt(body)}")
    choices = completion.get("choices")
    if not isinstance(choices, list) or not choices:
        reason = error_message(completion) or _excerpt(body)
        raise ModelError(f"the model answered without choices: {reason}")
    if not all(isinstance(one, dict) and isinstance(one.get("message"), dict) for one in choices):
        raise ModelError(f"the model answered with a choice without a message: {_excerpt(body)}")
    return completion


def _parse(body: bytes) -> Any:
    try:
        return load_json(body)
    except ValueError:
        return None


def _excerpt(body: bytes) -> str:
    text = " ".join(body[:2000].decode("utf-8", "replace").split())
    return repr(text[:200] + "…" if len(text) > 200 else text)
