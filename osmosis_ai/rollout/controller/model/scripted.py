"""A Python callable as the model: for tests, demos and replays; nothing is downloaded or paid."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import os
import pkgutil
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import orjson

from osmosis_ai.errors import ConfigError
from osmosis_ai.hint import did_you_mean
from osmosis_ai.rollout.controller.model.base import (
    ModelCall,
    ModelClient,
    ModelReply,
    ModelRequest,
)
from osmosis_ai.rollout.raised import is_users, summarize_error, title_error
from osmosis_ai.rollout.safe_json import dump_json

ScriptedFunction: TypeAlias = Callable[[dict[str, Any], ModelCall], Any]
"""Takes the body of a call and which call it is; returns a text, an assistant message, a whole
`chat.completion`, or an awaitable of one of these."""

PREFIX = "scripted:"


class ScriptedClient(ModelClient):
    """Answers with what `function(request, call)` returns, `async def` or not.

    `request` is the body of the call as a dict. The function runs in the event loop that serves
    every rollout of the run, so one that waits must be `async def`. Whatever it raises becomes an
    HTTP 500 with the text, and counts as the model's failure, not the agent's.
    """

    is_local = True

    def __init__(self, function: ScriptedFunction) -> None:
        self._function = function

    async def complete(self, request: ModelRequest, call: ModelCall) -> ModelReply:
        """Call the function and dress what it returns as a chat completion."""
        try:
            reply = self._function(request.data, call)
            if inspect.isawaitable(reply):
                reply = await reply
            completion = to_completion(reply, request=request.data, call=call)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return _failure(error)
        except (Exception, SystemExit) as error:  # the user's function may raise anything
            return _failure(error)
        return ModelReply(200, dump_json(completion).data)


def load_scripted(path: str) -> ScriptedClient:
    """The model that a `scripted:module:attr` path names."""
    module_name, _, attribute = path.removeprefix(PREFIX).rpartition(":")
    if not module_name or not attribute:
        raise ConfigError(
            f"model path {path!r} must look like 'scripted:module:attr'", key="model_path"
        )
    try:
        module = importlib.import_module(module_name)
        function = getattr(module, attribute, None)
    except (Exception, SystemExit) as error:  # the user's module runs here, and may raise anything
        hint = did_you_mean(module_name, _modules()) if _is_absent(module_name, error) else ""
        raise ConfigError(
            f"model path {path!r}: importing {module_name} failed: {title_error(error)}{hint}",
            key="model_path",
        ) from error
    if not callable(function):
        functions = [name for name, value in vars(module).items() if callable(value)]
        raise ConfigError(
            f"model path {path!r}: {module_name} has no callable {attribute!r}"
            f"{did_you_mean(attribute, functions)}",
            key="model_path",
        )
    return ScriptedClient(function)


def to_completion(reply: Any, *, request: Mapping[str, Any], call: ModelCall) -> dict[str, Any]:
    """The `chat.completion` a scripted reply stands for; what it leaves out is filled in.

    Usage, where the reply has none, is a plain count of words: a token is what stands between
    white space in the texts and tool arguments of the messages.
    """
    if isinstance(reply, str):
        reply = {"content": reply}
    if not isinstance(reply, Mapping):
        raise TypeError(
            f"the scripted model returned {type(reply).__name__}; return a str, an assistant "
            "message or a whole chat.completion"
        )
    whole = dict(reply) if "choices" in reply else {"choices": [_choice(reply, call)]}
    return {
        "id": f"chatcmpl-{call.rollout_id}-{call.turn}",
        "object": "chat.completion",
        "created": 0,
        "model": request.get("model") or "scripted",
        "usage": _count(request.get("messages"), whole["choices"]),
        **whole,
    }


def _choice(message: Mapping[str, Any], call: ModelCall) -> dict[str, Any]:
    full: dict[str, Any] = {"role": "assistant", "content": None, **message}
    calls = full.get("tool_calls")
    if calls:
        full["tool_calls"] = [
            _tool_call(one, f"call_{call.turn}_{place}") for place, one in enumerate(calls)
        ]
    reason = "tool_calls" if calls else "stop"
    return {"index": 0, "message": full, "logprobs": None, "finish_reason": reason}


def _tool_call(tool_call: Mapping[str, Any], default_id: str) -> dict[str, Any]:
    """A tool call as it travels: with an id, and its arguments as a JSON text."""
    function = dict(tool_call["function"])
    arguments = function.get("arguments", {})
    if not isinstance(arguments, str):
        function["arguments"] = orjson.dumps(arguments).decode()
    return {"id": default_id, "type": "function", **tool_call, "function": function}


def _count(messages: Any, choices: Any) -> dict[str, int]:
    prompt = sum(_words(message) for message in _items(messages))
    completion = sum(_words(_get(choice, "message")) for choice in _items(choices))
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }


def _words(message: Any) -> int:
    texts = [_get(message, "content")]
    if isinstance(texts[0], list):
        texts = [_get(part, "text") for part in texts[0]]
    texts += [
        _get(_get(call, "function"), "arguments") for call in _items(_get(message, "tool_calls"))
    ]
    return sum(len(text.split()) for text in texts if isinstance(text, str))


# What is counted comes from agents: a shape nobody expects counts as nothing.
def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _get(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, Mapping) else None


def _is_absent(module_name: str, error: BaseException) -> bool:
    return isinstance(error, ModuleNotFoundError) and error.name == module_name


def _modules() -> Iterator[str]:
    """What could have been meant: the user's own modules."""
    folders = [folder for folder in sys.path if is_users(os.path.join(folder or os.curdir, ""))]
    for module in pkgutil.iter_modules(folders):
        yield module.name


def _failure(error: BaseException) -> ModelReply:
    message = f"the scripted model failed: {summarize_error(error)}"
    return ModelReply(
        500, orjson.dumps({"error": {"message": message, "type": type(error).__name__}})
    )
