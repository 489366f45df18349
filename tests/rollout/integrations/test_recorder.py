"""Calls that pass by a recorder become the rollout's sample."""

from __future__ import annotations

import asyncio
import gc
import json
import multiprocessing
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from osmosis_ai.rollout import (
    AgentWorkflow,
    AgentWorkflowConfig,
    AgentWorkflowContext,
    ExecutionRequest,
    ExecutionResult,
    LocalBackend,
    RolloutContext,
    RolloutSample,
    get_rollout_context,
)
from osmosis_ai.rollout.integrations.recorder import EndpointSampleSource
from osmosis_ai.rollout.trajectory import convert_sample_to_trajectory
from osmosis_ai.testing import HttpReply, ScriptedModel, StreamReply, call_tool

PROMPT: list[dict[str, Any]] = [{"role": "user", "content": "6 times 7"}]
CONFIG = AgentWorkflowConfig(name="captured", capture="endpoint")


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


def recorded(model: ScriptedModel, **fields: Any) -> RolloutContext:
    context = RolloutContext(model.base_url, rollout_id="r1", **{"api_key": "key", **fields})
    context.set_sample_source(EndpointSampleSource(context))
    return context


async def ask(
    http: aiohttp.ClientSession, context: RolloutContext, messages: Any, **fields: Any
) -> tuple[int, bytes]:
    url = f"{context.chat_completions_url}/chat/completions"
    body = {"model": "policy", "messages": messages, **fields}
    headers = {"Authorization": f"Bearer {context.api_key}"}
    async with http.post(url, json=body, headers=headers) as answer:
        return answer.status, await answer.read()


def message(answer: bytes) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(answer)["choices"][0]["message"]
    return said


async def sample(context: RolloutContext) -> RolloutSample:
    found = await context.get_sample()
    assert found is not None
    return found


async def test_an_agent_that_only_knows_a_base_url_gives_a_sample(
    http: aiohttp.ClientSession,
) -> None:
    with ScriptedModel([call_tool("multiply", a=6, b=7), "42"], api_key="key") as model:
        context = recorded(model)
        _, first = await ask(http, context, PROMPT)
        result = {"role": "tool", "tool_call_id": "x", "content": "42"}
        await ask(http, context, [*PROMPT, message(first), result], temperature=0.5)
        found = await sample(context)
    assert [m["role"] for m in found.messages] == ["user", "assistant", "tool", "assistant"]
    assert found.messages[-1]["content"] == "42"
    said = found.extra_fields["endpoint"]
    assert (said["verdict"], said["turn"], said["side_calls"]) == ("clean", None, 0)
    assert [turn["message"] for turn in said["turns"]] == [1, 3]
    assert model.calls[1].request["temperature"] == 0.5, "every field is handed on"
    steps = convert_sample_to_trajectory(found, rollout_id="r1")["steps"]
    assert steps[-1]["metrics"]["completion_tokens"] > 0


async def test_a_stream_passes_as_it_comes_and_is_read(http: aiohttp.ClientSession) -> None:
    with ScriptedModel(StreamReply(["4", "2"])) as model:
        context = recorded(model)
        status, answer = await ask(http, context, PROMPT, stream=True)
        found = await sample(context)
    assert status == 200
    assert answer.endswith(b"data: [DONE]\n\n")
    assert found.messages[-1]["content"] == "42"


async def test_token_ids_and_logprobs_are_kept(http: aiohttp.ClientSession) -> None:
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": "42"},
        "finish_reason": "stop",
        "token_ids": [3, 4],
        "logprobs": {"content": [{"token": "42", "logprob": -0.1}]},
    }
    reply = {"object": "chat.completion", "choices": [choice], "prompt_token_ids": [1, 2]}
    with ScriptedModel(HttpReply(200, reply)) as model:
        context = recorded(model)
        await ask(http, context, PROMPT)
        turn = (await sample(context)).extra_fields["endpoint"]["turns"][0]
    assert turn["prompt_token_ids"] == [1, 2]
    assert turn["token_ids"] == [3, 4]
    assert turn["logprobs"] == choice["logprobs"]


async def test_a_retried_request_is_one_turn(http: aiohttp.ClientSession) -> None:
    with ScriptedModel([HttpReply(503, {"error": {"message": "busy"}}), "42"]) as model:
        context = recorded(model)
        status, answer = await ask(http, context, PROMPT)
        await ask(http, context, PROMPT)
        said = (await sample(context)).extra_fields["endpoint"]
    assert (status, json.loads(answer)) == (503, {"error": {"message": "busy"}})
    assert (said["verdict"], len(said["turns"])) == ("clean", 1)


@pytest.mark.parametrize("end", ["short", "cut"])
async def test_half_an_answer_looks_like_one_and_leaves_the_sample_incomplete(
    http: aiohttp.ClientSession, end: Any
) -> None:
    with ScriptedModel(StreamReply(["4"], end=end)) as model:
        context = recorded(model)
        if end == "cut":
            with pytest.raises(aiohttp.ClientError):
                await ask(http, context, PROMPT, stream=True)
        else:
            await ask(http, context, PROMPT, stream=True)
        said = (await sample(context)).extra_fields["endpoint"]
    assert (said["verdict"], said["turn"]) == ("incomplete", 1)
    assert said["reason"] == "its answer ended before it was finished"


async def test_an_endpoint_that_is_gone_is_a_bad_gateway(http: aiohttp.ClientSession) -> None:
    with ScriptedModel("never") as model:
        context = recorded(model)
    status, answer = await ask(http, context, PROMPT)
    assert status == 502
    assert "model endpoint cannot be reached" in json.loads(answer)["error"]["message"]
    said = (await sample(context)).extra_fields["endpoint"]
    assert (said["verdict"], said["reason"]) == ("incomplete", "it was not answered")


async def test_other_paths_pass_unrecorded(http: aiohttp.ClientSession) -> None:
    with ScriptedModel("42") as model:
        context = recorded(model)
        async with http.get(f"{context.chat_completions_url}/models?a=1") as answer:
            assert answer.status == 200
        await ask(http, context, "no list")
        with pytest.raises(ValueError, match="give the agent the rollout's chat_completions_url"):
            await context.get_sample()


async def test_a_context_without_a_key_hands_on_the_agents_own(
    http: aiohttp.ClientSession,
) -> None:
    with ScriptedModel("42") as model:
        context = recorded(model, api_key=None)
        await ask(http, context, PROMPT)
    assert model.calls[0].headers["authorization"] == "Bearer None"


async def test_a_rollout_that_is_over_is_answered_no_more(http: aiohttp.ClientSession) -> None:
    with ScriptedModel("42") as model:
        context = recorded(model)
        url = context.chat_completions_url
        context.sample_source = None
        gc.collect()
        status, answer = await ask(http, RolloutContext(url), PROMPT)
    assert status == 404
    assert "this rollout has ended" in json.loads(answer)["error"]["message"]
    assert model.calls == []


class Blocking(AgentWorkflow):
    """Calls the model with a client that blocks the event loop, as many agents do."""

    async def run(self, ctx: AgentWorkflowContext) -> None:
        context = get_rollout_context()
        assert context is not None
        _ask_blocking(context.chat_completions_url, ctx.prompt)


def _ask_blocking(base_url: str, messages: Any) -> None:
    body = json.dumps({"model": "policy", "messages": messages}).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{base_url}/chat/completions", body, headers)
    with urllib.request.urlopen(request) as answer:
        answer.read()


async def run(model: ScriptedModel, number: int = 0) -> ExecutionResult:
    with RolloutContext(model.base_url, api_key=f"key-{number}", rollout_id=str(number)):
        prompt = [{"role": "user", "content": f"I am {number}"}]
        return await _BACKEND.run_workflow(ExecutionRequest(id=str(number), prompt=prompt))


_BACKEND = LocalBackend(workflow=Blocking, workflow_config=CONFIG)


async def test_a_config_may_ask_for_it() -> None:
    with ScriptedModel("42") as model:
        result = await run(model)
    assert result.sample is not None, result.err_message
    assert result.sample.messages[-1]["content"] == "42"


async def test_a_workflow_that_returns_its_messages_is_believed() -> None:
    class Says(AgentWorkflow):
        async def run(self, ctx: AgentWorkflowContext) -> Any:
            return [{"role": "assistant", "content": "mine"}]

    backend = LocalBackend(workflow=Says, workflow_config=CONFIG)
    with RolloutContext("http://127.0.0.1:1/v1", rollout_id="r1"):
        result = await backend.run_workflow(ExecutionRequest(id="r1", prompt=PROMPT))
    assert result.sample is not None
    assert result.sample.messages == [{"role": "assistant", "content": "mine"}]


async def test_an_agent_may_be_recorded_by_its_own_run(http: aiohttp.ClientSession) -> None:
    class Opts(AgentWorkflow):
        async def run(self, ctx: AgentWorkflowContext) -> None:
            context = get_rollout_context()
            assert context is not None
            context.set_sample_source(EndpointSampleSource())
            await ask(http, context, ctx.prompt)

    with ScriptedModel("42") as model, RolloutContext(model.base_url, rollout_id="r1"):
        backend = LocalBackend(workflow=Opts)
        result = await backend.run_workflow(ExecutionRequest(id="r1", prompt=PROMPT))
    assert result.sample is not None, result.err_message
    assert result.sample.messages[-1]["content"] == "42"


async def test_without_an_endpoint_it_says_what_to_do() -> None:
    result = await _BACKEND.run_workflow(ExecutionRequest(id="r1", prompt=PROMPT))
    assert "set OSMOSIS_CHAT_COMPLETIONS_URL" in str(result.err_message)


def test_outside_a_rollout_it_says_so() -> None:
    with pytest.raises(RuntimeError, match=r"EndpointSampleSource\(\) needs an active rollout"):
        EndpointSampleSource()


async def test_concurrent_rollouts_never_mix_conversations(http: aiohttp.ClientSession) -> None:
    def answer(request: dict[str, Any], call: Any) -> str:
        assert call.headers["authorization"] == f"Bearer key-{request['messages'][0]['n']}"
        return f"for {request['messages'][0]['n']}"

    async def one(number: int) -> str:
        context = recorded(model, api_key=f"key-{number}")
        prompt = [{"role": "user", "content": "same", "n": number}]
        _, said = await ask(http, context, prompt)
        await ask(http, context, [*prompt, message(said), {"role": "user", "content": "more"}])
        return " ".join(str(m["content"]) for m in (await sample(context)).messages)

    with ScriptedModel(answer) as model:
        said = await asyncio.gather(*[one(number) for number in range(500)])
    assert said == [f"same for {n} more for {n}" for n in range(500)]


def _record_in_child(base_url: str, queue: Any) -> None:
    context = RolloutContext(base_url, rollout_id="child")
    source = EndpointSampleSource(context)
    _ask_blocking(context.chat_completions_url, PROMPT)
    queue.put(list(asyncio.run(source.get_sample()).messages))


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
async def test_a_forked_child_records_for_itself() -> None:
    """It has its parent's memory, but not the thread that serves."""
    fork = multiprocessing.get_context("fork")
    with ScriptedModel("42") as model:
        recorded(model)
        queue = fork.SimpleQueue()
        child = fork.Process(target=_record_in_child, args=(model.base_url, queue))
        child.start()
        messages = await asyncio.to_thread(queue.get)
        child.join()
        queue.close()
        child.close()
    assert messages[-1]["content"] == "42"
