"""Any OpenAI-compatible server as the model, what rollouts send passed through untouched."""

from __future__ import annotations

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

with requires_extra("server", "a model with a base_url"):
    import aiohttp
    import yarl

MAX_REPLY_BYTES = 2**26
"""The longest whole answer taken from a model."""

# Common servers close a connection that idled for 5 s: a call must not cross with that.
_KEEP_ALIVE_SEC = 4.0
_CONNECT_TIMEOUT_SEC = 10.0
_MAY_REFUSE_STREAMS = frozenset({400, 404, 422, 501})


class OpenAICompatibleClient(ModelClient):
    """Sends calls to `base_url`, with `model` and `params` set over what the rollout sent."""

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
        self._url = yarl.URL(base_url.rstrip("/") + "/chat/completions")
        self._fields = {**(params or {}), "model": model}
        self._headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._session: aiohttp.ClientSession

    async def open(self) -> None:
        """Make the one session of all calls; it opens as many connections as there are calls."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_SEC),
            cookie_jar=aiohttp.DummyCookieJar(),
            # No total: the rollout's deadline is the caller's.
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_TIMEOUT_SEC),
        )

    async def close(self) -> None:
        """Close the session and its connections."""
        await self._session.close()

    async def complete(self, request: ModelRequest, call: ModelCall) -> ModelReply:
        """Pass one call on; where the server refuses to stream, ask for the whole answer."""
        reply = await self._post(set_fields(request, self._fields))
        if request.wants_stream and _refuses_streams(reply):
            return await self._post(_without_stream(request, self._fields))
        return reply

    async def _post(self, body: bytes) -> ModelReply:
        try:
            # No redirects: they would turn the call into a GET.
            response = await self._session.post(
                self._url, data=_payload(body), headers=self._headers, allow_redirects=False
            )
            if response.status == 200 and response.content_type == "text/event-stream":
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
            raise ModelError(f"the model's answer is longer than {MAX_REPLY_BYTES:,} bytes")
    return bytes(body)
