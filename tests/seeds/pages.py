"""The two pages that define this system: found, cut into blocks, and run from top to bottom."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(os.environ.get("SEEDS_DIR") or Path(__file__).parents[3] / "shared" / "seeds")
REQUIRED = bool(os.environ.get("REQUIRE_SEEDS") or os.environ.get("CI"))

# A fence carries attributes behind its language, which common tools do not expect.
_FENCE = re.compile(r"^```(?P<language>\w+)[^\n]*\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^# (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """One fenced block of a page, and the line of the page it begins on."""

    language: str
    code: str
    line: int


@dataclass(frozen=True)
class Page:
    """One page: its title, its text, its blocks from top to bottom."""

    title: str
    text: str
    blocks: tuple[Block, ...]

    def of(self, language: str) -> list[Block]:
        """The page's blocks in one language."""
        return [block for block in self.blocks if block.language == language]

    def run(self, preamble: str, *, leave_out: Sequence[str] = ()) -> list[Mapping[str, Any]]:
        """Run the Python blocks in one namespace after a preamble.

        Returns the names as they stood after each block: later blocks define some of them anew. A
        block that holds a text of `leave_out` is compiled and not run.
        """
        names: dict[str, Any] = {"__name__": "a_page"}
        _compile_and_run(preamble, f"<preamble of {self.title}>", names)
        stages: list[Mapping[str, Any]] = []
        for block in self.of("python"):
            # Empty lines in front, so that a traceback shows the page's own line numbers.
            code = compile("\n" * block.line + block.code, self.title, "exec", dont_inherit=True)
            if not any(text in block.code for text in leave_out):
                exec(code, names)
            stages.append(dict(names))
        return stages


def _compile_and_run(code: str, name: str, names: dict[str, Any]) -> None:
    exec(compile(code, name, "exec", dont_inherit=True), names)


def load_pages() -> dict[str, Page]:
    """The pages by title; without them the tests are skipped, or fail where they are required."""
    pages = [load_page(path.read_text()) for path in sorted(FOLDER.glob("*.txt"))]
    if not pages:
        reason = f"no pages in {FOLDER}: name their directory in SEEDS_DIR"
        if REQUIRED:
            pytest.fail(reason)
        pytest.skip(reason)
    return {page.title: page for page in pages}


def load_page(text: str) -> Page:
    """Cut a page into its blocks."""
    heading = _HEADING.search(_FENCE.sub("", text))
    assert heading is not None, "a page has a title"
    blocks = tuple(
        Block(found["language"], found["code"], line=text.count("\n", 0, found.start("code")))
        for found in _FENCE.finditer(text)
    )
    return Page(heading[1].strip(), text, blocks)
