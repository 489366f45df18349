"""Before a paid run somebody is asked, and where nobody can be, it does not begin."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from osmosis_ai.cli.confirm import confirm
from osmosis_ai.cli.main import main
from osmosis_ai.cli.mode import InteractiveRequired, Mode
from osmosis_ai.cli.timing import cost
from osmosis_ai.eval.forecast import Forecast
from osmosis_ai.rollout.driver.base import ModelPrice
from osmosis_ai.testing import ScriptedModel
from tests.eval.demo import CONFIG, make_demo

Capture = pytest.CaptureFixture[str]
CONFIG_PATH = "configs/eval/demo.toml"


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedModel]:
    """A model that is paid, of a workspace that is the current directory."""
    config = make_demo(tmp_path, "one", "two")
    monkeypatch.chdir(tmp_path)
    with ScriptedModel("one") as model:
        price = "price = { prompt = 1.0, completion = 1.0 }"
        text = CONFIG.replace("scripted:policy:reply", "big")
        config.write_text(f'{text}[model]\nprobe = false\nbase_url = "{model.base_url}"\n{price}\n')
        yield model


@pytest.mark.parametrize("mode", ["--json", "--plain"])
def test_where_nobody_can_be_asked_nothing_runs(
    model: ScriptedModel, capsys: Capture, mode: str
) -> None:
    assert main(["eval", "run", CONFIG_PATH, mode, "--run-max-cost", "2"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert model.calls == []
    assert not Path(".osmosis").exists()
    assert "2 rollouts x model big - continue?" in said.err
    assert "--yes" in said.err
    if mode == "--json":
        error = json.loads(said.err)["error"]
        assert error["code"] == "INTERACTIVE_REQUIRED"
        assert error["details"]["summary"]["most_usd"] == 2.0


def test_yes_is_an_answer(model: ScriptedModel, capsys: Capture) -> None:
    assert main(["eval", "run", CONFIG_PATH, "--json", "--yes"]) == 0
    assert len(model.calls) == 2
    timing = json.loads(capsys.readouterr().out)["resource"]["timing"]
    assert timing["cost_usd"]["over"] == 2
    assert main(["eval", "run", CONFIG_PATH, "--json"]) == 0


def test_cost_is_told_over_what_is_known(model: ScriptedModel, capsys: Capture) -> None:
    main(["eval", "run", CONFIG_PATH, "--plain", "--yes"])
    (told,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Cost")]
    assert told.startswith("Cost: $0.000004 (over 2 of 2 tries")


def test_a_run_whose_budget_is_used_up_ends_with_one(model: ScriptedModel, capsys: Capture) -> None:
    flags = ["--yes", "--json", "--run-max-cost", "0.000001", "--max-in-flight", "1"]
    assert main(["eval", "run", CONFIG_PATH, *flags]) == 1
    said = capsys.readouterr()
    answer, error = json.loads(said.out), json.loads(said.err.splitlines()[-1])["error"]
    assert (answer["status"], answer["resource"]["summary"]["pending"]) == ("partial", 1)
    assert error["code"] == "BUDGET_USED_UP"
    assert "evaluation.run_max_cost = 1e-06" in error["message"]


@pytest.mark.parametrize(("answer", "code", "calls"), [("y", 0, 2), ("", 130, 0), ("no", 130, 0)])
def test_at_a_terminal_a_person_is_asked(
    model: ScriptedModel, answer: str, code: int, calls: int
) -> None:
    """No is what a mere Enter means."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "osmosis_ai.cli.main", "eval", "run", CONFIG_PATH]
    with subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    ) as process:
        os.close(theirs)
        said = b""
        try:
            while b"continue? [y/N]" not in said:
                said += os.read(ours, 4096)
            os.write(ours, answer.encode() + b"\n")
            while chunk := os.read(ours, 4096):
                said += chunk
        except OSError:  # the terminal is gone with its process
            pass
        finally:
            os.close(ours)
        assert process.wait(60) == code
    assert b"prompts of the first calls are about" in said
    assert len(model.calls) == calls


@pytest.mark.parametrize(
    ("dollars", "shown"),
    [
        (None, "-"),
        (0.0, "$0.0000"),
        (1e-9, "less than $0.000001"),
        (0.0012, "$0.001200"),
        (1234.5, "$1,234.5000"),
    ],
)
def test_a_small_sum_is_not_shown_as_none(dollars: float | None, shown: str) -> None:
    assert cost(dollars) == shown


def test_what_can_be_told_is_told() -> None:
    known = Forecast("m", ModelPrice(1e-6, 0), 10, 1_000_000, tries=4, tries_usd=2.0, most_usd=9.0)
    with pytest.raises(InteractiveRequired) as caught:
        confirm(known, yes=False, mode=Mode.PLAIN)
    notes = caught.value.details["notes"]
    assert "about 1,000,000 tokens, $1.0000" in notes[0]
    assert notes[1:] == [
        "As the 4 tries so far: about $5.0000.",
        "The limits in [evaluation] end it at $9.0000.",
    ]


def test_an_unknown_price_is_said_to_be_one() -> None:
    with pytest.raises(InteractiveRequired, match="The price of this model is not known"):
        confirm(Forecast("m", None, 1, 5), yes=False, mode=Mode.JSON)
