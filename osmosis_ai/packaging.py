"""Our own wheel as a file, and the check that an environment runs our code.

The registry's package of this name is another project's. Whatever environment we make therefore
gets this wheel by its path, and is asked for the build marker before it is used.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import io
import os
import secrets
import shutil
import subprocess
import tempfile
import zipfile
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from osmosis_ai import __build__, __version__
from osmosis_ai.errors import ConfigError

MARKER_CODE = "import osmosis_ai; print(getattr(osmosis_ai, '__build__', 'none'))"
"""What an environment's Python runs to show whose `osmosis_ai` it holds."""

_PACKAGE = Path(__file__).parent
_DIST_INFO = f"osmosis_ai-{__version__}.dist-info"
_METADATA = ("METADATA", "entry_points.txt", "licenses/LICENSE")
_TAGS = "Wheel-Version: 1.0\nGenerator: osmosis-ai\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def sdk_wheel() -> Path:
    """The wheel of the code that is running: the one `OSMOSIS_SDK_WHEEL` names, else built.

    It is put together from the package's folder and the installed metadata, alike for a checkout
    installed with `-e` and for a finished installation: no build tool, no network. Equal code
    gives equal bytes, kept in the user's cache under their digest.

    Raises `ConfigError` where the named file is not our wheel or the package is not installed.
    """
    named = os.environ.get("OSMOSIS_SDK_WHEEL")
    if named:
        return _checked_wheel(Path(named))
    return _kept(_wheel_bytes({**_code_files(), **_metadata_files()}))


def check_is_ours(python: str | Path, *, timeout_sec: float = 60.0) -> None:
    """Refuse an environment whose `osmosis_ai` is missing or another project's.

    `python` is that environment's interpreter. Raises `ConfigError` saying what it holds.
    """
    try:
        answer = subprocess.run(
            [python, "-I", "-c", MARKER_CODE],
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=timeout_sec,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"{python} does not say which osmosis-ai it holds: {error}") from error
    if answer.returncode != 0:
        last_words = answer.stderr.strip().rpartition("\n")[2]
        raise ConfigError(
            f"{python} cannot import osmosis_ai ({last_words}): install our wheel there, "
            "the file that osmosis_ai.packaging.sdk_wheel() names"
        )
    check_marker(answer.stdout.strip(), where=str(python))


def check_marker(marker: str, *, where: str) -> None:
    """Refuse `marker`, what `MARKER_CODE` printed in the environment `where`, unless it is ours."""
    if marker != __build__:
        raise ConfigError(
            f"{where} holds another project's osmosis-ai (its build marker is {marker!r}, ours "
            f"{__build__!r}): install our wheel there, the file that "
            "osmosis_ai.packaging.sdk_wheel() names"
        )


def _checked_wheel(wheel: Path) -> Path:
    try:
        with zipfile.ZipFile(wheel) as archive:
            front = archive.read("osmosis_ai/__init__.py").decode()
    except (OSError, KeyError, UnicodeDecodeError, zipfile.BadZipFile) as error:
        raise ConfigError(
            f"OSMOSIS_SDK_WHEEL names {wheel}, which is not a wheel of osmosis-ai: {error}",
            key="OSMOSIS_SDK_WHEEL",
        ) from error
    if __build__ not in front:
        raise ConfigError(
            f"OSMOSIS_SDK_WHEEL names {wheel}, another project's osmosis-ai: unset it, and the "
            "wheel is made from the code that runs",
            key="OSMOSIS_SDK_WHEEL",
        )
    return wheel.resolve()


def _code_files() -> dict[str, bytes]:
    return {
        file.relative_to(_PACKAGE.parent).as_posix(): file.read_bytes()
        for file in sorted(_PACKAGE.rglob("*"))
        if file.is_file() and "__pycache__" not in file.parts
    }


def _metadata_files() -> dict[str, bytes]:
    installed = _installed()
    texts = {name: installed.read_text(name) for name in _METADATA}
    return {f"{_DIST_INFO}/{name}": (text or "").encode() for name, text in texts.items()}


def _installed() -> Distribution:
    advice = f"pip install -e {_PACKAGE.parent}"
    try:
        found = distribution("osmosis-ai")
    except PackageNotFoundError as error:
        raise ConfigError(f"osmosis-ai runs from a folder, not installed: {advice}") from error
    if found.version != __version__:
        raise ConfigError(
            f"osmosis-ai {__version__} runs but {found.version} is installed: {advice}"
        )
    return found


def _wheel_bytes(files: Mapping[str, bytes]) -> bytes:
    tagged = {**files, f"{_DIST_INFO}/WHEEL": _TAGS.encode()}
    record = f"{_DIST_INFO}/RECORD"
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in {**tagged, record: _record(tagged, record)}.items():
            archive.writestr(_entry(name), data, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def _entry(name: str) -> zipfile.ZipInfo:
    # ZipInfo's own fixed date: the same code must give the same bytes.
    entry = zipfile.ZipInfo(name)
    entry.external_attr = 0o644 << 16
    return entry


def _record(files: Mapping[str, bytes], record: str) -> bytes:
    lines = [f"{name},{_digest(data)},{len(data)}" for name, data in files.items()]
    return "\n".join([*lines, f"{record},,", ""]).encode()


def _digest(data: bytes) -> str:
    return "sha256=" + urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def _kept(wheel: bytes) -> Path:
    try:
        return _written(wheel, _cache())
    except (OSError, RuntimeError):  # a home that is read-only, or none at all
        return _written(wheel, _scratch())


def _written(wheel: bytes, root: Path) -> Path:
    folder = root / "wheels" / hashlib.sha256(wheel).hexdigest()[:16]
    kept = folder / f"osmosis_ai-{__version__}-py3-none-any.whl"
    if kept.is_file() and kept.read_bytes() == wheel:
        return kept
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"{secrets.token_hex(8)}.part"
    part.write_bytes(wheel)
    # Replaced, never written in place: another process may be installing it.
    return part.replace(kept)


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "osmosis-ai"


@functools.cache
def _scratch() -> Path:
    folder = tempfile.mkdtemp(prefix="osmosis-ai-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)
