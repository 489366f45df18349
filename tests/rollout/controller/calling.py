"""What the tests of the controller share: a rollout on a bridge, and calls to it."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from osmosis_ai.rollout.controller.endpoint import RolloutEndpoint
from osmosis_ai.rollout.controller.listener import Controller
from osmosis_ai.rollout.controller.model.base import ModelClient
from osmosis_ai.rollout.controller.model.openai_compatible import OpenAICompatibleClient
from osmosis_ai.rollout.controller.model.scripted import ScriptedClient
from osmosis_ai.rollout.controller.retry import RetryPolicy
from osmosis_ai.testing import ScriptedModel

QUESTION = {"model": "policy", "messages": [{"role": "user", "content": "How much is 6 * 7?"}]}


@contextmanager
def scripted_rollout(function: Callable[..., Any], **given: Any) -> Iterator[RolloutEndpoint]:
    """One rollout whose model is a Python function."""
    with (
        Controller(ScriptedClient(function)) as controller,
        controller.open_rollout("r1", **given) as endpoint,
    ):
        yield endpoint


@contextmanager
def rollout_on(
    model: ScriptedModel,
    *,
    retry: RetryPolicy | None = None,
    deadline_sec: float | None = None,
    max_body_bytes: int = 2**20,
    **client: Any,
) -> Iterator[RolloutEndpoint]:
    """One rollout whose model is a server that says what the test tells it."""
    with (
        Controller(to(model, **client), retry=retry, max_body_bytes=max_body_bytes) as controller,
        controller.open_rollout("r1", deadline_sec=deadline_sec) as endpoint,
    ):
        yield endpoint


def to(model: ScriptedModel, **given: Any) -> ModelClient:
    """The client for a scripted server."""
    return OpenAICompatibleClient(model.base_url, **{"model": "real-name", **given})


@dataclass(frozen=True)
class Answer:
    """What came back from the bridge."""

    status: int
    headers: Any
    body: Any

    @property
    def text(self) -> str:
        """The content of the first choice."""
        text: str = self.body["choices"][0]["message"]["content"]
        return text

    @property
    def error(self) -> str:
        """The message of the error."""
        message: str = self.body["error"]["message"]
        return message


async def post(
    http: aiohttp.ClientSession,
    endpoint: RolloutEndpoint,
    /,
    *,
    data: bytes | None = None,
    **fields: Any,
) -> Answer:
    """One call with the rollout's own key."""
    body = json.dumps({**QUESTION, **fields}).encode() if data is None else data
    async with http.post(
        f"{endpoint.chat_completions_url}/chat/completions",
        headers={"Authorization": f"Bearer {endpoint.api_key}"},
        data=io.BytesIO(body),
    ) as answer:
        return Answer(answer.status, answer.headers, await answer.json(content_type=None))


async def stream(
    http: aiohttp.ClientSession, endpoint: RolloutEndpoint, /, **fields: Any
) -> tuple[int, str]:
    """One streaming call, read to its end."""
    async with http.post(
        f"{endpoint.chat_completions_url}/chat/completions",
        headers={"Authorization": f"Bearer {endpoint.api_key}"},
        json={**QUESTION, "stream": True, **fields},
    ) as answer:
        return answer.status, await answer.text()


@dataclass
class Pauses:
    """Stands for sleeping: remembers each pause and passes it at once."""

    taken: list[float] = field(default_factory=list)

    async def __call__(self, seconds: float) -> None:
        self.taken.append(seconds)

    def policy(self, max_retries: int) -> RetryPolicy:
        """So many retries, without waiting and without dice."""
        return RetryPolicy(max_retries=max_retries, sleep=self, dice=lambda: 1.0)
