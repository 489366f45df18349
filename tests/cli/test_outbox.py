"""`osmosis rollout outbox`: what a person sees of answers that did not arrive."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from osmosis_ai.cli.main import main
from osmosis_ai.rollout.server.journal import open_journal
from tests.rollout.server.test_outbox import fill

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An artifact root with the journal of a server that has ended."""
    monkeypatch.setenv("_OSMOSIS_ROLLOUT_ARTIFACT_ROOT", str(tmp_path))

    async def make() -> None:
        journal = open_journal(tmp_path / ".journals" / "one.sqlite3")
        await fill(journal)
        journal.close()

    asyncio.run(make())
    return tmp_path


def outbox(*args: str) -> int:
    return main(["rollout", "outbox", *args])


def test_the_list_for_a_person(root: Path, capsys: Capture) -> None:
    assert outbox("list") == 0
    out = capsys.readouterr().out
    assert "refused" in out
    assert "http://host:1/done" in out
    assert "hush" not in out


def test_the_list_for_a_program(root: Path, capsys: Capture) -> None:
    assert outbox("list", "--json", "--limit", "1") == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["total_count"], document["has_more"]) == (4, True)
    (item,) = document["items"]
    assert (item["rollout_id"], item["state"], item["server_is_running"]) == ("a", "owed", False)


def test_an_empty_outbox_says_so(tmp_path: Path, capsys: Capture) -> None:
    assert outbox("list", "--folder", str(tmp_path)) == 0
    assert capsys.readouterr().out == "Every answer has arrived.\n"


def test_retry_and_drop_say_what_they_did(root: Path, capsys: Capture) -> None:
    assert outbox("retry", "b", "--plain") == 0
    assert capsys.readouterr().out == (
        "The answers of 1 rollout are owed again: the next server with this folder posts them.\n"
    )
    assert outbox("drop", "--all", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["operation"] == "rollout.outbox.drop"
    assert document["resource"] == {"rollout_ids": ["a", "b", "c"]}
    assert outbox("drop", "--all", "--plain") == 0
    assert capsys.readouterr().out == "There is no such answer.\n"


@pytest.mark.parametrize("args", [[], ["b", "--all"]])
@pytest.mark.parametrize("word", ["retry", "drop"])
def test_it_has_to_be_said_which(word: str, args: list[str], root: Path, capsys: Capture) -> None:
    assert outbox(word, *args) == 2
    assert "name rollouts, or say --all" in capsys.readouterr().err
