"""An evaluation as a whole: its rows, its folder and its driver, brought together and run."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from osmosis_ai.environment import Isolation
from osmosis_ai.eval.config import EvalConfig
from osmosis_ai.eval.dataset import find_dataset, load_dataset, load_rows
from osmosis_ai.eval.outcome import Outcome
from osmosis_ai.eval.preflight import find_unmet
from osmosis_ai.eval.run_folder import Run
from osmosis_ai.eval.runner import EvalResult, Progress, choose_max_in_flight, run_eval
from osmosis_ai.eval.selection import select_rows
from osmosis_ai.eval.spool import spool_rows
from osmosis_ai.eval.store import RunStore, open_run
from osmosis_ai.redaction import SECRET_NAMES_VARIABLE, hide
from osmosis_ai.rollout.driver.base import RolloutDriver
from osmosis_ai.rollout.driver.choose import open_driver

logger = logging.getLogger(__name__)

ENVIRONMENTS_DIR = Path(".osmosis") / "environments"
"""Where a workspace keeps the environments of its rollouts; what no run needs can be deleted."""

OpenDriver: TypeAlias = Callable[..., AbstractAsyncContextManager[RolloutDriver]]
"""`open_driver`, or something that takes the same arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What a person says of one go at a run and its file does not."""

    name: str | None = None
    """Of the run; else the config file's."""
    rows: str | None = None
    """Which rows, such as `0-9,12`; wins over the limit."""
    max_in_flight: int | None = None
    """The most rollouts at once; wins over `evaluation.batch_size`."""
    fresh: bool = False
    """Archive what is there and start over."""
    retried: frozenset[Outcome] = frozenset()
    """Run items that ended so once more."""
    driver: str | None = None
    server_url: str | None = None
    isolated: bool = False
    """Run the rollouts in an environment of their own, which holds what they declare."""


@dataclass(frozen=True, slots=True)
class RunHeader:
    """What a run is about to do."""

    run: Run
    driver: str
    max_in_flight: int
    items: int
    done: int
    """Items that earlier sessions have finished."""


class Observer:
    """Is told how an evaluation goes; each method does nothing until overridden."""

    def opened(self, run: Run, notes: tuple[str, ...]) -> None:
        """The folder is ours; no code of the user's has run yet."""

    def preparing(self, step: str) -> None:
        """Something that takes its time is done before the driver is ready."""

    def started(self, header: RunHeader) -> None:
        """The driver is ready, and rollouts begin."""

    def progressed(self, progress: Progress) -> None:
        """One more record, or none at the start."""


async def evaluate(
    config: EvalConfig,
    *,
    rows: Iterable[Mapping[str, Any]] | None = None,
    options: RunOptions | None = None,
    observer: Observer | None = None,
    open_driver: OpenDriver = open_driver,
    environ: Mapping[str, str] = os.environ,
) -> EvalResult:
    """Run an evaluation, or what is left of it, and return what it has measured then.

    `rows` are taken in the place of the file's data set: mappings with its columns, one at a time.
    They are written to a file below `.osmosis/rows/`, so that the run can be resumed with the same.

    >>> result = asyncio.run(evaluate(load_config("configs/eval/multiply.toml")))
    >>> result.summary.mean
    Estimate(value=0.7325, over=800, rows=200, ...)
    """
    options, told = options or RunOptions(), observer or Observer()
    _check(config, options, environ)
    model = config.model_spec(environ)
    dataset = load_dataset(_dataset_path(config, rows))
    limit = config.file.evaluation.limit
    selection = select_rows(options.rows, limit=limit, total=dataset.total_rows)
    async with open_run(
        config,
        dataset,
        selection,
        name=options.name,
        fresh=options.fresh,
        retried=options.retried,
    ) as store:
        told.opened(store.run, store.notes)
        with _environment(config):
            async with open_driver(
                model=model, **_driver_arguments(config, store, options, told)
            ) as driver:
                if config.file.model.probe:
                    await driver.probe()
                told.started(_header(config, store, driver, options))
                return await run_eval(
                    config,
                    driver=driver,
                    store=store,
                    rows=load_rows(dataset, selection),
                    max_in_flight=options.max_in_flight,
                    on_progress=told.progressed,
                )


def _check(config: EvalConfig, options: RunOptions, environ: Mapping[str, str]) -> None:
    """Say what is missing before anything is made, and know what is not to be said."""
    config.check_secrets(environ)
    hide(environ[name] for name in config.secret_names if name in environ)
    if config.file.advanced:
        logger.warning("[advanced] is for hosted runs, and ignored here")
    for unmet in () if options.isolated else find_unmet(config.rollout_dir):
        logger.warning(unmet)


def _driver_arguments(
    config: EvalConfig, store: RunStore, options: RunOptions, told: Observer
) -> dict[str, Any]:
    return {
        "entrypoint": config.entrypoint,
        "project_path": config.rollout_dir,
        "import_roots": (config.rollout_dir, config.workspace),
        "artifact_root": store.run.paths.rollouts,
        "driver": options.driver,
        "server_url": options.server_url,
        "on_sample": store.write_sample,
        "listener": config.listener,
        "isolation": _isolation(config, options, told),
        "budget": config.budget(store.ledger.spent),
    }


def _dataset_path(config: EvalConfig, rows: Iterable[Mapping[str, Any]] | None) -> Path:
    if rows is not None:
        return spool_rows(rows, workspace=config.workspace)
    return find_dataset(config.file.experiment.dataset, workspace=config.workspace)


def _isolation(config: EvalConfig, options: RunOptions, told: Observer) -> Isolation | None:
    if not options.isolated:
        return None
    return Isolation(config.workspace / ENVIRONMENTS_DIR, told.preparing)


def _header(
    config: EvalConfig, store: RunStore, driver: RolloutDriver, options: RunOptions
) -> RunHeader:
    selection, ledger = store.run.selection, store.ledger
    return RunHeader(
        run=store.run,
        driver=driver.description,
        max_in_flight=choose_max_in_flight(config, driver, max_in_flight=options.max_in_flight),
        items=len(selection) * ledger.n,
        done=ledger.done_in(selection),
    )


@contextmanager
def _environment(config: EvalConfig) -> Iterator[None]:
    """Set a config's `[env]` while its rollouts run, and put back what was there.

    The working directory too: a workflow may change it, and paths are told from here.
    """
    # Servers that are started meanwhile learn what they have to hide.
    variables = {**config.file.env, SECRET_NAMES_VARIABLE: ",".join(config.secret_names)}
    before = {name: os.environ.get(name) for name in variables}
    here = os.getcwd()
    os.environ.update(variables)
    try:
        yield
    finally:
        os.chdir(here)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
