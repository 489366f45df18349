"""What a rollout lacks is said before anything runs."""

from __future__ import annotations

import json
import platform
from importlib import metadata
from pathlib import Path

import pytest

from osmosis_ai.cli.main import main
from osmosis_ai.errors import ConfigError
from osmosis_ai.eval.preflight import find_unmet
from tests.eval.demo import make_demo

Capture = pytest.CaptureFixture[str]
PYDANTIC = metadata.version("pydantic")


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    make_demo(tmp_path, "one")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def declare(folder: Path, *requirements: str) -> None:
    lines = f"[project]\nname = 'demo'\ndependencies = {list(requirements)}\n"
    (folder / "pyproject.toml").write_text(lines)


@pytest.mark.parametrize(
    ("requirement", "problem"),
    [
        ("no-such-package-anywhere", "it is not installed"),
        ("pydantic>=99", f"{PYDANTIC} is installed"),
        ("pydantic<2,>=1", f"{PYDANTIC} is installed"),
        (f"pydantic!={PYDANTIC}", f"{PYDANTIC} is installed"),
        (f"pydantic (>{PYDANTIC})", f"{PYDANTIC} is installed"),
    ],
)
def test_a_dependency_that_is_not_met_is_told(
    tmp_path: Path, requirement: str, problem: str
) -> None:
    declare(tmp_path, requirement)
    (told,) = find_unmet(tmp_path)
    assert told == f"{tmp_path / 'pyproject.toml'} asks for {requirement!r}: {problem}"


def test_another_python_is_told(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[project]\nrequires-python = '>=3.99'\n")
    (told,) = find_unmet(tmp_path)
    assert told.endswith(f"asks for Python >=3.99: this is {platform.python_version()}")


@pytest.mark.parametrize(
    "requirement",
    [
        "pydantic",
        "pydantic>=2",
        f"pydantic=={PYDANTIC}.0",
        "pydantic[email] >= 2.0, < 99",
        "osmosis-ai[server]>=0.3.0rc1,<0.4",
        "pydantic~=1.0",
        "no-such-package; python_version < '3'",
        "no-such-package @ file:///somewhere",
        "?",
    ],
)
def test_what_is_met_or_cannot_be_told_is_not_warned_of(tmp_path: Path, requirement: str) -> None:
    declare(tmp_path, requirement)
    assert list(find_unmet(tmp_path)) == []


@pytest.mark.parametrize(
    "text", ["", "project = 1", "[project]\ndependencies = 1", "[project]\ndependencies = [1]"]
)
def test_a_file_that_declares_nothing_asks_for_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    assert list(find_unmet(tmp_path)) == []


def test_a_rollout_without_the_file_asks_for_nothing(tmp_path: Path) -> None:
    assert list(find_unmet(tmp_path)) == []


def test_a_file_that_is_not_toml_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("=")
    with pytest.raises(ConfigError, match=r"pyproject\.toml cannot be read"):
        list(find_unmet(tmp_path))


def test_a_rollout_is_imported_once_and_described(workspace: Path, capsys: Capture) -> None:
    declare(workspace / "rollouts/demo", "no-such-package-anywhere")
    assert main(["rollout", "check", "demo", "--json"]) == 0
    captured = capsys.readouterr()
    assert "asks for 'no-such-package-anywhere'" in captured.err
    document = json.loads(captured.out[captured.out.index("{") :])["data"]
    assert (document["backend"], document["has_app"]) == ("LocalBackend", False)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("app = object()", "as a server of its own: its app is served"),
        ("", "as a server of its own: it has to listen when it is started"),
        ("class LooksLikeOne:\n    def __init__(self): raise AssertionError", "of its own"),
    ],
)
def test_nothing_is_looked_for_but_two_names(
    workspace: Path, capsys: Capture, source: str, said: str
) -> None:
    (workspace / "rollouts/demo/main.py").write_text(source)
    assert main(["rollout", "check", "demo", "--plain"]) == 0
    assert said in capsys.readouterr().out


def test_a_constructor_that_fails_shows_its_own_traceback(workspace: Path, capsys: Capture) -> None:
    declare(workspace / "rollouts/demo", "no-such-package-anywhere")
    source = "class Tool:\n    def __init__(self):\n        raise OSError('no tool')\nTool()\n"
    (workspace / "rollouts/demo/main.py").write_text(source)
    assert main(["rollout", "check", "demo"]) == 1
    said = capsys.readouterr().err
    assert "raise OSError('no tool')" in said
    assert "osmosis_ai/launch.py" not in said


def test_a_rollout_that_is_not_there_is_told_with_those_that_are(
    workspace: Path, capsys: Capture
) -> None:
    assert main(["rollout", "check", "demonstration", "--plain"]) == 1
    assert "there is: demo" in capsys.readouterr().err


def test_a_run_warns_of_what_is_not_met(workspace: Path, capsys: Capture) -> None:
    declare(workspace / "rollouts/demo", "no-such-package-anywhere")
    assert main(["eval", "run", "configs/eval/demo.toml", "--plain"]) == 0
    assert "Warning: " in (said := capsys.readouterr().err)
    assert "no-such-package-anywhere" in said


def test_a_version_that_is_no_plain_release_is_not_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A false warning would teach people to read past the true ones."""
    info = tmp_path / "site" / "oddly_numbered-2.0rc1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: oddly-numbered\nVersion: 2.0rc1\n")
    monkeypatch.syspath_prepend(info.parent)
    declare(tmp_path, "oddly-numbered>=9", "not-there>=1")
    (warning,) = find_unmet(tmp_path)
    assert "not-there" in warning
