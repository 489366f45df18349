"""Wheels without a registry: what is installed here, packed again, and tiny ones."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.tags import parse_tag, sys_tags

from tests.isolated import closure


def pack_installed(folder: Path) -> Path:
    """The distributions that our wheel with its extra `server` asks for, each as a wheel."""
    folder.mkdir()
    for name in closure("osmosis-ai", extra="server") - {"osmosis-ai"}:
        _pack(distribution(name), folder)
    return folder


def write_wheel(
    folder: Path, name: str, version: str, files: Mapping[str, str], *, asks_for: str | None = None
) -> Path:
    """A wheel of a few Python files."""
    info = f"{name}-{version}.dist-info"
    needs = "" if asks_for is None else f"Requires-Dist: {asks_for}\n"
    whole = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    data = {path: text.encode() for path, text in whole.items()}
    return _write(folder / f"{name}-{version}-py3-none-any.whl", data, info)


_OF_THE_INSTALLER = {"RECORD", "INSTALLER", "REQUESTED", "direct_url.json"}


def _pack(found: Distribution, folder: Path) -> None:
    files = {
        path.as_posix(): Path(str(path.locate())).read_bytes()
        for path in found.files or []
        # Scripts lie outside and are made anew.
        if ".." not in path.parts and "__pycache__" not in path.parts
        if not (path.parent.suffix == ".dist-info" and path.name in _OF_THE_INSTALLER)
    }
    [info] = {path.split("/")[0] for path in files if path.endswith(".dist-info/METADATA")}
    name = f"{info.removesuffix('.dist-info')}-{_tag(files[f'{info}/WHEEL'].decode())}.whl"
    _write(folder / name, files, info)


def _tag(wheel: str) -> str:
    usable = set(sys_tags())
    tags = [line.removeprefix("Tag: ") for line in wheel.splitlines() if line.startswith("Tag: ")]
    return next(tag for tag in tags if usable & parse_tag(tag))


def _write(wheel: Path, files: Mapping[str, bytes], info: str) -> Path:
    record = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in {**files, f"{info}/RECORD": record.encode()}.items():
            archive.writestr(name, data)
    return wheel
