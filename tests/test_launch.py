"""An entrypoint is imported once, as a module, with its own directories on the path."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from osmosis_ai.errors import ConfigError
from osmosis_ai.launch import forgetting_modules, import_path, load_entrypoint

UNPRINTABLE = """
class E(Exception):
    def __str__(self):
        return 1 / 0

raise E
"""
WITHOUT_A_FILE = """
import sys, types

sys.modules["made_by_the_test"] = types.ModuleType("made_by_the_test")
"""


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Path]:
    """A workspace with one rollout, whose modules are forgotten afterwards."""
    rollout = tmp_path / "rollouts" / "demo"
    rollout.mkdir(parents=True)
    with forgetting_modules(roots(tmp_path)):
        yield tmp_path


def roots(workspace: Path) -> list[Path]:
    return [workspace / "rollouts" / "demo", workspace]


def write(workspace: Path, name: str, text: str) -> Path:
    path = workspace / "rollouts" / "demo" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_an_entrypoint_is_a_module_and_not_main(workspace: Path) -> None:
    entrypoint = write(
        workspace,
        "main.py",
        "class Workflow: pass\n\nif __name__ == '__main__':\n    raise SystemExit('served')\n",
    )
    module = load_entrypoint(entrypoint, roots(workspace))
    assert module.__name__ == "main"
    assert module.__file__ == str(entrypoint)
    assert pickle.loads(pickle.dumps(module.Workflow)) is module.Workflow


def test_it_runs_once(workspace: Path) -> None:
    """Also where the file itself, or `"main:Workflow"`, imports it by name."""
    entrypoint = write(workspace, "main.py", "import main\nassert main.__name__ == 'main'\n")
    assert load_entrypoint(entrypoint, roots(workspace)) is load_entrypoint(
        entrypoint, roots(workspace)
    )


def test_its_directories_are_on_the_path_meanwhile(workspace: Path) -> None:
    write(workspace, "tools.py", "NAME = 'of the rollout'\n")
    (workspace / "tools.py").write_text("NAME = 'of the workspace'\n")
    (workspace / "shared_tools.py").write_text("NAME = 'shared'\n")
    entrypoint = write(workspace, "main.py", "import tools, shared_tools\n")
    path_before = list(sys.path)
    module = load_entrypoint(entrypoint, roots(workspace))
    assert module.tools.NAME == "of the rollout"
    assert module.shared_tools.NAME == "shared"
    assert sys.path == path_before


def test_a_path_that_user_code_removed_is_no_error(tmp_path: Path) -> None:
    with import_path([tmp_path]):
        sys.path.remove(str(tmp_path))
    assert str(tmp_path) not in sys.path


def test_a_file_in_a_package_has_its_packages_name(workspace: Path) -> None:
    write(workspace, "agent/__init__.py", "")
    write(workspace, "agent/tools.py", "NAME = 'tools'\n")
    entrypoint = write(workspace, "agent/main.py", "from agent.tools import NAME\n")
    module = load_entrypoint(entrypoint, roots(workspace))
    assert (module.__name__, module.NAME) == ("agent.main", "tools")


def test_a_file_whose_name_is_no_module_is_loaded_all_the_same(workspace: Path) -> None:
    entrypoint = write(workspace, "my-rollout.py", "NAME = 1\n")
    assert load_entrypoint(entrypoint, roots(workspace)).NAME == 1


def test_a_file_outside_the_directories_is_loaded_all_the_same(
    workspace: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    entrypoint = tmp_path_factory.mktemp("elsewhere") / "main.py"
    entrypoint.write_text("NAME = 1\n")
    assert load_entrypoint(entrypoint, roots(workspace)).NAME == 1


def test_a_file_called_like_a_library_does_not_replace_it(workspace: Path) -> None:
    import_before = sys.modules["json"]
    entrypoint = write(workspace, "json.py", "NAME = 'mine'\n")
    assert load_entrypoint(entrypoint, roots(workspace)).NAME == "mine"
    assert sys.modules["json"] is import_before


def test_a_missing_file_is_named(workspace: Path) -> None:
    with pytest.raises(ConfigError, match=r"entrypoint .*main\.py is not a file") as caught:
        load_entrypoint(workspace / "rollouts/demo/main.py", roots(workspace))
    assert caught.value.key == "entrypoint"


def test_a_file_of_another_kind_is_refused(workspace: Path) -> None:
    with pytest.raises(ConfigError, match="is not a Python file"):
        load_entrypoint(write(workspace, "main.txt", "hello"), roots(workspace))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("import not_there_at_all", "ModuleNotFoundError: No module named 'not_there_at_all'"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("def broken(:", "SyntaxError: invalid syntax"),
        (
            "class E(Exception):\n    def __str__(self): 1 / 0\nraise E",
            "E: <exception str() failed>",
        ),
        (
            "from osmosis_ai.errors import ConfigError\nraise ConfigError('give n')",
            "failed: give n",
        ),
    ],
)
def test_a_file_that_fails_keeps_its_own_traceback(workspace: Path, text: str, reason: str) -> None:
    entrypoint = write(workspace, "main.py", text)
    with pytest.raises(ConfigError) as caught:
        load_entrypoint(entrypoint, roots(workspace))
    assert str(caught.value).startswith(f"importing {entrypoint} failed: ")
    assert str(caught.value).endswith(reason)
    assert caught.value.__cause__ is not None
    assert "main" not in sys.modules


def test_a_misspelt_file_is_known(workspace: Path) -> None:
    write(workspace, "main.py", "")
    with pytest.raises(ConfigError, match=r"; did you mean 'main\.py'\?"):
        load_entrypoint(workspace / "rollouts/demo/mian.py", roots(workspace))


def test_a_file_that_was_mended_is_loaded_anew(workspace: Path) -> None:
    entrypoint = write(workspace, "main.py", "1 / 0")
    with pytest.raises(ConfigError):
        load_entrypoint(entrypoint, roots(workspace))
    entrypoint.write_text("NAME = 'mended'\n")
    assert load_entrypoint(entrypoint, roots(workspace)).NAME == "mended"


def test_a_keyboard_interrupt_passes(workspace: Path) -> None:
    entrypoint = write(workspace, "main.py", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        load_entrypoint(entrypoint, roots(workspace))


def test_modules_of_one_workspace_are_not_anothers(tmp_path: Path) -> None:
    """Rollouts call their files alike."""
    names = []
    for name in ("one", "two"):
        workspace = tmp_path / name
        write(workspace, "tools/__init__.py", f"NAME = {name!r}\n")
        write(workspace, "my-tools.py", "")
        entrypoint = write(workspace, "main.py", "import tools\n")
        with forgetting_modules(roots(workspace)):
            names.append(load_entrypoint(entrypoint, roots(workspace)).tools.NAME)
            load_entrypoint(write(workspace, "odd-name.py", ""), roots(workspace))
    assert names == ["one", "two"]
    assert not [name for name in sys.modules if name.startswith("osmosis_entrypoint_")]


def test_what_lies_in_an_environment_below_a_workspace_is_kept(workspace: Path) -> None:
    """Libraries that are imported a second time break."""
    site = workspace / ".venv" / "site-packages"
    site.mkdir(parents=True)
    (site / "a_library_of_the_test.py").write_text("")
    with forgetting_modules(roots(workspace)), import_path([site]):
        load_entrypoint(
            write(workspace, "main.py", "import a_library_of_the_test\n"), roots(workspace)
        )
    assert "a_library_of_the_test" in sys.modules
    assert "main" not in sys.modules
    del sys.modules["a_library_of_the_test"]


def test_modules_without_a_file_are_kept(workspace: Path) -> None:
    with forgetting_modules(roots(workspace)):
        load_entrypoint(write(workspace, "main.py", WITHOUT_A_FILE), roots(workspace))
    del sys.modules["made_by_the_test"]
