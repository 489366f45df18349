"""Bridge: an OpenAI-shaped endpoint in front of the model, where every call is counted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import orjson

from osmosis_ai.errors import ModelError
from osmosis_ai.rollout.controller.asgi import (
    HttpError,
    Receive,
    Scope,
    Send,
    check_bearer,
    error_body,
    read_body,
    send_error,
    send_whole,
)
from osmosis_ai.rollout.controller.ask import Answer, Stream, ask
from osmosis_ai.rollout.controller.endpoint import OpenCall, RolloutEndpoint
from osmosis_ai.rollout.controller.model.base import ModelClient, ModelRequest, parse_request
from osmosis_ai.rollout.controller.retry import RetryPolicy
from osmosis_ai.rollout.controller.sse import StreamWatch, to_events
from osmosis_ai.rollout.controller.usage import Receipt, read_receipt

EVENT_STREAM = b"text/event-stream"

_HUNG_UP = "the client hung up"


class Bridge:
    """Answers the chat completion calls of every rollout with one model."""

    def __init__(self, model: ModelClient, *, retry: RetryPolicy, max_body_bytes: int) -> None:
        self._model = model
        self._retry = retry
        self._max_body_bytes = max_body_bytes

    async def serve_chat(
        self, endpoint: RolloutEndpoint, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Answer one call; raises HttpError for what never reaches the model."""
        check_bearer(scope, endpoint.token)
        body = await read_body(receive, max_bytes=self._max_body_bytes)
        try:
            request = parse_request(body)
        except ValueError as error:
            raise HttpError(400, str(error)) from error
        with endpoint.begin_call() as call:
            watcher = asyncio.create_task(_watch_client(receive, call))
            try:
                answer = await ask(self._model, request, call, retry=self._retry)
                await self._send_answer(answer, request, call, send)
            except asyncio.CancelledError:
                if call.ended_because is None:
                    raise
                if not call.is_answering:
                    await send_error(send, 410, call.ended_because)
            finally:
                watcher.cancel()

    async def serve_models(self, endpoint: RolloutEndpoint, scope: Scope, send: Send) -> None:
        """List the one model there is."""
        check_bearer(scope, endpoint.token)
        model = {"id": self._model.name, "object": "model", "created": 0, "owned_by": "osmosis"}
        await send_whole(send, 200, orjson.dumps({"object": "list", "data": [model]}))

    async def _send_answer(
        self, answer: Answer, request: ModelRequest, call: OpenCall, send: Send
    ) -> None:
        if answer.stream is not None:
            await self._pass_on(answer.stream, call, send)
            return
        # Counted before it is sent: the rollout may be over as soon as it has read the answer.
        self._count(answer, call)
        call.is_answering = True
        if answer.completion is not None and request.wants_stream:
            events = to_events(answer.completion, with_usage=request.wants_usage_chunk)
            await send_whole(send, 200, b"".join(events), content_type=EVENT_STREAM)
        else:
            await send_whole(send, answer.status, answer.body)

    def _count(self, answer: Answer, call: OpenCall) -> None:
        if answer.completion is not None:
            call.answered(self._priced(read_receipt(answer.completion, turn=call.call.turn)))
        elif answer.fault is not None:
            call.failed(answer.fault, answer.model_status)
        else:
            call.dropped()

    async def _pass_on(self, stream: Stream, call: OpenCall, send: Send) -> None:
        """Pass an event stream on as it comes, and say at its end if it is torn."""
        call.is_answering = True
        headers = [(b"content-type", stream.content_type.encode()), (b"cache-control", b"no-cache")]
        watch = stream.watch
        try:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            async for chunk in _chunks(stream):
                call.endpoint.note_progress()
                if watch.has_ended:
                    self._count_stream(watch, call)
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            problem = watch.fault
            self._count_stream(watch, call)
        except ModelError as error:
            problem = str(error)
            call.failed(problem, None)
        except asyncio.CancelledError:
            if call.ended_because is None:
                raise
            problem = call.ended_because
            call.dropped()
        finally:
            await stream.rest.aclose()
        await send({"type": "http.response.body", "body": _ending(problem)})

    def _count_stream(self, watch: StreamWatch, call: OpenCall) -> None:
        if watch.fault is None:
            call.answered(self._priced(watch.receipt(turn=call.call.turn)))
        else:
            call.failed(watch.fault, None)

    def _priced(self, receipt: Receipt) -> Receipt:
        cost_usd = self._model.cost_usd(receipt.usage)
        return receipt if cost_usd is None else receipt._replace(cost_usd=cost_usd)


async def _watch_client(receive: Receive, call: OpenCall) -> None:
    """End a call whose client is gone: nobody would read what it still costs."""
    while (await receive())["type"] != "http.disconnect":
        pass
    call.interrupt(_HUNG_UP)


async def _chunks(stream: Stream) -> AsyncIterator[bytes]:
    yield stream.first
    async for chunk in stream.rest:
        stream.watch.feed(chunk)
        yield chunk


def _ending(problem: str | None) -> bytes:
    return b"" if problem is None else b"data: " + error_body(problem, status=502) + b"\n\n"
