"""The folder of a run: one process, known inputs, nothing lost."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.errors import ConfigError, RunError
from osmosis_ai.eval.json_file import write_json
from osmosis_ai.eval.ledger import Ledger
from osmosis_ai.eval.outcome import Outcome
from osmosis_ai.eval.record import to_line
from osmosis_ai.eval.run_folder import Run, RunNotFoundError, find_run, list_runs, read_run
from osmosis_ai.eval.selection import select_rows
from osmosis_ai.eval.store import RunStore, open_run
from osmosis_ai.rollout.types import ExecutionRequest, RolloutSample
from tests.eval.test_record import RECORD
from tests.eval.workspace import MINIMAL, Workspace


def opened(
    workspace: Workspace, *, rows: str | None = None, n: int | None = None, **options: Any
) -> AbstractAsyncContextManager[RunStore]:
    config, dataset = workspace.config(n=n), workspace.dataset()
    limit = config.file.evaluation.limit
    selection = select_rows(rows, limit=limit, total=dataset.total_rows)
    return open_run(config, dataset, selection, **options)


def record_of(row: int, attempt: int = 0, **fields: Any) -> Any:
    return replace(RECORD, row=row, attempt=attempt, try_index=0, **fields)


def owed(store: RunStore) -> list[tuple[int, int]]:
    rows, n = store.ledger.total_rows, store.ledger.n
    return [(r, a) for r in range(rows) for a in range(n) if store.ledger.owes(r, a)]


async def test_a_new_run_says_what_it_was_made_from(workspace: Workspace) -> None:
    async with opened(workspace, rows="0-2", n=2) as store:
        document = json.loads(store.run.paths.run_json.read_bytes())
    assert store.run.paths.folder == workspace.root.resolve() / ".osmosis" / "evals" / "hello"
    assert document["schema_version"] == 1
    assert document["run_id"] == store.run_id
    assert document["config"]["evaluation"]["n"] == 2
    assert document["config_path"] == "configs/eval/hello.toml"
    assert document["dataset_path"] == "data/hello.jsonl"
    assert document["rows"] == "0-2"
    assert set(document["inputs"]) == {"data", "code", "settings"}
    assert set(document["inputs"]["code"]["files"]) == {"main.py"}
    assert store.notes == ()


async def test_the_same_command_owes_what_is_left(workspace: Workspace) -> None:
    async with opened(workspace) as store:
        run_id = store.run_id
        await store.append(record_of(1))
        await store.append(record_of(3, outcome=Outcome.NO_RESULT, reward=None))
    async with opened(workspace) as store:
        assert store.run_id == run_id
        assert owed(store) == [(0, 0), (2, 0)]
        assert store.ledger.done_in(store.run.selection) == 2


async def test_rows_and_attempts_may_grow(workspace: Workspace) -> None:
    async with opened(workspace, rows="0-1", n=1) as store:
        await store.append(record_of(1))
    async with opened(workspace, n=2) as store:
        assert (1, 0) not in owed(store)
        assert len(owed(store)) == 7
        assert store.ledger.done_in(store.run.selection) == 1
        assert read_run(store.run.paths.folder).document.rows == "0-3"


async def test_rows_and_attempts_may_not_shrink(workspace: Workspace) -> None:
    """The records that would be left out are still in the journal, and would be counted."""
    async with opened(workspace, rows="0-2", n=2) as store:
        await store.append(record_of(1))
    with pytest.raises(RunError) as caught:
        async with opened(workspace, rows="0,3", n=1):
            pass
    assert "evaluation.n was 2, is now 1: it can only grow" in str(caught.value)
    assert "rows were 0-2, are now 0,3: more may be added, none left out" in str(caught.value)


async def test_changed_inputs_are_refused_by_name_and_with_a_way_out(workspace: Workspace) -> None:
    async with opened(workspace) as store:
        await store.append(record_of(1))
    (workspace.root / "rollouts" / "hello" / "main.py").write_text("x = 1\n")
    with pytest.raises(RunError) as caught:
        async with opened(workspace):
            pass
    assert str(caught.value) == (
        "run 'hello' was made from something else:\n"
        "  - code: main.py changed\n"
        "Its records and new ones would not mean the same. Put it back, or start over with "
        "--fresh (the old run is archived), or give the new run a --name of its own."
    )


async def test_a_run_without_records_takes_any_inputs(workspace: Workspace) -> None:
    """A first try that failed at a typo in main.py must not ask for --fresh."""
    async with opened(workspace):
        pass
    (workspace.root / "rollouts" / "hello" / "main.py").write_text("x = 1\n")
    async with opened(workspace, rows="0"):
        pass


async def test_fresh_archives_what_is_there(workspace: Workspace) -> None:
    async with opened(workspace) as store:
        await store.append(record_of(1))
    for _ in range(3):
        async with opened(workspace, fresh=True) as store:
            assert len(owed(store)) == 4
            await store.append(record_of(0))
    names = sorted(path.name for path in workspace.evals.iterdir() if path.name != ".locks")
    assert names[0] == "hello"
    assert len(names) == 4
    assert all(name.startswith("hello.archive-") for name in names[1:])
    assert {len(list(find_run(n, evals_dir=workspace.evals).records())) for n in names} == {1}


async def test_fresh_needs_no_run(workspace: Workspace) -> None:
    async with opened(workspace, fresh=True) as store:
        assert len(owed(store)) == 4


async def test_a_retried_outcome_is_owed_once_more(workspace: Workspace) -> None:
    async with opened(workspace) as store:
        await store.append(record_of(0))
        await store.append(record_of(1, outcome=Outcome.NO_RESULT, reward=None))
        await store.append(record_of(2, outcome=Outcome.GRADER_FAILED, reward=None))
    async with opened(workspace, retried=frozenset({Outcome.NO_RESULT})) as store:
        assert owed(store) == [(1, 0), (3, 0)]
        assert (store.ledger.tries(1, 0), store.ledger.tries(3, 0)) == (1, 0)
        await store.append(replace(record_of(1), try_index=1))
    async with opened(workspace, retried=frozenset({Outcome.NO_RESULT})) as store:
        assert owed(store) == [(3, 0)]


async def test_a_torn_line_is_a_note_and_runs_again(workspace: Workspace) -> None:
    async with opened(workspace) as store:
        await store.append(record_of(1))
        records = store.run.paths.records
    with records.open("ab") as file:
        file.write(to_line(record_of(2))[:20])
    async with opened(workspace) as store:
        (note,) = store.notes
        assert "was torn (20 bytes): that rollout runs again" in note
        assert owed(store) == [(0, 0), (2, 0), (3, 0)]
        await store.append(record_of(2))
    assert [record.row for record in store.run.records()] == [1, 2]


async def test_a_damaged_line_stops_the_run_with_its_number(workspace: Workspace) -> None:
    async with opened(workspace) as store:
        await store.append(record_of(1))
        records = store.run.paths.records
    with records.open("ab") as file:
        file.write(b"{}\n")
    with pytest.raises(RunError, match=r"records.jsonl, line 2: row: Field required"):
        async with opened(workspace):
            pass


@pytest.mark.parametrize("record", [record_of(4), record_of(0, attempt=1)])
def test_a_record_of_no_item_is_refused(record: Any) -> None:
    with pytest.raises(RunError, match="but the run has 4 rows and 1 attempts at each"):
        Ledger(total_rows=4, n=1).read([record])


async def test_two_runs_on_one_folder_are_refused(workspace: Workspace) -> None:
    async with opened(workspace) as store:
        assert store.run.is_running
        with pytest.raises(RunError, match=f"'hello' is in use by process {os.getpid()}"):
            async with opened(workspace):
                pass
        async with opened(workspace, name="other"):
            pass
    assert not store.run.is_running
    async with opened(workspace):
        pass


async def test_the_lock_of_another_process_holds_and_ends_with_it(workspace: Workspace) -> None:
    """However it ends: nobody has to remove a file by hand."""
    lock = workspace.evals / ".locks" / "hello.lock"
    code = (
        "import sys, pathlib; from osmosis_ai.eval.lock import run_lock\n"
        "with run_lock(pathlib.Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen(  # noqa: ASYNC220 - the test waits for nothing else
        [sys.executable, "-c", code, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(RunError, match=f"in use by process {process.pid}"):
            async with opened(workspace):
                pass
        process.kill()
    async with opened(workspace):
        pass


def test_a_run_nobody_locked_is_not_running(workspace: Workspace) -> None:
    asyncio.run(_open_and_close(workspace))
    run = find_run("hello", evals_dir=workspace.evals)
    run.paths.lock.unlink()
    assert not run.is_running


async def _open_and_close(workspace: Workspace) -> None:
    async with opened(workspace):
        pass


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "..", "a b", "x" * 97, "ä"])
async def test_a_name_must_be_a_plain_segment(workspace: Workspace, name: str) -> None:
    workspace.config_path.rename(workspace.config_path.with_name("has space.toml"))
    bad = replace_config(workspace, "has space.toml")
    with pytest.raises(ConfigError, match="cannot name a run"):
        async with opened(bad, name=name):
            pass


def replace_config(workspace: Workspace, name: str) -> Workspace:
    class Renamed(Workspace):
        @property
        def config_path(self) -> Path:
            return self.root / "configs" / "eval" / name

    return Renamed(workspace.root)


async def test_a_folder_that_cannot_be_written_is_one_sentence(workspace: Workspace) -> None:
    (workspace.root / ".osmosis").write_text("a file in the way")
    with pytest.raises(RunError, match=r"hello.lock cannot be written: Not a directory"):
        async with opened(workspace):
            pass


async def test_a_run_that_cannot_be_written_is_one_sentence(workspace: Workspace) -> None:
    workspace.evals.mkdir(parents=True)
    (workspace.evals / "hello").write_text("a file in the way")
    with pytest.raises(RunError, match=r"evals/hello cannot be written: .*Not a directory"):
        async with opened(workspace):
            pass


REQUEST = ExecutionRequest(id="r1", prompt=[{"role": "user", "content": "q"}], label="a")


async def test_a_sample_is_kept_as_the_grader_gets_it(workspace: Workspace) -> None:
    sample = RolloutSample(messages=[{"role": "assistant", "content": "x"}], metrics={"m": 1})
    async with opened(workspace) as store:
        store.write_sample(REQUEST, sample)
        store.write_sample(REQUEST.model_copy(update={"id": "r2"}), None)
        rollouts = store.run.paths.rollouts
    document = json.loads((rollouts / "r1" / "sample.json").read_bytes())
    assert document["schema_version"] == 1
    assert (document["rollout_id"], document["made_safe"]) == ("r1", [])
    assert (document["prompt"], document["label"]) == (REQUEST.prompt, "a")
    assert document["sample"]["messages"] == [{"role": "assistant", "content": "x"}]
    assert document["sample"]["metrics"] == {"m": 1}
    assert json.loads((rollouts / "r2" / "sample.json").read_bytes())["sample"] is None


async def test_a_sample_that_json_lacks_is_written_and_marked(workspace: Workspace) -> None:
    sample = RolloutSample(messages=[{"role": "assistant", "content": "\ud800", "n": float("nan")}])
    request = REQUEST.model_copy(update={"prompt": [{"role": "user", "content": "\udfff"}]})
    async with opened(workspace) as store:
        store.write_sample(request, sample)
        path = store.run.paths.rollouts / "r1" / "sample.json"
    document = json.loads(path.read_bytes())
    assert document["sample"]["messages"][0]["content"] == "\ufffd"
    assert len(document["made_safe"]) == 3


async def test_a_sample_that_cannot_be_written_is_warned_of_once(
    workspace: Workspace, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(workspace) as store:
        store.run.paths.rollouts.rmdir()
        store.run.paths.rollouts.write_text("a file in the way")
        store.write_sample(REQUEST, None)
        store.write_sample(REQUEST, None)
    assert caplog.text.count("samples are not kept") == 1


async def test_a_session_leaves_summary_and_timing(workspace: Workspace) -> None:
    async with opened(workspace) as store:
        await store.append(record_of(1))
        summary = store.close_session({"wall_sec": 1}).summary
        store.close_session({"wall_sec": 2})
        paths = store.run.paths
    document = json.loads(paths.summary.read_bytes())
    assert document == json.loads(json.dumps(summary.to_json())) | {
        "rollout": "hello",
        "model_path": "scripted:policy:reply",
        "dataset": "hello",
        "total_rows": 4,
    }
    timing = json.loads(paths.timing.read_bytes())
    latency = dict.fromkeys(("p50", "p90", "p95", "p99", "max"), 1.25)
    assert timing == {
        "schema_version": 1,
        "rollout_sec": {"over": 1, **latency},
        "parts_sec": dict.fromkeys(("waiting", "model", "tools", "grading")),
        "call_sec": None,
        "retries": None,
        "cost_usd": None,
        "tries": 1,
        "sessions": [{"wall_sec": 1}, {"wall_sec": 2}],
    }


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"sessions": 3}'])
async def test_a_timing_file_that_was_damaged_is_started_anew(
    workspace: Workspace, content: str
) -> None:
    async with opened(workspace) as store:
        store.run.paths.timing.write_text(content)
        store.close_session({"wall_sec": 1})
    assert json.loads(store.run.paths.timing.read_bytes())["sessions"] == [{"wall_sec": 1}]


async def test_a_summary_that_cannot_be_written_costs_nothing(
    workspace: Workspace, caplog: pytest.LogCaptureFixture
) -> None:
    """It follows from the journal."""
    async with opened(workspace) as store:
        await store.append(record_of(1))
        (store.run.paths.folder / ".summary.json.tmp").mkdir()
        assert store.close_session({}).summary.finished == 1
    assert "summary.json is not up to date: Is a directory" in caplog.text


def runs(workspace: Workspace) -> Iterator[Run | RunError]:
    return list_runs(workspace.evals)


async def test_runs_are_listed_and_found(workspace: Workspace, tmp_path: Path) -> None:
    for name in ("b", "a"):
        async with opened(workspace, name=name) as store:
            await store.append(record_of(1))
    assert [run.name for run in runs(workspace) if isinstance(run, Run)] == ["a", "b"]
    assert find_run("a", evals_dir=workspace.evals).summarize().finished == 1
    elsewhere = find_run(str(workspace.evals / "b"), evals_dir=tmp_path)
    assert (elsewhere.name, elsewhere.total_rows) == ("b", 4)


def test_there_may_be_no_runs(workspace: Workspace) -> None:
    assert list(runs(workspace)) == []


async def test_a_run_that_is_not_there_gets_the_nearest_name(workspace: Workspace) -> None:
    async with opened(workspace, name="multiply"):
        pass
    with pytest.raises(RunNotFoundError, match="did you mean 'multiply'"):
        find_run("multply", evals_dir=workspace.evals)
    with pytest.raises(RunNotFoundError, match="`osmosis eval list` shows what there is"):
        find_run("zzz", evals_dir=workspace.evals)
    with pytest.raises(RunNotFoundError, match=r"it has no run.json"):
        read_run(workspace.evals / "zzz")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "the file: Invalid JSON"),
        ('{"schema_version": 2}', "schema_version: Input should be 1"),
        ("{}", "run_id: Field required"),
    ],
)
async def test_a_run_that_cannot_be_read_is_one_sentence(
    workspace: Workspace, content: str, message: str
) -> None:
    async with opened(workspace) as store:
        store.run.paths.run_json.write_text(content)
    (error,) = runs(workspace)
    assert isinstance(error, RunError)
    assert message in str(error)


async def test_a_run_json_that_is_a_directory_is_one_sentence(workspace: Workspace) -> None:
    (workspace.evals / "hello" / "run.json").mkdir(parents=True)
    (error,) = runs(workspace)
    assert str(error).endswith("run.json cannot be read: Is a directory")


async def test_a_run_in_use_can_be_read(workspace: Workspace) -> None:
    """`eval show` in another terminal, while a line is half written."""
    async with opened(workspace) as store:
        await store.append(record_of(1))
        with store.run.paths.records.open("ab") as file:
            file.write(b'{"half')
            file.flush()
            run = find_run("hello", evals_dir=workspace.evals)
            assert (run.summarize().finished, run.is_running) == (1, True)


def test_a_config_that_toml_allows_and_json_does_not_is_kept(workspace: Workspace) -> None:
    workspace.write_config(MINIMAL + "[model]\nparams = { x = nan, big = 99999999999999999999 }\n")
    asyncio.run(_open_and_close(workspace))
    run = find_run("hello", evals_dir=workspace.evals)
    assert run.document.config.model.params == {"x": "nan", "big": "99999999999999999999"}


def test_a_json_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"a": 1})
    write_json(path, {"a": 2})
    assert path.read_text() == '{\n  "a": 2\n}\n'
    assert os.listdir(tmp_path) == ["a.json"]
