"""The command line itself: finding a command, and saying what went wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

import pytest

from osmosis_ai import __version__
from osmosis_ai.cli.main import GROUPS, Command, Group, main
from osmosis_ai.cli.mode import Misuse, Mode, take_mode
from tests.cli import commands

Capture = pytest.CaptureFixture[str]


def run(*args: str) -> int:
    return main(args, groups=commands.GROUPS)


def problem(capsys: Capture) -> dict[str, Any]:
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    document = json.loads(captured.err)
    assert (document["schema_version"], document["cli_version"]) == (1, __version__)
    return document


def test_help_imports_no_command() -> None:
    """It is asked for often, and must cost next to nothing."""
    code = (
        "import sys; from osmosis_ai.cli.main import main\n"
        "main(['--help'])\n"
        "heavy = {'pydantic', 'fastapi', 'aiohttp', 'litellm', 'orjson', 'osmosis_ai.cli.eval'}\n"
        "print(heavy & set(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stderr == "set()\n"
    for group in GROUPS.values():
        assert group.help in done.stdout


def test_looking_at_runs_needs_no_server_packages() -> None:
    """`eval list` and `eval show` are in the base install."""
    code = (
        "import sys; import osmosis_ai.cli.runs\n"
        "print({'fastapi', 'aiohttp', 'uvicorn', 'starlette'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "set()\n"


def all_targets(groups: Mapping[str, Command | Group]) -> Iterator[str]:
    for one in groups.values():
        if isinstance(one, Command):
            yield one.target
        else:
            yield from all_targets(one.commands)


@pytest.mark.parametrize(
    "target",
    list(all_targets(GROUPS)),
)
def test_every_command_is_there(target: str) -> None:
    module, _, attribute = target.partition(":")
    assert getattr(import_module(module), attribute).__doc__


@pytest.mark.parametrize("flag", ["-V", "--version"])
def test_the_version(flag: str, capsys: Capture) -> None:
    assert run(flag) == 0
    assert capsys.readouterr().out == f"osmosis-ai {__version__}\n"


@pytest.mark.parametrize("args", [[], ["test"], ["-h"], ["test", "--help"], ["test", "say", "-h"]])
def test_a_bare_group_and_help_are_no_error(args: list[str], capsys: Capture) -> None:
    assert run(*args) == 0
    assert "Usage: osmosis" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["tst"], "No such command 'tst'. Did you mean 'test'?"),
        (["test", "crsh"], "No such command 'crsh'. Did you mean 'crash'?"),
        (["zzz"], "No such command 'zzz'."),
        (["test", "say"], "Missing argument 'WORD'."),
        (["test", "say", "a", "--nope"], "No such option: --nope"),
        (["--json", "--plain", "test"], "--json and --plain exclude each other"),
    ],
)
def test_a_misused_line_is_code_2_and_says_how_to_use_it(
    args: list[str], message: str, capsys: Capture
) -> None:
    assert run(*args) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err


def test_a_misused_line_shows_the_usage(capsys: Capture) -> None:
    assert run("test", "say", "--plain") == 2
    error, usage, hint = capsys.readouterr().err.splitlines()
    assert error == "Error: Missing argument 'WORD'."
    assert usage.startswith("Usage: osmosis test say [OPTIONS]")
    assert hint == "Try 'osmosis test say --help' for help."


@pytest.mark.parametrize(
    ("args", "mode", "rest"),
    [
        (["a"], Mode.RICH, ["a"]),
        (["--json", "a", "b"], Mode.JSON, ["a", "b"]),
        (["a", "b", "--plain"], Mode.PLAIN, ["a", "b"]),
        (["a", "--json", "--json"], Mode.JSON, ["a"]),
        (["a", "--", "--json"], Mode.RICH, ["a", "--", "--json"]),
        (["--plain", "a", "--", "--json"], Mode.PLAIN, ["a", "--", "--json"]),
    ],
)
def test_the_mode_is_asked_for_anywhere_before_a_bare_dash(
    args: list[str], mode: Mode, rest: list[str]
) -> None:
    assert take_mode(args) == (mode, rest)


def test_two_modes_are_one_too_many() -> None:
    with pytest.raises(Misuse, match="exclude each other"):
        take_mode(["--json", "x", "--plain"])


@pytest.mark.parametrize(("flag", "mode"), [("--json", "json"), ("--plain", "plain")])
def test_a_command_is_told_the_mode(flag: str, mode: str, capsys: Capture) -> None:
    assert run("test", flag, "say", "hello") == 0
    assert capsys.readouterr().out == f"{mode} hello\n"


@pytest.mark.parametrize(
    ("command", "code"), [("leave", 7), ("abort", 130), ("interrupt", 130), ("refuse", 1)]
)
def test_the_exit_code_says_how_it_ended(command: str, code: int) -> None:
    assert run("test", command) == code


@pytest.mark.parametrize("mode", [[], ["--plain"]])
def test_an_error_is_a_sentence_on_stderr(mode: list[str], capsys: Capture) -> None:
    assert run(*mode, "test", "refuse") == 1
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "Error: the run is locked\nby somebody\n")


@pytest.mark.parametrize(
    ("command", "code", "details"),
    [
        ("refuse", "CONFLICT", {}),
        ("unreachable", "NETWORK", {}),
        ("need", "VALIDATION", {"extra": "eval"}),
    ],
)
def test_an_error_in_json_has_its_code(
    command: str, code: str, details: dict[str, str], capsys: Capture
) -> None:
    assert run("test", command, "--json") == 1
    document = problem(capsys)
    assert document["command"] == f"test {command}"
    assert (document["error"]["code"], document["error"]["details"]) == (code, details)


@pytest.mark.parametrize(
    ("args", "command"),
    [
        (["tst"], ""),
        (["test", "crsh"], "test"),
        (["test", "say"], "test say"),
        (["test", "more", "shout"], "test more"),
        (["test", "more", "say"], "test more say"),
    ],
)
def test_misuse_in_json_is_a_document_too(args: list[str], command: str, capsys: Capture) -> None:
    assert run("--json", *args) == 2
    document = problem(capsys)
    assert (document["command"], document["error"]["code"]) == (command, "VALIDATION")


def test_a_fault_of_ours_keeps_its_traceback(capsys: Capture) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        run("test", "crash")
    assert caught.value.__notes__ == ["This is a fault of osmosis-ai itself: please report it."]


def test_a_fault_of_ours_in_json_says_no_more_than_that(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its text may hold anything; whoever looks for it asks for the traceback."""
    assert run("test", "crash", "--json") == 1
    error = problem(capsys)["error"]
    assert (error["code"], error["message"]) == ("INTERNAL", "An internal error occurred.")
    monkeypatch.setenv("OSMOSIS_DEBUG", "1")
    run("test", "crash", "--json")
    assert "ZeroDivisionError: a fault" in problem(capsys)["error"]["message"]


def test_a_command_line_of_the_process_is_taken_where_none_is_given() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "osmosis_ai.cli.main", "eval", "lst", "--plain"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "Did you mean 'list'?" in done.stderr


def test_the_shell_completes_commands() -> None:
    """Completion looks into groups without running them."""
    done = subprocess.run(
        [sys.executable, "-c", "from osmosis_ai.cli.main import main; main()"],
        env={
            "_OSMOSIS_COMPLETE": "complete_bash",
            "COMP_WORDS": "osmosis eval ",
            "COMP_CWORD": "2",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stdout.split() == ["run", "list", "show", "stop"]


def test_a_group_may_hold_groups(capsys: Capture) -> None:
    assert run("test", "more", "say", "hello") == 0
    assert capsys.readouterr().out == "rich hello\n"
