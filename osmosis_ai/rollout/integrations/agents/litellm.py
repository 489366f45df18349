"""LiteLLM's keyword arguments for the model of the active rollout."""

from __future__ import annotations

from osmosis_ai.rollout.integrations.policy import MODEL_NAME, policy_endpoint


def litellm_kwargs() -> dict[str, str]:
    """The arguments with which `litellm.completion` and `acompletion` reach the rollout's model.

        reply = await litellm.acompletion(messages=ctx.prompt, **litellm_kwargs())

    Raises RuntimeError outside a rollout. Set `LITELLM_LOCAL_MODEL_COST_MAP=True` before
    `import litellm`: else the import asks the network for prices.
    """
    endpoint = policy_endpoint("litellm_kwargs()")
    return {
        "model": f"openai/{MODEL_NAME}",
        "api_base": endpoint.base_url,
        "api_key": endpoint.api_key,
    }
