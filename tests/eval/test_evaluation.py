"""A whole evaluation: file, rows, folder, driver, model and grader, in this process."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.errors import ConfigError
from osmosis_ai.eval.config import load_config
from osmosis_ai.eval.evaluation import Observer, RunHeader, RunOptions, evaluate
from osmosis_ai.eval.outcome import Outcome
from osmosis_ai.eval.run_folder import Run, find_run
from osmosis_ai.eval.runner import Progress
from tests.eval.demo import CONFIG, make_demo
from tests.eval.workspace import MINIMAL, FunctionDriver, Workspace


class Notes(Observer):
    def __init__(self) -> None:
        self.events: list[str] = []
        self.headers: list[RunHeader] = []

    def opened(self, run: Run, notes: tuple[str, ...]) -> None:
        self.events.append("opened")

    def started(self, header: RunHeader) -> None:
        self.events.append("started")
        self.headers.append(header)

    def progressed(self, progress: Progress) -> None:
        self.events.append("progressed")


async def test_an_evaluation_measures_a_real_rollout(tmp_path: Path) -> None:
    config = load_config(
        make_demo(tmp_path, "one", "two", "broken", "judge", "unreachable"),
        overrides={"evaluation.n": 2},
    )
    notes = Notes()
    result = await evaluate(config, observer=notes)
    summary = result.summary
    assert (summary.mean.value, summary.mean.over) == (0.4, 5)
    assert (summary.pass_rate.value, summary.pass_rate.over) == (0.4, 5)
    assert {name: count for name, count in summary.outcomes.items() if count} == {
        "scored": 5,
        "workflow_failed": 2,
        "no_result": 3,
    }
    assert (summary.usage.calls, summary.usage.failed_calls) == (8, 2)
    assert notes.events == ["opened", "started", *["progressed"] * 11]
    header = notes.headers[0]
    assert (header.max_in_flight, header.items, header.done) == (8, 10, 0)

    run = find_run("demo", evals_dir=tmp_path / ".osmosis" / "evals")
    record = next(one for one in run.records() if one.outcome is Outcome.SCORED)
    folder = run.paths.rollouts / record.rollout_id
    sample = json.loads((folder / "sample.json").read_bytes())
    assert sample["sample"]["messages"][0] == {"role": "user", "content": sample["label"]}
    assert (folder / "artifacts").is_dir()


async def test_the_environment_of_the_config_is_set_meanwhile(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = load_config(make_demo(tmp_path, "one"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DEMO_GREETING", "before")
        await evaluate(config)
        assert os.environ["DEMO_GREETING"] == "before"
    await evaluate(config, options=RunOptions(fresh=True))
    assert "DEMO_GREETING" not in os.environ
    assert capsys.readouterr().out == "imported hello\n" * 2


async def test_a_workflow_that_changes_the_working_directory_changes_none_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is printed at the end names paths that can be copied to the shell it stands in."""
    path = make_demo(tmp_path, "one")
    main = tmp_path / "rollouts" / "demo" / "main.py"
    main.write_text(main.read_text() + "\nimport os\n\nos.chdir('/')\n")
    monkeypatch.chdir(tmp_path)
    await evaluate(load_config(path))
    assert Path.cwd() == tmp_path


async def test_options_choose_rows_name_and_tries(tmp_path: Path) -> None:
    config = load_config(make_demo(tmp_path, "one", "two", "judge"))
    options = RunOptions(name="mine", rows="0,2", max_in_flight=1)
    first = await evaluate(config, options=options)
    assert (first.summary.items, first.summary.outcomes["no_result"]) == (2, 1)
    again = RunOptions(name="mine", rows="0,2", retried=frozenset({Outcome.NO_RESULT}))
    assert (await evaluate(config, options=again)).summary.superseded == 1


async def test_what_is_missing_is_told_before_anything_is_made(tmp_path: Path) -> None:
    path = make_demo(tmp_path, "one")
    path.write_text(CONFIG + '[secrets]\nrequired = ["NO_SUCH_KEY"]\n')
    with pytest.raises(ConfigError, match="NO_SUCH_KEY: not set"):
        await evaluate(load_config(path), environ={})
    assert not (tmp_path / ".osmosis").exists()


async def test_what_is_for_hosted_runs_is_told(
    workspace: Workspace, caplog: pytest.LogCaptureFixture
) -> None:
    @asynccontextmanager
    async def opened(**_: Any) -> AsyncIterator[FunctionDriver]:
        yield FunctionDriver()

    config = load_config(workspace.write_config(MINIMAL + "[advanced]\nx = 1\n"))
    await evaluate(config, open_driver=opened)
    assert "[advanced] is for hosted runs, and ignored here" in caplog.text


async def test_the_driver_gets_the_places_of_the_workspace(workspace: Workspace) -> None:
    seen: dict[str, Any] = {}

    @asynccontextmanager
    async def opened(**arguments: Any) -> AsyncIterator[FunctionDriver]:
        seen.update(arguments)
        yield FunctionDriver()

    config = workspace.config()
    options = RunOptions(driver="x", server_url="http://y")
    await evaluate(config, options=options, open_driver=opened)
    root = workspace.root.resolve()
    assert seen["entrypoint"] == root / "rollouts" / "hello" / "main.py"
    assert seen["project_path"] == root / "rollouts" / "hello"
    assert seen["import_roots"] == (root / "rollouts" / "hello", root)
    assert seen["artifact_root"] == root / ".osmosis" / "evals" / "hello" / "rollouts"
    assert (seen["driver"], seen["server_url"]) == ("x", "http://y")
    assert seen["model"].path == "scripted:policy:reply"
