"""Clause 3.13: text and numbers that JSON does not know never cost a result."""

from __future__ import annotations

from pathlib import Path

import orjson

from osmosis_ai.rollout.protocol import MADE_SAFE_KEY, encode_completion, encode_grade
from osmosis_ai.rollout.safe_json import safe_text
from osmosis_ai.rollout.types import RolloutStatus
from osmosis_ai.testing.contract.base import BackendClauses
from osmosis_ai.testing.contract_workflows import JudgeConfig, Strange

LONE_SURROGATE = "half a pair: \ud800"


class SafetyClauses(BackendClauses):
    """Whatever user code leaves in its messages and errors, the answers come and can be sent."""

    async def test_3_13_a_strange_sample_arrives_with_its_reward(self, tmp_path: Path) -> None:
        """Lone surrogates, NaN, foreign scalars and huge numbers are marked, and lose nothing."""
        async with self.bench(tmp_path, workflow=Strange) as bench:
            workflow, grade = await bench.grade(bench.request())
        assert (workflow.status, grade.status) == (RolloutStatus.SUCCESS, RolloutStatus.SUCCESS)
        sample = orjson.loads(encode_grade("a", grade))["sample"]
        assert sample["reward"] == 1.0
        assert sample["messages"][0]["content"].startswith("a lone surrogate: ")
        assert sample["extra_fields"].get(MADE_SAFE_KEY), "what had to change is not marked"

    async def test_3_13_an_errors_text_is_made_safe(self, tmp_path: Path) -> None:
        """The message of an exception goes out as text that any encoder takes."""
        config = JudgeConfig(error="ValueError", message=LONE_SURROGATE)
        async with self.bench(tmp_path, grader_config=config) as bench:
            options = {"error": "ValueError", "message": LONE_SURROGATE}
            failed = await bench.run(bench.request("a", options=options))
            _, grade = await bench.grade(bench.request("b"))
        for answer in (failed, grade):
            message = answer.err_message or ""
            assert message.startswith("half a pair: ")
            assert message == safe_text(message), "the message is no text that can be encoded"
            assert orjson.loads(encode_completion("a", answer))["status"] == "failure"
