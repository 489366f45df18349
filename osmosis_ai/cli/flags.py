"""The flags of `osmosis eval run`, each said once: its type, its help, and what it sets."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from osmosis_ai.eval.evaluation import RunOptions
from osmosis_ai.eval.outcome import FAILED, Outcome

SETTINGS = {
    "n": "evaluation.n",
    "limit": "evaluation.limit",
    "adaptive": "evaluation.adaptive",
    "max_cost": "evaluation.max_cost",
    "run_max_cost": "evaluation.run_max_cost",
    "stall_sec": "evaluation.stall_sec",
    "listen": "evaluation.listen",
    "advertise_url": "evaluation.advertise_url",
    "probe": "model.probe",
}
"""Flags that are a key of the file, which they win over."""


def overrides(params: Mapping[str, Any]) -> dict[str, Any]:
    """What a command line says of the file's keys; None where it says nothing."""
    return {key: params[name] for name, key in SETTINGS.items()}


def run_options(params: Mapping[str, Any]) -> RunOptions:
    """What a command line says that no file does."""
    return RunOptions(
        name=params["name"],
        rows=params["rows"],
        max_in_flight=params["max_in_flight"],
        fresh=params["fresh"],
        retried=_retried(params),
        driver=params["driver"],
        server_url=params["server"],
        isolated=params["isolated"],
    )


def command(ctx: typer.Context, *more: str) -> str:
    """The command line again, with other flags: that of the same run, not started over."""
    words = ["osmosis", "eval", "run"]
    for parameter in ctx.command.params:
        name = str(parameter.name)
        value = ctx.params.get(name)
        if value == parameter.default or name in _OF_ONE_GO:
            continue
        if isinstance(value, bool):
            words.append(parameter.opts[0] if value else parameter.secondary_opts[0])
        else:
            words += [*_option(parameter), str(value)]
    return shlex.join([*words, *more])


_OF_ONE_GO = frozenset({"fresh", "retry_failed", "retry_no_result", "dry_run"})
"""Flags that belong to one go at a run, and not to the next."""


def _option(parameter: Any) -> list[str]:
    return [parameter.opts[0]] if parameter.param_type_name == "option" else []


def _retried(params: Mapping[str, Any]) -> frozenset[Outcome]:
    failed = FAILED if params["retry_failed"] else frozenset[Outcome]()
    return failed | ({Outcome.NO_RESULT} if params["retry_no_result"] else frozenset())


Config: TypeAlias = Annotated[
    Path, typer.Argument(metavar="CONFIG", help="The TOML file of the evaluation.")
]
Name: TypeAlias = Annotated[
    str | None, typer.Option(help="Name of the run; else the file's.", show_default=False)
]
Attempts: TypeAlias = Annotated[
    int | None, typer.Option("--n", "-n", help="Attempts at each row.", show_default=False)
]
Limit: TypeAlias = Annotated[
    int | None, typer.Option(help="Only the first so many rows.", show_default=False)
]
Rows: TypeAlias = Annotated[
    str | None,
    typer.Option(help="Only these rows, counted from 0: 0-9,12.", show_default=False),
]
MaxInFlight: TypeAlias = Annotated[
    int | None, typer.Option(min=1, help="Rollouts at once.", show_default=False)
]
Adaptive: TypeAlias = Annotated[
    bool | None,
    typer.Option(
        "--adaptive/--no-adaptive",
        help="Begin with few at once, and grow until latency or 429 says stop.",
        show_default=False,
    ),
]
Fresh: TypeAlias = Annotated[
    bool, typer.Option("--fresh", help="Archive the run of that name and start over.")
]
RetryFailed: TypeAlias = Annotated[
    bool, typer.Option("--retry-failed", help="Run again what failed.")
]
RetryNoResult: TypeAlias = Annotated[
    bool, typer.Option("--retry-no-result", help="Run again what has no result.")
]
MinScored: TypeAlias = Annotated[
    float | None,
    typer.Option(
        min=0,
        max=1,
        help="End with 1 where a smaller share of the rollouts is scored: 0.99.",
        show_default=False,
    ),
]
By: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="KEY",
        help="Show the numbers for each value of a metadata key too.",
        show_default=False,
    ),
]
Driver: TypeAlias = Annotated[
    str | None,
    typer.Option(help="How rollouts are reached: in-process, process or http.", show_default=False),
]
Server: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="URL", help="A running rollout server.", show_default=False),
]
Isolated: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--isolated",
        help="Run the rollout in an environment of its own, with what it declares installed.",
    ),
]
DryRun: TypeAlias = Annotated[
    bool, typer.Option("--dry-run", help="Show what would run, and run nothing.")
]
Listen: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="Where rollouts call back; else a free port of this machine alone.",
        show_default=False,
    ),
]
AdvertiseUrl: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="URL", help="--listen, as rollouts elsewhere reach it.", show_default=False
    ),
]
StallSec: TypeAlias = Annotated[
    float | None,
    typer.Option(
        help="Name rollouts that go so many seconds without progress.", show_default=False
    ),
]
Probe: TypeAlias = Annotated[
    bool | None,
    typer.Option(
        "--probe/--no-probe",
        help="Ask the model one plain question before the first rollout.",
        show_default="ask",
    ),
]
SecretsFile: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="FILE", help="NAME=value lines; - reads them from stdin.", show_default=False
    ),
]
MaxCost: TypeAlias = Annotated[
    float | None,
    typer.Option(help="US dollars a rollout may cost.", show_default=False),
]
RunMaxCost: TypeAlias = Annotated[
    float | None,
    typer.Option(help="US dollars the run may cost; then it stops.", show_default=False),
]
Yes: TypeAlias = Annotated[
    bool, typer.Option("--yes", "-y", help="Do not ask before a run that costs money.")
]
