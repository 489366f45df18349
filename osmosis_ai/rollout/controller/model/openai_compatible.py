"""Any OpenAI-compatible server as the model, what rollouts send passed through untouched."""

from __future__ import annotations

import asyncio
import io
import json
import re
from collections.abc import AsyncGenerator, Container, Mapping
from typing import Any

import orjson

from osmosis_ai._extras import requires_extra
from osmosis_ai.errors import ConfigError, ModelError
from osmosis_ai.rollout.controller.model.base import (
    ModelCall,
    ModelClient,
    ModelReply,
    ModelRequest,
)
from osmosis_ai.rollout.http_connection import Answer, ConnectionPool, encode_post, parse_url

with requires_extra("server", "a model with a base_url"):
    import aiohttp
    import yarl

MAX_REPLY_BYTES = 2**26
"""The longest whole answer taken from a model."""

# Common servers close a connection that idled for 5 s: a call must not cross with that.
_KEEP_ALIVE_SEC = 4.0
_CONNECT_TIMEOUT_SEC = 10.0
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_MAY_REFUSE_STREAMS = frozenset({400, 404, 422, 501})


class OpenAICompatibleClient(ModelClient):
    """Sends calls to `base_url`, with `model` and `params` set over what the rollout sent.

    A whole answer comes over a connection of our own, which takes a fifth of a general client's
    time. Streams are left to that client.
    """

    def __init__(
        self,
        base_url: str,
        *,
        model: str,
        api_key: str | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> None:
        if not base_url.startswith(("http://", "https://")):
            raise ConfigError(
                f"model.base_url is {base_url!r}; give an address that starts with http:// or "
                "https:// and usually ends in /v1",
                key="base_url",
            )
        self.name = model
        url = base_url.rstrip("/") + "/chat/completions"
        try:
            self._address = parse_url(url)
        except ValueError as error:
            raise ConfigError(f"model.base_url is of no use: {error}", key="base_url") from error
        self._url = yarl.URL(url)
        self._fields = {**(params or {}), "model": model}
        self._headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if api_key:
            if _CONTROL.search(api_key):
                raise ConfigError("the model's API key holds a line end or a control character")
            self._headers["Authorization"] = f"Bearer {api_key}"
        lines = "".join(f"{name}: {value}\r\n" for name, value in self._headers.items())
        self._header_lines = lines.encode()
        self._connections = ConnectionPool(idle_sec=_KEEP_ALIVE_SEC)
        self._session: aiohttp.ClientSession
        self._streams: set[aiohttp.ClientResponse] = set()
        """Those that go on, and those that nobody has begun to read."""

    async def open(self) -> None:
        """Make the one session of all streams; there are as many connections as there are calls."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_SEC),
            cookie_jar=aiohttp.DummyCookieJar(),
            # No total: the rollout's deadline is the caller's.
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_TIMEOUT_SEC),
        )

    async def close(self) -> None:
        """Close the session and all connections."""
        self._connections.close()
        for stream in self._streams:
            stream.close()
        await self._session.close()

    async def complete(self, request: ModelRequest, call: ModelCall) -> ModelReply:
        """Pass one call on; where the server refuses to stream, ask for the whole answer."""
        body = set_fields(request, self._fields)
        # The run's own word wins over the rollout's, here as in the body.
        if not self._fields.get("stream", request.wants_stream):
            return await self._ask_whole(body)
        reply = await self._ask_stream(body)
        if _refuses_streams(reply):
            return await self._ask_whole(_without_stream(request, self._fields))
        return reply

    async def _ask_whole(self, body: bytes) -> ModelReply:
        try:
            answer = await self._exchange(encode_post(self._address, self._header_lines, body))
        except OSError as error:
            raise self._unreachable(error) from error
        retry_after = answer.headers.get(b"retry-after", b"").decode("latin-1")
        return ModelReply(answer.status, answer.body, retry_after=retry_after or None)

    async def _exchange(self, request: bytes) -> Answer:
        origin = self._address.origin
        connection = self._connections.take(origin)
        if connection is None:
            async with asyncio.timeout(_CONNECT_TIMEOUT_SEC):
                connection = await self._connections.connect(origin)
        try:
            answer = await connection.start(request)
        except BaseException:  # a cancellation too: what comes now is an answer to nobody
            connection.close()
            raise
        self._connections.give_back(origin, connection)
        return answer

    async def _ask_stream(self, body: bytes) -> ModelReply:
        try:
            # No redirects: they would turn the call into a GET.
            response = await self._session.post(
                self._url, data=_payload(body), headers=self._headers, allow_redirects=False
            )
            if response.status == 200 and response.content_type == "text/event-stream":
                self._streams.add(response)
                return ModelReply(
                    200, chunks=self._chunks(response), content_type="text/event-stream"
                )
            async with response:
                return ModelReply(
                    response.status,
                    await _read(response),
                    retry_after=response.headers.get("Retry-After"),
                )
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._unreachable(error) from error

    async def _chunks(self, response: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
        try:
            async for chunk in response.content.iter_any():
                yield chunk
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._unreachable(error) from error
        finally:
            self._streams.discard(response)
            response.close()

    def _unreachable(self, error: Exception) -> ModelError:
        reason = str(error) or type(error).__name__
        return ModelError(f"the model at {self._url} gave no answer: {reason}")


def set_fields(request: ModelRequest, fields: Mapping[str, Any]) -> bytes:
    """The request's body with these fields set, every other byte as the rollout sent it."""
    added = {name: value for name, value in fields.items() if name not in request.data}
    replaced = fields.keys() - added.keys()
    if not replaced:
        return _insert(request.body, added, beside=request.data)
    if replaced == {"model"}:
        body = _replace_model(request.body, fields["model"])
        if body is not None:
            return _insert(body, added, beside=request.data)
    return _encode_again(request.body, fields)


def _insert(body: bytes, added: Mapping[str, Any], *, beside: Mapping[str, Any]) -> bytes:
    if not added:
        return body
    comma = b"," if beside else b""
    return json.dumps(added).encode()[:-1] + comma + body.lstrip()[1:]


# The key may be spelled with escapes, and then what looks like it is another one.
_ESCAPED_LETTER = b"\\u006"
_MODEL = re.compile(rb'"model"\s*:\s*"(?:[^"\\]|\\.)*"')


def _replace_model(body: bytes, model: str) -> bytes | None:
    """The body with its model replaced in place; None where the place is not plain to see."""
    found = _MODEL.search(body)
    if found is None or body.count(b'"model"') != 1 or _ESCAPED_LETTER in body:
        return None
    model_field = b'"model":' + json.dumps(model).encode()
    return body[: found.start()] + model_field + body[found.end() :]


_LONG_NUMBER = re.compile(rb"[0-9.]{17}")


def _encode_again(body: bytes, fields: Mapping[str, Any]) -> bytes:
    # The fast decoder rounds numbers of many digits and refuses lone surrogates.
    try:
        if not _LONG_NUMBER.search(body):
            rest = _without(orjson.loads(body), fields)
            return _insert(orjson.dumps(rest), fields, beside=rest)
    except ValueError:
        pass
    return json.dumps({**json.loads(body), **fields}).encode()


def _without(data: Mapping[str, Any], names: Container[str]) -> dict[str, Any]:
    return {name: value for name, value in data.items() if name not in names}


def _without_stream(request: ModelRequest, fields: Mapping[str, Any]) -> bytes:
    rest = _without(json.loads(request.body), {"stream_options"})
    return json.dumps({**rest, **fields, "stream": False}).encode()


def _refuses_streams(reply: ModelReply) -> bool:
    text = reply.body.lower()
    return reply.status in _MAY_REFUSE_STREAMS and b"stream" in text and b"support" in text


def _payload(body: bytes) -> bytes | io.BytesIO:
    # aiohttp warns of large bodies that are given in one piece.
    return body if len(body) < _ONE_PIECE_BYTES else io.BytesIO(body)


_ONE_PIECE_BYTES = 2**20


async def _read(response: aiohttp.ClientResponse) -> bytes:
    """The whole body, unless it is longer than any answer should be."""
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > MAX_REPLY_BYTES:
            # Not released: what is left of it would still be on its way.
            response.close()
            raise ModelError(f"the model's answer is longer than {MAX_REPLY_BYTES:,} bytes")
    return bytes(body)
