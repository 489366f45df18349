"""A missing optional package becomes one sentence with the install line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from osmosis_ai.errors import MissingExtraError

_PACKAGES = {
    "server": ("aiohttp", "fastapi", "httptools", "uvicorn"),
    "view": ("jinja2",),
    "strands": ("aiohttp", "openai", "strands"),
    "openai-agents": ("agents", "aiohttp", "litellm", "openai"),
    "openai": ("aiohttp", "openai"),
    "litellm": ("litellm",),
    "harbor": ("harbor",),
    "ray": ("ray",),
    "rubric": ("litellm",),
    "graders": ("math_verify",),
    "parquet": ("pyarrow",),
    "datasets": ("datasets",),
    "telemetry": ("opentelemetry",),
    "train": ("trl",),
}
"""The packages each extra installs by name, as they are imported."""


@contextmanager
def requires_extra(extra: str, feature: str) -> Iterator[None]:
    """Guard the imports of `extra`'s packages, at the top of the one module that uses them.

    >>> with requires_extra("server", "create_rollout_server"):
    ...     import fastapi

    A package of that extra that is not installed raises `MissingExtraError`; every other error
    passes, a broken installation of the package included: an install line would not mend it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in _PACKAGES[extra]:
            raise
        raise missing_extra(extra, feature, name=error.name, path=error.path) from error


def missing_extra(
    extra: str, feature: str, *, name: str, path: str | None = None
) -> MissingExtraError:
    """The error that says which extra `feature` needs and how to install it."""
    return MissingExtraError(
        f"{feature} needs the package {name}, which is not installed: "
        f'pip install "osmosis-ai[{extra}]"',
        extra=extra,
        name=name,
        path=path,
    )
