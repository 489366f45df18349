"""Run one page of the documentation: `python tests/docs/page_runner.py PAGE`.

The working directory is the workspace the page speaks of; the page's blocks go from top to bottom:

python   run in one namespace for the whole page
text     right after a python or sh block: exactly what that block printed; `...` is any text
sh       `osmosis`, `python` and `mkdir` lines are run; the lines of `CHECKED` are held against the
         checkout instead: they install, build, or serve for ever
toml     loaded as an evaluation config; without [experiment] it is put under the workspace's own
json     parsed

A block with a title, such as `python title="rollouts/hello/main.py"`, is a file: written, not run.
Any other block is a defect, and so is a block that fails.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from osmosis_ai.eval.config import load_config

REPOSITORY = Path(__file__).parents[2]
FENCE = re.compile(r"^(?P<mark>`{3,}|~{3,})(?P<info>.*)$")


class Defect(Exception):
    """A block that does not do what the page says."""


@dataclass(frozen=True)
class Block:
    """One fenced block; `line` is that of its first line in the page."""

    language: str
    text: str
    line: int
    title: str | None = None


def main() -> int:
    page = Path(sys.argv[1])
    namespace: dict[str, Any] = {"__name__": "page"}
    printed: str | None = None
    for block in find_blocks(page.read_text(encoding="utf-8")):
        # Broad: a block of a page is anybody's code, and its traceback names page and line.
        try:
            printed = run_block(block, page=page, namespace=namespace, printed=printed)
        except Exception as error:
            raise Defect(f"{page}:{block.line}: {block.language} block failed") from error
    return 0


def find_blocks(text: str) -> Iterator[Block]:
    """The fenced blocks of a page; one that is never closed, or is indented, is a defect."""
    mark, info, start = "", "", 0
    lines = text.splitlines()
    for number, line in enumerate(lines):
        fence = FENCE.match(line.strip())
        if not fence:
            continue
        if line != line.lstrip():
            raise Defect(f"line {number + 1}: an indented fence; write it at the margin")
        if not mark:
            mark, info, start = fence["mark"], fence["info"], number + 1
        elif line.rstrip() == mark:
            text = "\n".join(lines[start:number]) + "\n"
            title = re.search(r'title="(.+?)"', info)
            language = (info.split() or ["none"])[0]
            yield Block(language, text, start + 1, title[1] if title else None)
            mark = ""
    if mark:
        raise Defect(f"line {start}: a fence that is never closed")


def run_block(
    block: Block, *, page: Path, namespace: dict[str, Any], printed: str | None
) -> str | None:
    """Do what the block's language asks for; return what a text block after it must show."""
    if block.title is not None:
        return write_file(block.title, block)
    match block.language:
        case "python":
            return run_python(block, page, namespace)
        case "sh":
            return "".join(run_command(line) for line in commands(block.text))
        case "text":
            compare(block.text, printed)
        case "toml":
            check_toml(block.text)
        case "json":
            json.loads(block.text)
        case other:
            raise Defect(f"unknown language {other!r}: see {Path(__file__).name}")
    return None


def write_file(name: str, block: Block) -> None:
    """Put a block where its title says, for the commands that follow."""
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(block.text, encoding="utf-8")


def run_python(block: Block, page: Path, namespace: dict[str, Any]) -> str:
    padding = "\n" * (block.line - 1)  # so that a traceback shows the page's own line
    with contextlib.redirect_stdout(io.StringIO()) as output:
        exec(compile(padding + block.text, str(page), "exec"), namespace)
    return output.getvalue()


def commands(text: str) -> list[str]:
    joined = text.replace("\\\n", " ")
    return [line.strip() for line in joined.splitlines() if line.strip() and line[0] != "#"]


def run_command(line: str) -> str:
    """What the command prints, where it can be run; its check where it cannot."""
    words = shlex.split(line, comments=True)
    for prefix, check in CHECKED.items():
        if line.startswith(prefix):
            check(words)
            return ""
    if words[0] not in {"osmosis", "python", "mkdir"}:
        raise Defect(f"{words[0]!r} is neither run nor checked")
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Defect(f"{line!r} ended with {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


def check_make(words: list[str]) -> None:
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    for target in words[1:]:
        if not re.search(rf"^{re.escape(target)}:", makefile, re.MULTILINE):
            raise Defect(f"the Makefile has no target {target!r}")


def check_install(words: list[str]) -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    known = project["project"]["optional-dependencies"]
    for extra in re.findall(r"[\w-]+", " ".join(re.findall(r"\[(.*?)\]", " ".join(words)))):
        if extra not in known:
            raise Defect(f"pyproject.toml has no extra {extra!r}")


def check_file(words: list[str]) -> None:
    if not Path(words[1]).is_file():
        raise Defect(f"there is no file {words[1]}")


def check_config(words: list[str]) -> None:
    """Load the config of a run that asks a model this machine does not have."""
    load_config(Path(words[3]))


def accept(words: list[str]) -> None:
    """Nothing to hold it against."""


CHECKED: dict[str, Callable[[list[str]], None]] = {
    "make ": check_make,
    "pip install ": check_install,
    "python -m venv ": accept,
    ". .venv/bin/activate": accept,
    "python rollouts/multiply/main.py": check_file,
    "osmosis eval run configs/eval/real.toml": check_config,
    "osmosis rollout serve ": accept,
    "osmosis rollout outbox retry ": accept,
    "cd ": accept,
    "export ": accept,
}


def compare(expected: str, printed: str | None) -> None:
    """Hold a text block against what the block before it printed."""
    if printed is None:
        raise Defect("a text block stands right after the python or sh block that prints it")
    pattern = ".*".join(re.escape(part) for part in expected.strip().split("..."))
    if not re.fullmatch(pattern, printed.strip(), re.DOTALL):
        raise Defect(f"the page says\n{expected}\nbut this was printed:\n{printed}")


def check_toml(text: str) -> None:
    """Load a config, or a part of one, as `osmosis eval run` would."""
    if "experiment" not in tomllib.loads(text):
        text = (
            Path("configs/eval/multiply.toml").read_text(encoding="utf-8").split("[evaluation]")[0]
            + text
        )
    config = Path("configs/eval/page.toml")
    config.write_text(text, encoding="utf-8")
    load_config(config)


if __name__ == "__main__":
    sys.exit(main())
