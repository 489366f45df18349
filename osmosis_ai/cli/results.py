"""How a run is told: its numbers with their denominators, its records, and where things lie."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from osmosis_ai.cli.output import Column, Fact, Section
from osmosis_ai.cli.timing import cost, cost_facts, record_parts, time_facts
from osmosis_ai.eval.attempts import Agreement, Chance
from osmosis_ai.eval.breakdown import GroupSummary
from osmosis_ai.eval.distribution import Distribution
from osmosis_ai.eval.estimate import Estimate
from osmosis_ai.eval.metrics import Summary
from osmosis_ai.eval.outcome import FAILED, Outcome
from osmosis_ai.eval.record import Record, to_json
from osmosis_ai.eval.run_folder import Run
from osmosis_ai.eval.timing import Timing

ABSENT = "-"
"""Stands where there is no number; never 0."""


def run_data(run: Run, summary: Summary, timing: Timing | None = None) -> dict[str, Any]:
    """A run for programs."""
    document = run.document
    experiment = document.config.experiment
    return {
        "name": run.name,
        "run_id": document.run_id,
        "folder": str(run.paths.folder),
        "created_at": document.created_at,
        "state": run_state(run, summary),
        "rollout": experiment.rollout,
        "model_path": experiment.model_path,
        "dataset": experiment.dataset,
        "selected_rows": document.rows,
        "total_rows": run.total_rows,
        "summary": summary.to_json(),
        **({} if timing is None else {"timing": timing.to_json()}),
    }


def run_state(run: Run, summary: Summary) -> str:
    """`running`, `finished` or `incomplete`."""
    if run.is_running:
        return "running"
    return "incomplete" if summary.pending else "finished"


def run_sections(run: Run, summary: Summary, timing: Timing) -> list[Section]:
    """A run for people."""
    title = f"{run.name} ({run_state(run, summary)})"
    *numbers, where = result_sections(run, summary, timing)
    return [
        Section(title, list(_facts(run, summary))),
        *numbers,
        Section("Time", list(time_facts(timing))),
        where,
    ]


def result_sections(run: Run, summary: Summary, timing: Timing) -> list[Section]:
    """What a run has measured, for people."""
    return [
        Section("Result", list(_numbers(summary))),
        Section("Outcomes", list(_outcomes(summary))),
        *_error_sections(summary),
        *_cost_sections(timing),
        Section("Where", list(_places(run, summary))),
    ]


def _facts(run: Run, summary: Summary) -> Iterator[Fact]:
    experiment = run.document.config.experiment
    yield Fact("Rollout", experiment.rollout)
    yield Fact("Model", experiment.model_path)
    yield Fact("Data", run.document.dataset_path, rows_note(run, summary.n))


def rows_note(run: Run, n: int) -> str:
    """How many of the rows, and how often."""
    attempts = "1 attempt" if n == 1 else f"{n} attempts"
    return f"{len(run.selection):,} of {run.total_rows:,} rows, {attempts} each"


def _numbers(summary: Summary) -> Iterator[Fact]:
    over = summary.mean.over
    yield Fact("Mean reward", number(summary.mean), f"{_over(summary)}{_mean_reach(summary.mean)}")
    yield Fact(
        "Pass rate",
        percent(summary.pass_rate),
        f"{summary.passed:,} of {over:,} with a reward of at least {summary.pass_threshold:g}"
        f"{_share_reach(summary.pass_rate)}",
    )
    for point in summary.pass_at_k:
        yield _chance("pass@", point)
    # With one attempt, any of them is all of them.
    for point in summary.pass_hat_k[1:]:
        yield _chance("pass^", point)
    if summary.distribution is not None:
        yield _spread(summary.distribution)
    if summary.agreement is not None and summary.agreement.rows:
        yield _agreement(summary.agreement)
    usage = summary.usage
    if usage.over:
        failed = f"{usage.failed_calls:,} failed, " if usage.failed_calls else ""
        yield Fact("Model calls", f"{usage.calls:,}", f"{failed}over {usage.over:,} rollouts")
        tokens = f"{usage.prompt_tokens:,} in, {usage.completion_tokens:,} out"
        yield Fact("Tokens", f"{usage.total_tokens:,}", tokens)


def _mean_reach(estimate: Estimate) -> str:
    if estimate.stderr is None:
        return ""
    error = f"; standard error {estimate.stderr:.4f}"
    if estimate.low is None or estimate.high is None:
        return error
    return f"{error}, 95% interval {estimate.low:.4f} to {estimate.high:.4f}"


def _share_reach(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return ""
    return f"; 95% interval {estimate.low:.1%} to {estimate.high:.1%}"


def _chance(name: str, point: Chance) -> Fact:
    attempts = "1 attempt" if point.k == 1 else f"{point.k} attempts"
    over = f"over {point.rows:,} rows with {attempts} that count"
    error = "" if point.stderr is None else f"; standard error {point.stderr:.4f}"
    value = ABSENT if point.value is None else f"{point.value:.4f}"
    return Fact(f"{name}{point.k}", value, f"{over}{error}")


def _spread(found: Distribution) -> Fact:
    quartiles = ", ".join(f"{found.quantiles[name]:.4g}" for name in ("p25", "p50", "p75"))
    return Fact("Rewards", f"{found.minimum:.4g} to {found.maximum:.4g}", f"quartiles {quartiles}")


def _agreement(found: Agreement) -> Fact:
    share = ABSENT if found.share is None else f"{found.share:.1%}"
    return Fact(
        "No signal",
        share,
        f"{found.agreeing:,} of {found.rows:,} rows give each of their attempts the same reward",
    )


def _over(summary: Summary) -> str:
    scored = summary.outcomes[Outcome.SCORED]
    if summary.workflow_failed_reward is None:
        return f"over {scored:,} scored of {summary.items:,} rollouts"
    failed = summary.outcomes[Outcome.WORKFLOW_FAILED]
    return (
        f"over {scored:,} scored and {failed:,} failed workflows taken as "
        f"{summary.workflow_failed_reward:g}, of {summary.items:,} rollouts"
    )


def _outcomes(summary: Summary) -> Iterator[Fact]:
    of = f"of {summary.items:,}"
    for outcome, count in summary.outcomes.items():
        if count or outcome == Outcome.SCORED:
            yield Fact(outcome, f"{count:,}", of)
    if summary.pending:
        yield Fact("pending", f"{summary.pending:,}", of)
    if summary.superseded:
        yield Fact("earlier tries", f"{summary.superseded:,}", "kept, and not counted")


def _error_sections(summary: Summary) -> Iterator[Section]:
    facts = [Fact(error.outcome, f"{error.count:,}", error.example) for error in summary.errors]
    more = summary.error_kinds - len(facts)
    if facts:
        title = f"Errors (and {more:,} more kinds)" if more else "Errors"
        yield Section(title, facts)


def _cost_sections(timing: Timing) -> Iterator[Section]:
    facts = list(cost_facts(timing))
    if facts:
        yield Section("Cost", facts)


GROUP_COLUMNS = (
    Column("value", folds=True),
    Column("rows", right=True),
    Column("scored", right=True, least_width=70),
    Column("mean", right=True),
    Column("95% interval", right=True, least_width=80),
    Column("pass rate", right=True),
    Column("95% interval", right=True, least_width=100),
)


def group_row(group: GroupSummary) -> list[str]:
    """A group of rows as the cells of `GROUP_COLUMNS`."""
    mean, share = group.mean, group.pass_rate
    return [
        group.value,
        f"{group.rows:,}",
        f"{group.outcomes[Outcome.SCORED]:,}",
        _of(number(mean), mean),
        _interval(mean, ".4f"),
        _of(percent(share), share),
        _interval(share, ".1%"),
    ]


def _interval(estimate: Estimate, form: str) -> str:
    if estimate.low is None or estimate.high is None:
        return ABSENT
    return f"{format(estimate.low, form)} to {format(estimate.high, form)}"


def _places(run: Run, summary: Summary) -> Iterator[Fact]:
    files = (run.paths.records, run.paths.summary, run.paths.rollouts, run.paths.log)
    there = ", ".join(path.name for path in files if path.exists())
    yield Fact("Run folder", short_path(run.paths.folder), there)
    failed = any(summary.outcomes[outcome] for outcome in (*FAILED, Outcome.NO_RESULT))
    if failed and has_tracebacks(run.paths.log):
        yield Fact("Tracebacks", short_path(run.paths.log))


def has_tracebacks(log: Path) -> bool:
    """Whether there is one in a log; a server that runs elsewhere has them in its own."""
    try:
        with log.open("rb") as file:
            return any(line.startswith(b"Traceback (most recent call last)") for line in file)
    except OSError:
        return False


def record_data(record: Record, run: Run) -> dict[str, Any]:
    """A record for programs, and where its rollout lies."""
    return to_json(record) | {"folder": str(run.paths.rollouts / record.rollout_id)}


RECORD_COLUMNS = (
    Column("row", right=True),
    Column("attempt", right=True),
    Column("try", right=True, least_width=100),
    Column("outcome"),
    Column("reward", right=True),
    Column("calls", right=True, least_width=100),
    Column("tokens", right=True, least_width=100),
    Column("seconds", right=True, least_width=80),
    Column("error", folds=True),
    Column("rollout", least_width=140),
)


def record_row(record: Record) -> list[str]:
    """A record as the cells of `RECORD_COLUMNS`."""
    return [
        str(record.row),
        str(record.attempt),
        str(record.try_index),
        record.outcome,
        _cell(record.reward, ".4g"),
        _cell(record.calls, ","),
        _cell(record.total_tokens, ","),
        _cell(record.duration_sec, ".3g"),
        _error(record),
        record.rollout_id,
    ]


def record_section(record: Record, run: Run) -> Section:
    """A record in full."""
    again = f", try {record.try_index}" if record.try_index else ""
    title = f"row {record.row}, attempt {record.attempt}{again}: {record.outcome}"
    facts = [
        Fact("Reward", _cell(record.reward, ".6g")),
        Fact("Model calls", _cell(record.calls, ","), _failed_calls(record)),
        Fact("Tokens", _cell(record.total_tokens, ",")),
        Fact("Cost", cost(record.cost_usd)),
        Fact("Seconds", _cell(record.duration_sec, ".3f"), record_parts(record)),
        Fact("Error", _error(record), _phase(record)),
        Fact("Folder", short_path(run.paths.rollouts / record.rollout_id)),
        *_traceback(record, run),
    ]
    return Section(title, [fact for fact in facts if fact.value not in ("", ABSENT)])


def _phase(record: Record) -> str:
    return "" if record.error_phase is None else f"in the {record.error_phase}"


def _traceback(record: Record, run: Run) -> Iterator[Fact]:
    # Each is logged once, in a message that names its rollout.
    if record.error_summary is not None and has_tracebacks(run.paths.log):
        yield Fact("Traceback", short_path(run.paths.log), f"below {record.rollout_id}")


def _failed_calls(record: Record) -> str:
    counts = {"failed": record.failed_calls, "retries": record.retries}
    return ", ".join(f"{number:,} {name}" for name, number in counts.items() if number)


def _error(record: Record) -> str:
    return record.complaint or record.error_category or ""


def _cell(value: float | None, form: str) -> str:
    return ABSENT if value is None else format(value, form)


RUN_COLUMNS = (
    Column("run", folds=True),
    Column("state"),
    Column("rollout", least_width=100, folds=True),
    Column("model", least_width=100, folds=True),
    Column("rows", right=True, least_width=80),
    Column("n", right=True, least_width=80),
    Column("finished", right=True),
    Column("mean", right=True),
    Column("pass rate", right=True, least_width=70),
    Column("created", least_width=120),
)


def run_row(run: Run, summary: Summary) -> list[str]:
    """A run as the cells of `RUN_COLUMNS`."""
    experiment = run.document.config.experiment
    return [
        run.name,
        run_state(run, summary),
        experiment.rollout,
        experiment.model_path,
        f"{len(run.selection)}/{run.total_rows}",
        str(summary.n),
        f"{summary.finished}/{summary.items}",
        _of(number(summary.mean), summary.mean),
        _of(percent(summary.pass_rate), summary.pass_rate),
        run.document.created_at,
    ]


def _of(shown: str, estimate: Estimate) -> str:
    return f"{shown} of {estimate.over}" if estimate.over else shown


def number(estimate: Estimate) -> str:
    """Four digits behind the point."""
    return ABSENT if estimate.value is None else f"{estimate.value:.4f}"


def percent(estimate: Estimate) -> str:
    """One digit behind the point."""
    return ABSENT if estimate.value is None else f"{estimate.value:.1%}"


def short_path(path: Path) -> str:
    """From here where it lies below, else in full."""
    here = Path.cwd()
    return os.path.relpath(path, here) if path.is_relative_to(here) else str(path)
