"""One plain question to the model: what is wrong with it is told before rollouts meet it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import orjson

from osmosis_ai.errors import ModelError
from osmosis_ai.rollout.controller.ask import Answer, ask
from osmosis_ai.rollout.controller.endpoint import RolloutEndpoint
from osmosis_ai.rollout.controller.model.base import ModelClient, parse_request
from osmosis_ai.rollout.controller.retry import RetryPolicy, is_passing

PROBE_TIMEOUT_SEC = 120.0
"""How long an answer may take: a server may have to load its model first."""

_QUESTION = {"messages": [{"role": "user", "content": "Reply with: ok"}]}
_SHORT = {**_QUESTION, "max_tokens": 16}

_REFUSES_BODY = frozenset({400, 422})
_ADVICE = {
    401: "It rejects the key: look at `[model] api_key_env` and the variable it names.",
    402: "The account has nothing left.",
    403: "It rejects the key, or the key has no right to this model.",
    404: "It knows no such model, or nothing is at this path: look at `model_path`, and whether "
    "`[model] base_url` ends as it should, mostly in /v1.",
}


async def probe_model(model: ModelClient, endpoint: RolloutEndpoint, *, retry: RetryPolicy) -> None:
    """Ask, as a call of `endpoint`; raises ModelError that says what to do about it.

    Runs in the listener's loop. A model that is code in this process is not asked.
    """
    if model.is_local:
        return
    answer = await _ask(model, _SHORT, endpoint, retry=retry)
    if answer.model_status in _REFUSES_BODY:
        # Some models know the limit by another name only.
        answer = await _ask(model, _QUESTION, endpoint, retry=retry)
    if answer.stream is not None:
        # The run's own params ask for streams; that one begins is enough.
        await answer.stream.rest.aclose()
    elif answer.completion is None:
        raise _problem(answer, model)


async def _ask(
    model: ModelClient,
    question: Mapping[str, Any],
    endpoint: RolloutEndpoint,
    *,
    retry: RetryPolicy,
) -> Answer:
    request = parse_request(orjson.dumps(question))
    with endpoint.begin_call() as call:
        try:
            return await ask(model, request, call, retry=retry)
        except asyncio.CancelledError:
            if call.ended_because is None:
                raise
            said = f"model {model.name!r} gave no answer in time: {call.ended_because}"
            raise ModelError(said) from None


def _problem(answer: Answer, model: ModelClient) -> ModelError:
    status = answer.model_status
    said = answer.fault or answer.body.decode("utf-8", "replace")
    return ModelError(f"model {model.name!r}: {said}\n{_advice(status)}", status_code=status)


def _advice(status: int | None) -> str:
    if status is None:
        return "Is it running, and is `[model] base_url` its address?"
    if status in _REFUSES_BODY:
        return "It refuses a plain question. If rollouts ask it otherwise: --no-probe."
    if is_passing(status):
        return "It is there, and does not answer now. Try again later, or go on with --no-probe."
    return _ADVICE.get(status, "Look at `[model] base_url`.")
