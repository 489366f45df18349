"""Flags of `osmosis eval run` that say where rollouts call back, and what is told meanwhile."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from osmosis_ai.cli.main import main
from tests.eval.demo import make_demo

Capture = pytest.CaptureFixture[str]
CONFIG_PATH = "configs/eval/demo.toml"


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    make_demo(tmp_path, "one", "two")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_listener_of_ones_own_is_used_and_shown(workspace: Path, capsys: Capture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    here = f"http://127.0.0.1:{port}"
    flags = ("--listen", f"0.0.0.0:{port}", "--advertise-url", here, "--stall-sec", "600")
    assert main(["eval", "run", CONFIG_PATH, "--plain", *flags]) == 0
    err = capsys.readouterr().err
    assert f"Listener: 0.0.0.0:{port} (rollouts call {here})" in err
    document = json.loads((workspace / ".osmosis/evals/demo/run.json").read_bytes())
    assert document["config"]["evaluation"]["stall_sec"] == 600.0
    # It is no part of what is measured: another address goes on with the same run.
    assert main(["eval", "run", CONFIG_PATH, "--plain", "--listen", "localhost:0"]) == 0
    assert "Listener: localhost:0\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "key"),
    [
        (["--listen", "9000"], "evaluation.listen"),
        (["--listen", "0.0.0.0:9000"], "evaluation.listen"),
        (["--advertise-url", "http://gpu-box:9000"], "evaluation.advertise_url"),
        (["--listen", "localhost:1", "--advertise-url", "gpu-box"], "evaluation.advertise_url"),
        (["--stall-sec", "0"], "evaluation.stall_sec"),
        (["--stall-sec", "nan"], "evaluation.stall_sec"),
    ],
)
def test_values_that_cannot_be_meant_are_refused_by_name(
    workspace: Path, capsys: Capture, flags: list[str], key: str
) -> None:
    assert main(["eval", "run", CONFIG_PATH, "--json", *flags]) == 1
    error = json.loads(capsys.readouterr().err)["error"]
    assert [issue["key"] for issue in error["details"]["issues"]] == [key]
    assert not (workspace / ".osmosis").exists()


def test_an_address_that_is_taken_ends_the_command_with_a_sentence(
    workspace: Path, capsys: Capture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert main(["eval", "run", CONFIG_PATH, "--json", "--listen", address]) == 1
    error = json.loads(capsys.readouterr().err.splitlines()[-1])["error"]
    assert (error["code"], error["details"]) == ("VALIDATION", {"key": "listen"})
    assert f"{address} cannot be listened on: Address already in use" in error["message"]


def test_an_adaptive_run_says_from_where_to_where(workspace: Path, capsys: Capture) -> None:
    assert main(["eval", "run", CONFIG_PATH, "--plain", "--adaptive"]) == 0
    assert "LocalBackend (4 at once, growing to 8 while that gets more done)" in (
        capsys.readouterr().err
    )
    timing = json.loads((workspace / ".osmosis/evals/demo/timing.json").read_bytes())
    assert timing["sessions"][0]["adaptive"][0] == {"at_sec": 0.0, "in_flight": 4, "why": "start"}


def test_the_numbers_are_shown_for_each_value_of_a_key(workspace: Path, capsys: Capture) -> None:
    rows = [
        {"user_prompt": word, "ground_truth": label, "metadata": {"level": level}}
        for word, label, level in (("a", "a", 1), ("b", "x", 2), ("c", "c", 2))
    ]
    (workspace / "data/demo.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["eval", "run", CONFIG_PATH, "--plain", "--by", "level"]) == 0
    out = capsys.readouterr().out
    assert "1: 1.0000 (mean over 1 rollouts of 1 rows; pass rate 100.0%)\n" in out
    assert "2: 0.5000 (mean over 2 rollouts of 2 rows; pass rate 50.0%)\n" in out
    assert main(["eval", "run", CONFIG_PATH, "--json", "--by", "level"]) == 0
    resource = json.loads(capsys.readouterr().out)["resource"]
    assert resource["by"] == "level"
    assert [group["mean"]["value"] for group in resource["groups"]] == [1.0, 0.5]
    assert main(["eval", "run", CONFIG_PATH, "--by", "level"]) == 0
    assert "By level\n" in capsys.readouterr().out


def test_a_key_that_no_row_has_costs_no_result(workspace: Path, capsys: Capture) -> None:
    assert main(["eval", "run", CONFIG_PATH, "--json", "--by", "levle"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["resource"]["groups"] == []
    assert "--by 'levle': no row has it" in captured.err


def test_of_many_values_the_first_are_shown(workspace: Path, capsys: Capture) -> None:
    rows = [
        {"user_prompt": "a", "ground_truth": "a", "metadata": {"id": number}}
        for number in range(60)
    ]
    (workspace / "data/demo.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["eval", "run", CONFIG_PATH, "--by", "id"]) == 0
    assert "By id (50 of 60 values)\n" in capsys.readouterr().out
