"""Every code block in the README, docs/ and the examples' own pages does what the page says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
RUNNER = Path(__file__).with_name("page_runner.py")
PAGES = sorted(
    page.relative_to(REPOSITORY)
    for pattern in ("README.md", "docs/**/*.md", "examples/*/README.md")
    for page in REPOSITORY.glob(pattern)
)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A copy of the multiply workspace, which is where every page is read."""
    return shutil.copytree(
        REPOSITORY / "examples/multiply",
        tmp_path / "workspace",
        ignore=shutil.ignore_patterns(".osmosis", "__pycache__"),
    )


def run_page(page: Path, workspace: Path) -> subprocess.CompletedProcess[str]:
    """Run a page in a process, a home and a workspace of its own."""
    environment = os.environ | {
        "HOME": str(workspace.parent),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    return subprocess.run(
        [sys.executable, "-W", "error", str(RUNNER), str(page)],
        cwd=workspace,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


def test_the_pages_are_found():
    """An empty list would pass every other test of this file."""
    names = {str(page) for page in PAGES}
    assert {"README.md", "docs/start.md", "docs/grader.md", "examples/gsm8k/README.md"} <= names


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_every_code_block_of_a_page_runs(page: Path, workspace: Path):
    done = run_page(REPOSITORY / page, workspace)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_links_of_a_page_lead_somewhere(page: Path):
    here = REPOSITORY / page
    for link in re.findall(r"\]\((?!https?:)(.+?)\)", here.read_text(encoding="utf-8")):
        path, _, anchor = link.partition("#")
        target = here.parent / path if path else here
        assert target.exists(), f"{page} links to {link}"
        assert not anchor or anchor in anchors(target), f"{page} links to {link}"


def anchors(page: Path) -> set[str]:
    """What the headings of a page are called in links."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize(
    ("blocks", "complaint"),
    [
        ("```python\n1 / 0\n```\n", "page.md:2"),
        ("```python\nprint(1)\n```\n\n```text\n2\n```\n", "but this was printed"),
        ("```python\nx = 1\n```\n\nText.\n\n```json\n{]\n```\n", "JSONDecodeError"),
        ("```toml\n[evaluation]\nno_such_key = 1\n```\n", "no_such_key"),
        ("```sh\nosmosis no-such-command\n```\n", "ended with 2"),
        ("```sh\nmake no-such-target\n```\n", "no target"),
        ('```sh\npip install "osmosis-ai[no-such-extra]"\n```\n', "no extra"),
        ("```sh\nrm -r /nowhere\n```\n", "neither run nor checked"),
        ("```text\n1\n```\n", "right after"),
        ("```\nx\n```\n", "unknown language"),
        ("```python\nx = 1\n", "never closed"),
        ("- item\n  ```python\n  x = 1\n  ```\n", "indented"),
    ],
)
def test_a_wrong_block_is_a_defect(tmp_path: Path, workspace: Path, blocks: str, complaint: str):
    """The runner can fail: what it waves through, a reader would stumble over."""
    page = tmp_path / "page.md"
    page.write_text(blocks, encoding="utf-8")
    done = run_page(page, workspace)
    assert done.returncode != 0
    assert complaint in done.stderr


def test_blocks_of_a_page_share_one_namespace(tmp_path: Path, workspace: Path):
    page = tmp_path / "page.md"
    blocks = ["python\nx = 1", "python\nprint(x + 1, 'and', 3)", "text\n2 ... 3"]
    page.write_text("".join(f"```{block}\n```\n" for block in blocks), encoding="utf-8")
    done = run_page(page, workspace)
    assert done.returncode == 0, done.stderr


def test_a_block_with_a_title_is_a_file_for_the_blocks_after_it(tmp_path: Path, workspace: Path):
    page = tmp_path / "page.md"
    blocks = ['python title="made/one.py"\nprint(1)', "sh\npython made/one.py", "text\n1"]
    page.write_text("".join(f"```{block}\n```\n" for block in blocks), encoding="utf-8")
    done = run_page(page, workspace)
    assert done.returncode == 0, done.stderr
