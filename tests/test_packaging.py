"""Our wheel: made from what runs, met by the documented requirement, told from another's."""

from __future__ import annotations

import json
import sys
import tomllib
import venv
import zipfile
from email import message_from_bytes
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

import osmosis_ai
from osmosis_ai.errors import ConfigError
from osmosis_ai.packaging import check_is_ours, sdk_wheel
from tests.isolated import closure, link_installed, run_python

ROOT = Path(__file__).parents[1]
DOCUMENTED = "osmosis-ai[server]>=0.3.0rc1,<0.4"
METADATA, RECORD, WHEEL = (
    f"osmosis_ai-{osmosis_ai.__version__}.dist-info/{name}"
    for name in ("METADATA", "RECORD", "WHEEL")
)


def test_the_top_of_the_package_is_the_version_and_the_marker_alone() -> None:
    code = "import osmosis_ai; print(*sorted(n for n in vars(osmosis_ai) if n[0] != '_'))"
    assert run_python("-c", code).split() == []
    assert osmosis_ai.__build__


def test_the_base_install_is_thirteen_distributions() -> None:
    """What `pip install` brings without an extra; one more needs a recorded decision."""
    assert len(closure("osmosis-ai") - {"osmosis-ai"}) <= 13


def test_the_version_is_above_the_other_projects_and_meets_the_documented_requirement() -> None:
    assert osmosis_ai.__version__ in Requirement(DOCUMENTED).specifier
    assert osmosis_ai.__version__ in Requirement("osmosis-ai>=0.3.100").specifier


def test_the_wheel_is_what_the_build_backend_makes(tmp_path: Path) -> None:
    """Ours needs no build tool and no checkout, and must not drift from the backend's.

    The README ends METADATA and may be newer than the installed copy: headers are compared.
    """
    run_python("-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path), cwd=ROOT)
    [built] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(built) as theirs, zipfile.ZipFile(sdk_wheel()) as ours:
        assert sorted(ours.namelist()) == sorted(theirs.namelist())
        for name in set(ours.namelist()) - {METADATA, RECORD, WHEEL}:
            assert ours.read(name) == theirs.read(name), name
        assert _headers(ours) == _headers(theirs)


def test_the_same_code_gives_the_same_file() -> None:
    """Environments are keyed by it: a rebuilt wheel must not look like a new version."""
    first = sdk_wheel()
    written = first.stat().st_mtime_ns
    assert sdk_wheel() == first
    assert first.stat().st_mtime_ns == written


def test_an_installation_from_the_wheel_makes_the_same_wheel(tmp_path: Path) -> None:
    """An isolated environment hands the wheel on without a checkout."""
    site = tmp_path / "site"
    _pip("install", "--no-deps", "--no-index", "--target", str(site), str(sdk_wheel()))
    code = "from osmosis_ai import packaging as p; print(p.__file__); print(p.sdk_wheel())"
    source, wheel = run_python("-c", code, path=[site], cwd=tmp_path).split()
    assert Path(source).is_relative_to(site)
    assert Path(wheel).read_bytes() == sdk_wheel().read_bytes()


def test_the_documented_requirement_resolves_to_our_wheel_offline(tmp_path: Path) -> None:
    """With the extra's packages at hand and no index, pip would install our wheel alone."""
    [chosen] = _resolve(link_installed(tmp_path / "site", lambda name: name != "osmosis-ai"))
    assert chosen["metadata"]["version"] == osmosis_ai.__version__
    assert chosen["requested_extras"] == ["server"]
    assert chosen["download_info"]["url"] == sdk_wheel().as_uri()


def test_the_documented_requirement_brings_the_extras_packages(tmp_path: Path) -> None:
    """Without one of them at hand nothing is resolved."""
    absent = {"osmosis-ai", "fastapi"}
    site = link_installed(tmp_path / "site", lambda name: name not in absent)
    with pytest.raises(AssertionError, match="No matching distribution found for fastapi"):
        _resolve(site)


def test_an_environment_with_our_wheel_is_ours(tmp_path: Path) -> None:
    python, _ = _environment(tmp_path)
    _pip("--python", str(python), "install", "--no-deps", "--no-index", str(sdk_wheel()))
    check_is_ours(python)


def test_an_environment_with_another_projects_package_is_refused(tmp_path: Path) -> None:
    python, site = _environment(tmp_path)
    (site / "osmosis_ai.py").write_text('__version__ = "0.3.8"\n')
    with pytest.raises(ConfigError, match=r"another project's osmosis-ai .*sdk_wheel"):
        check_is_ours(python)


def test_an_environment_without_the_package_is_refused(tmp_path: Path) -> None:
    python, _ = _environment(tmp_path)
    with pytest.raises(ConfigError, match=r"No module named 'osmosis_ai'.*install our wheel"):
        check_is_ours(python)


def test_an_interpreter_that_does_not_run_is_named(tmp_path: Path) -> None:
    shim = tmp_path / "python"
    with pytest.raises(ConfigError, match=f"{shim} does not say which osmosis-ai it holds"):
        check_is_ours(shim)


def test_a_named_wheel_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = tmp_path / "osmosis_ai-0.3.100-py3-none-any.whl"
    wheel.write_bytes(sdk_wheel().read_bytes())
    monkeypatch.setenv("OSMOSIS_SDK_WHEEL", str(wheel))
    assert sdk_wheel() == wheel


def test_a_named_wheel_of_another_project_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = tmp_path / "osmosis_ai-0.3.8-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("osmosis_ai/__init__.py", '__version__ = "0.3.8"\n')
    monkeypatch.setenv("OSMOSIS_SDK_WHEEL", str(wheel))
    with pytest.raises(ConfigError, match="another project's osmosis-ai") as caught:
        sdk_wheel()
    assert caught.value.key == "OSMOSIS_SDK_WHEEL"


def test_a_named_file_that_is_no_wheel_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wheel").write_text("not a zip file")
    monkeypatch.setenv("OSMOSIS_SDK_WHEEL", str(tmp_path / "wheel"))
    with pytest.raises(ConfigError, match="is not a wheel of osmosis-ai"):
        sdk_wheel()


def test_a_cache_that_cannot_be_written_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = sdk_wheel().read_bytes()
    (tmp_path / "a file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a file"))
    assert sdk_wheel().read_bytes() == expected


def test_code_that_is_not_installed_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(ConfigError, match="not installed: pip install -e"):
        sdk_wheel()


def test_metadata_of_another_version_is_not_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a pull, or with the registry's package beside a checkout on the path."""
    stale = tmp_path / "osmosis_ai-0.3.8.dist-info"
    stale.mkdir()
    (stale / "METADATA").write_text("Metadata-Version: 2.1\nName: osmosis-ai\nVersion: 0.3.8\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"runs but 0\.3\.8 is installed"):
        sdk_wheel()


@pytest.mark.parametrize("file", sorted((ROOT / "constraints").iterdir()), ids=lambda f: f.stem)
def test_the_constraints_are_pins_without_an_address(file: Path) -> None:
    """A download address would tie every clone to one registry."""
    pins = [Requirement(line) for line in _lines(file)]
    assert pins
    for pin in pins:
        assert pin.url is None
        assert [part.operator for part in pin.specifier] == ["=="], pin


def test_every_fragment_of_the_changelog_is_of_a_declared_kind() -> None:
    """A misnamed one would silently be left out."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    kinds = {kind["directory"] for kind in project["tool"]["towncrier"]["type"]}
    for fragment in (ROOT / "changes").glob("[!R]*"):
        assert fragment.name.split(".")[1:] in [[kind, "md"] for kind in kinds], fragment


def _pip(*arguments: str) -> str:
    return run_python("-m", "pip", "--quiet", "--disable-pip-version-check", *arguments)


def _resolve(site: Path) -> list[dict[str, Any]]:
    """What pip would install for the documented line, seeing `site` and our wheel's folder."""
    answer = run_python(
        *("-m", "pip", "--quiet", "install", "--dry-run", "--no-index"),
        *("--find-links", str(sdk_wheel().parent), "--report", "-", DOCUMENTED),
        path=[site],
    )
    chosen: list[dict[str, Any]] = json.loads(answer)["install"]
    return chosen


def _environment(folder: Path) -> tuple[Path, Path]:
    """A new, empty virtual environment: its interpreter and its site-packages."""
    venv.create(folder / "env", symlinks=True)
    [site] = folder.glob("env/lib/python*/site-packages")
    return folder / "env" / "bin" / "python", site


def _headers(wheel: zipfile.ZipFile) -> list[tuple[str, str]]:
    return sorted(message_from_bytes(wheel.read(METADATA)).items())


def _lines(file: Path) -> list[str]:
    return [line for line in file.read_text().splitlines() if not line.startswith("#")]
