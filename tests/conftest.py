"""What every test gets: a home of its own; and the tests that must not be skipped."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.wheelhouse import pack_installed

# Shared machines are slow at times: a deadline would report the neighbours.
settings.register_profile("osmosis", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("osmosis")

# So that a failed suite shows the values it compared.
pytest.register_assert_rewrite("osmosis_ai.testing")

_REQUIRED = os.environ.get("REQUIRE_TESTS", "").split()
_ran: dict[str, set[str]] = {word: set() for word in _REQUIRED}


@pytest.fixture(scope="session", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test reads or writes the home of whoever runs it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        for name in ("XDG_CACHE_HOME", "_OSMOSIS_ROLLOUT_ARTIFACT_ROOT"):
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(autouse=True)
def no_journals(home: None) -> Iterator[None]:
    """No server takes over what the server of another test still owed."""
    yield
    shutil.rmtree(Path.home() / ".osmosis" / ".journals", ignore_errors=True)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    for word in _REQUIRED:
        if word in report.nodeid and (report.when == "call" or report.skipped):
            _ran[word].add(report.outcome)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    for word in _REQUIRED:
        if word in report.nodeid and report.skipped:
            _ran[word].add(report.outcome)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.exitstatus == pytest.ExitCode.OK and _not_run():
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for word in _not_run():
        terminalreporter.write_line(
            f"REQUIRE_TESTS names {word!r}, but a test of that name was skipped or none ran",
            red=True,
        )


def _not_run() -> list[str]:
    return [word for word, outcomes in _ran.items() if outcomes != {"passed"}]


@pytest.fixture(scope="session")
def _wheelhouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_installed(tmp_path_factory.mktemp("wheels") / "installed")


@pytest.fixture
def offline(_wheelhouse: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder whose wheels, and those of what is installed here, are all there is."""
    ours = tmp_path / "wheels"
    ours.mkdir()
    for name, value in {
        "UV_OFFLINE": "1",
        "UV_FIND_LINKS": f"{ours},{_wheelhouse}",
        "UV_NO_CONFIG": "1",
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": f"{ours} {_wheelhouse}",
        "PIP_CONFIG_FILE": os.devnull,
    }.items():
        monkeypatch.setenv(name, value)
    return ours
