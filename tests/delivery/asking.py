"""A controller's asking end: patient, and always with the same words."""

from __future__ import annotations

import asyncio

import aiohttp

KEY = "key-of-the-controller"


async def ask_until_accepted(
    session: aiohttp.ClientSession, server: str, controller: str, rollout_id: str
) -> None:
    """Ask for a rollout as a patient controller does: again, with the same words, until a 202."""
    body = {
        "rollout_id": rollout_id,
        "initial_messages": [{"role": "user", "content": rollout_id}],
        "label": "x",
        "chat_completions_url": "http://127.0.0.1:1/v1",
        "controller_api_key": KEY,
        "completion_callback_url": f"{controller}/completion/{rollout_id}",
        "grader_callback_url": f"{controller}/grader/{rollout_id}",
    }
    while True:
        try:
            async with session.post(f"{server}/rollout", json=body) as answer:
                if answer.status == 202:
                    return
                assert answer.status in (429, 503), await answer.text()
        except aiohttp.ClientError:
            pass  # it is dead, and will be back
        await asyncio.sleep(0.02)
