"""A rollout's conversation reads well in a terminal, whatever is in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.cli.main import main
from osmosis_ai.cli.transcript import MAX_CHARS, read_messages, transcript_sections
from tests.eval.demo import make_demo

Capture = pytest.CaptureFixture[str]
WORDS = " ".join(f"word{number}" for number in range(30))


def keep(folder: Path, messages: Any, prompt: Any = None) -> None:
    document = {"prompt": prompt, "sample": {"messages": messages}}
    (folder / "sample.json").write_text(json.dumps(document))


def test_who_said_what_is_shown_with_tool_calls_and_parts(tmp_path: Path) -> None:
    call = {"function": {"name": "add", "arguments": '{"a": 1}'}}
    parts = [{"type": "text", "text": "look"}, {"type": "image_url"}, 3]
    keep(
        tmp_path,
        [
            {"role": "user", "content": parts},
            {"role": "assistant", "content": None, "tool_calls": [call, "torn", {"function": 1}]},
            {"content": "nobody's", "tool_calls": "none"},
        ],
    )
    (section,) = transcript_sections(tmp_path)
    assert [(fact.label, fact.value) for fact in section.facts] == [
        ("user", "look\n[image_url]\n[int]"),
        ("assistant", 'add({"a": 1})\ntorn\n[dict]'),
        ("?", "nobody's"),
    ]


def test_a_large_message_is_cut_and_says_so(tmp_path: Path) -> None:
    keep(tmp_path, [{"role": "user", "content": "x" * 20_000_000}])
    (section,) = transcript_sections(tmp_path)
    (fact,) = section.facts
    assert (len(fact.value), fact.note) == (MAX_CHARS, "20,000,000 characters in all")


def test_a_terminal_obeys_no_answer(tmp_path: Path) -> None:
    keep(tmp_path, [{"role": "a\x1b", "content": "red \x1b[31m\tend\n"}])
    (section,) = transcript_sections(tmp_path)
    assert section.facts[0].label == "a\N{REPLACEMENT CHARACTER}"
    assert section.facts[0].value == "red \N{REPLACEMENT CHARACTER}[31m\tend\n"


def test_without_a_sample_there_is_the_prompt(tmp_path: Path) -> None:
    prompt = [{"role": "user", "content": "hi"}]
    (tmp_path / "sample.json").write_text(json.dumps({"prompt": prompt, "sample": None}))
    assert read_messages(tmp_path) == prompt


@pytest.mark.parametrize("content", ["", "[]", "{", '{"sample": {"messages": 3}}', '{"prompt": 3}'])
def test_what_cannot_be_read_is_left_out(tmp_path: Path, content: str) -> None:
    assert list(transcript_sections(tmp_path)) == []
    (tmp_path / "sample.json").write_text(content)
    assert list(transcript_sections(tmp_path)) == []


@pytest.mark.parametrize("columns", [60, 140])
def test_a_row_is_shown_with_its_conversation(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    make_demo(tmp_path, WORDS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(["eval", "run", "configs/eval/demo.toml"]) == 0
    capsys.readouterr()
    assert main(["eval", "show", "demo", "--row", "0"]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= columns
    conversation = out[out.index("Conversation") :].split()
    assert conversation == ["Conversation", "user", *WORDS.split(), "assistant", *WORDS.split()]
    assert main(["eval", "show", "demo", "--row", "0", "--json"]) == 0
    (item,) = json.loads(capsys.readouterr().out)["items"]
    assert [message["role"] for message in item["messages"]] == ["user", "assistant"]


def test_in_plain_lines_it_is_all_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    make_demo(tmp_path, "one")
    monkeypatch.chdir(tmp_path)
    assert main(["eval", "run", "configs/eval/demo.toml", "-n", "2"]) == 0
    capsys.readouterr()
    assert main(["eval", "show", "demo", "--row", "0", "--plain"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == ["row 0, attempt 0: scored", "Reward: 1", "Model calls: 1"]
    first = lines.index("Conversation")
    assert lines[first : first + 4] == [
        "Conversation",
        "user: one",
        "assistant: one",
        "row 0, attempt 1: scored",
    ]
    assert lines[-1] == "assistant: one!"
