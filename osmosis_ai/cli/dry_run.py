"""`osmosis eval run --dry-run`: the config with its defaults, and how much it comes to."""

from __future__ import annotations

from collections.abc import Iterator

import orjson

from osmosis_ai.cli.mode import Mode
from osmosis_ai.cli.output import Fact, Section, print_detail
from osmosis_ai.eval.config import EvalConfig
from osmosis_ai.eval.plan import Plan, plan_run


def print_plan(config: EvalConfig, *, rows: str | None, mode: Mode) -> None:
    """Show what a run would do; no code of the user's runs, and nothing is written."""
    plan = plan_run(config, rows=rows)
    document = config.file.model_dump(mode="json")
    data = {
        "config": document,
        "workspace": str(config.workspace),
        "selected_rows": str(plan.selection),
        "total_rows": plan.total_rows,
        "items": plan.items,
    }
    resolved = Section("Config", [fact for name in document for fact in _facts(config, name)])
    print_detail(data, [resolved, Section("It comes to", [_count(plan)])], mode=mode)


def _facts(config: EvalConfig, section: str) -> Iterator[Fact]:
    for key, value in config.file.model_dump(mode="json")[section].items():
        if value is not None:
            yield Fact(f"{section}.{key}", orjson.dumps(value).decode())


def _count(plan: Plan) -> Fact:
    often = "once" if plan.n == 1 else f"{plan.n} times"
    rows = f"{len(plan.selection):,} of {plan.total_rows:,} rows, {often} each"
    return Fact("Rollouts", f"{plan.items:,}", rows)
