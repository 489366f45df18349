"""Plain clients bound to the active rollout: OpenAI's, and LiteLLM's arguments."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("openai", reason="runs in the environments of the frameworks")

import litellm
from openai import DefaultAioHttpClient

from osmosis_ai.rollout import (
    AgentWorkflow,
    AgentWorkflowContext,
    ExecutionRequest,
    LocalBackend,
    RolloutContext,
)
from osmosis_ai.rollout.integrations.agents.litellm import litellm_kwargs
from osmosis_ai.rollout.integrations.agents.litellm_option import client_options
from osmosis_ai.rollout.integrations.agents.openai import (
    MODEL_NAME,
    rollout_client,
    sync_rollout_client,
)
from tests.frameworks.policy import Reply, Request, serving

# LiteLLM warns of itself.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")

MESSAGES: list[Any] = [{"role": "user", "content": "hello"}]


def named(request: Request, rollout_id: str) -> Reply:
    return f"hi from {rollout_id}"


class Asks(AgentWorkflow):
    async def run(self, ctx: AgentWorkflowContext) -> Any:
        client = rollout_client()
        messages: list[Any] = ctx.prompt
        reply = await client.chat.completions.create(model=MODEL_NAME, messages=messages)
        return [*ctx.prompt, reply.choices[0].message.model_dump(exclude_none=True)]


class AsksInAThread(AgentWorkflow):
    async def run(self, ctx: AgentWorkflowContext) -> Any:
        return [*ctx.prompt, {"role": "assistant", "content": await asyncio.to_thread(self.ask)}]

    def ask(self) -> str | None:
        with sync_rollout_client() as client:
            reply = client.chat.completions.create(model=MODEL_NAME, messages=MESSAGES)
        return reply.choices[0].message.content


class AsksThroughLiteLLM(AgentWorkflow):
    async def run(self, ctx: AgentWorkflowContext) -> Any:
        reply: Any = await litellm.acompletion(messages=ctx.prompt, **litellm_kwargs())
        return [*ctx.prompt, {"role": "assistant", "content": reply.choices[0].message.content}]


@pytest.mark.parametrize("workflow", [Asks, AsksInAThread, AsksThroughLiteLLM])
async def test_each_client_reaches_its_own_rollouts_model(workflow: type[AgentWorkflow]) -> None:
    backend = LocalBackend(workflow=workflow)

    async def one(number: int) -> str:
        with policy.context(str(number), key=f"key-{number}"):
            request = ExecutionRequest(id=str(number), prompt=MESSAGES)
            result = await backend.run_workflow(request)
        assert result.sample is not None, result.err_message
        return str(result.sample.messages[-1]["content"])

    with serving(named) as policy:
        said = await asyncio.gather(*[one(number) for number in range(20)])
    assert said == [f"hi from {number}" for number in range(20)]
    assert {
        (rollout, key, request["model"])
        for rollout, key, request in zip(policy.served, policy.keys, policy.requests, strict=True)
    } == {(str(number), f"Bearer key-{number}", MODEL_NAME) for number in range(20)}


async def test_clients_of_one_loop_share_connections_and_take_options() -> None:
    with RolloutContext("http://127.0.0.1:1/v1", rollout_id="r1"):
        first, second = rollout_client(), rollout_client(max_retries=7)
        own = DefaultAioHttpClient()
        with_own = rollout_client(http_client=own)
    assert first._client is second._client
    assert second.max_retries == 7
    assert with_own._client is own
    await own.aclose()


def test_connections_close_with_their_loop() -> None:
    """An open one would warn when it is collected, and warnings are errors here."""

    async def ask() -> Any:
        with policy.context():
            client = rollout_client()
            await client.chat.completions.create(model=MODEL_NAME, messages=MESSAGES)
        return client._client

    with serving(named) as policy:
        pools = [asyncio.run(ask()), asyncio.run(ask())]
    assert pools[0] is not pools[1]
    assert all(pool.is_closed for pool in pools)


async def test_the_key_of_the_environment_is_not_sent_to_the_policy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "mine")
    with serving(named) as policy, policy.context(key=None):
        await rollout_client().chat.completions.create(model=MODEL_NAME, messages=MESSAGES)
    assert policy.keys == ["Bearer none"]


@pytest.mark.parametrize("make", [rollout_client, sync_rollout_client, litellm_kwargs])
def test_outside_a_rollout_it_says_so(make: Any) -> None:
    with pytest.raises(RuntimeError, match=rf"{make.__name__}\(\) needs an active rollout"):
        make()


@pytest.mark.parametrize("make", [rollout_client, sync_rollout_client, litellm_kwargs])
def test_without_an_endpoint_it_says_what_to_do(make: Any) -> None:
    with (
        RolloutContext(rollout_id="r1"),
        pytest.raises(RuntimeError, match="set OSMOSIS_CHAT_COMPLETIONS_URL"),
    ):
        make()


def test_litellms_arguments_are_sorted_by_who_hears_them() -> None:
    """What only LiteLLM understands must not reach OpenAI's client, which would refuse it."""
    options = client_options(
        {
            "temperature": 1.0,
            "timeout": 5,
            "num_retries": 3,
            "default_headers": {"a": "b"},
            "drop_params": True,
            "top_k": 5,
            "min_p": 0.1,
            "extra_body": {"top_k": 7},
        }
    )
    assert options.client == {"max_retries": 3, "default_headers": {"a": "b"}}
    assert options.request == {
        "temperature": 1.0,
        "timeout": 5,
        "extra_body": {"top_k": 7, "min_p": 0.1},
    }
