"""open_driver: which driver a run uses, and the backend or server behind it."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import cast

from osmosis_ai.environment import Isolation, make_environment
from osmosis_ai.errors import BackendError, ConfigError
from osmosis_ai.launch import forgetting_modules, import_path, load_entrypoint
from osmosis_ai.rollout.backend.base import ExecutionBackend
from osmosis_ai.rollout.controller.address import is_loopback
from osmosis_ai.rollout.controller.listener import Controller
from osmosis_ai.rollout.controller.model.base import ModelClient
from osmosis_ai.rollout.controller.model.openai_compatible import OpenAICompatibleClient
from osmosis_ai.rollout.controller.model.scripted import PREFIX, load_scripted
from osmosis_ai.rollout.controller.retry import RetryPolicy
from osmosis_ai.rollout.driver.base import (
    Budget,
    Deadline,
    ModelPrice,
    ModelSpec,
    RolloutDriver,
    deadline_sec,
)
from osmosis_ai.rollout.driver.check import find_backend
from osmosis_ai.rollout.driver.http import open_http_driver
from osmosis_ai.rollout.driver.in_process import open_in_process_driver
from osmosis_ai.rollout.driver.listener_spec import ListenerSpec
from osmosis_ai.rollout.driver.process import open_process_driver
from osmosis_ai.rollout.flight.flight import OnSample

logger = logging.getLogger(__name__)

IN_PROCESS, PROCESS, HTTP = "in-process", "process", "http"

_UNLIMITED = Budget()
_ON_LOOPBACK = ListenerSpec()


@asynccontextmanager
async def open_driver(
    *,
    entrypoint: Path,
    project_path: Path,
    import_roots: Sequence[Path],
    model: ModelSpec,
    artifact_root: Path,
    driver: str | None = None,
    server_url: str | None = None,
    server_api_key: str | None = None,
    on_sample: OnSample | None = None,
    deadline: Deadline = deadline_sec,
    listener: ListenerSpec = _ON_LOOPBACK,
    isolation: Isolation | None = None,
    budget: Budget = _UNLIMITED,
) -> AsyncIterator[RolloutDriver]:
    """The driver for an entrypoint, with its model answering, until the block ends.

    With a `server_url` that server runs the rollouts, and the entrypoint is not looked at. Else
    its `backend` runs in this process; where it has none, or `driver` is "process", its server is
    started for this block, with an `isolation` always, and in an environment of its own. Modules of
    the entrypoint and of a scripted model can be imported from `import_roots` meanwhile, and are
    forgotten afterwards. Raises ConfigError for what cannot be used.
    """
    _check_choice(driver, server_url, isolation)
    with (
        forgetting_modules(import_roots),
        import_path(import_roots),
        _controller(model, listener, budget) as controller,
    ):
        opened: AbstractAsyncContextManager[RolloutDriver]
        backend: ExecutionBackend | str | None = None
        if not server_url and isolation is None:
            backend = _find_backend(driver, entrypoint, import_roots)
        if server_url:
            _warn_of_loopback(server_url, listener)
            opened = open_http_driver(
                server_url,
                controller=controller,
                api_key=server_api_key,
                on_sample=on_sample,
                deadline=deadline,
                artifact_root=artifact_root,
            )
        elif isinstance(backend, ExecutionBackend):
            opened = open_in_process_driver(
                backend,
                controller=controller,
                project_path=project_path,
                artifact_root=artifact_root,
                on_sample=on_sample,
                deadline=deadline,
            )
        else:
            python = sys.executable
            if isolation is not None:
                python = str(await make_environment(project_path, isolation))
            opened = _explained(
                backend,
                open_process_driver(
                    entrypoint,
                    controller=controller,
                    project_path=project_path,
                    import_roots=import_roots,
                    artifact_root=artifact_root,
                    on_sample=on_sample,
                    deadline=deadline,
                    python=python,
                ),
            )
        async with opened as flying:
            yield flying


@asynccontextmanager
async def _explained(
    why: str | None, opened: AbstractAsyncContextManager[RolloutDriver]
) -> AsyncIterator[RolloutDriver]:
    """A server that was started only for want of a backend: where it does not come up, say so."""
    async with AsyncExitStack() as stack:
        try:
            driver = await stack.enter_async_context(opened)
        except BackendError as error:
            if why is None:
                raise
            raise BackendError(f"{why}.\nAs a server of its own it fails: {error}") from error
        yield driver


def _controller(model: ModelSpec, listener: ListenerSpec, budget: Budget) -> Controller:
    client = load_model(model)
    _check_budget(budget, client)
    return Controller(
        client,
        retry=_retry(model),
        host=listener.host,
        port=listener.port,
        advertise_url=listener.advertise_url,
        stall_sec=listener.stall_sec,
        budget=None if budget == Budget(spent=budget.spent) else budget,
    )


def _check_budget(budget: Budget, client: ModelClient) -> None:
    """Refuse a limit in dollars that nothing could be held against."""
    limits = {"max_cost": budget.rollout.max_cost, "run_max_cost": budget.run.max_cost}
    key = next((name for name, limit in limits.items() if limit is not None), None)
    if key is not None and client.price is None:
        raise ConfigError(
            f"evaluation.{key} is set, but nobody knows what model {client.name!r} costs: give its "
            "price in US dollars for a million tokens, `[model] price = { prompt = 0.25, "
            f"completion = 2.0 }}`, or limit tokens instead of dollars",
            key=f"evaluation.{key}",
        )


def _warn_of_loopback(server_url: str, listener: ListenerSpec) -> None:
    if listener.is_loopback and not is_loopback(server_url):
        logger.warning(
            "the rollout server at %s is told to call this machine by an address that is its own; "
            "if it runs elsewhere, give --listen and --advertise-url",
            server_url,
        )


def load_model(model: ModelSpec) -> ModelClient:
    """The client for a model as a config names it."""
    client: ModelClient
    if model.path.startswith(PREFIX):
        client = load_scripted(model.path)
    elif model.base_url is not None:
        client = OpenAICompatibleClient(
            model.base_url, model=model.path, api_key=model.api_key, params=model.params
        )
    else:
        return _load_litellm(model)
    client.price = model.price
    return client


def find_price(model: ModelSpec) -> ModelPrice | None:
    """What a token of a model costs: as a config says it, else as LiteLLM knows it."""
    if model.price is not None or not is_litellm(model):
        return model.price
    return _load_litellm(model).price


def is_litellm(model: ModelSpec) -> bool:
    """Whether the model is named for LiteLLM: somebody else's, and mostly paid."""
    return model.base_url is None and not model.path.startswith(PREFIX)


def _load_litellm(model: ModelSpec) -> ModelClient:
    # On use only: LiteLLM takes seconds to import, and need not be installed.
    return cast(
        ModelClient,
        importlib.import_module("osmosis_ai.rollout.controller.model.litellm").LiteLLMClient(
            model.path, api_key=model.api_key, params=model.params, price=model.price
        ),
    )


def _check_choice(driver: str | None, server_url: str | None, isolation: Isolation | None) -> None:
    if driver not in (None, IN_PROCESS, PROCESS, HTTP):
        raise ConfigError(
            f"driver is {driver!r}; choose {IN_PROCESS!r}, {PROCESS!r} or {HTTP!r}", key="driver"
        )
    if driver is not None and (driver == HTTP) != bool(server_url):
        raise ConfigError(
            f"driver {HTTP!r} and the URL of a running server go together; without either, the "
            "rollouts run in this process, or in one that is started for them",
            key="driver",
        )

    if isolation is not None and (driver not in (None, PROCESS) or server_url):
        raise ConfigError(
            f"an environment of its own is for rollouts in a process that is started for them: "
            f"leave out --isolated, or take the driver {PROCESS!r}",
            key="driver",
        )


def _retry(model: ModelSpec) -> RetryPolicy:
    # A scripted model says the same again: another try would only cost time.
    return RetryPolicy(max_retries=0 if model.path.startswith(PREFIX) else model.max_retries)


def _find_backend(
    driver: str | None, entrypoint: Path, import_roots: Sequence[Path]
) -> ExecutionBackend | str | None:
    """The entrypoint's backend, or what it has in its place; None where nobody asks for one."""
    if driver == PROCESS:
        return None
    backend = find_backend(load_entrypoint(entrypoint, import_roots), entrypoint)
    if driver is None or isinstance(backend, ExecutionBackend):
        return backend
    raise ConfigError(
        f"{backend}. To run in this process it needs, at module level, "
        "`backend = LocalBackend(workflow=MyWorkflow, grader=MyGrader)`",
        key="entrypoint",
    )
