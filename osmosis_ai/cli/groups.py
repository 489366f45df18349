"""The numbers of a run for each value of a metadata key, beside those of the whole."""

from __future__ import annotations

from collections.abc import Sequence

from osmosis_ai.cli.mode import Mode
from osmosis_ai.cli.output import Fact, Section
from osmosis_ai.cli.problem import print_warning
from osmosis_ai.cli.results import number, percent
from osmosis_ai.errors import OsmosisError
from osmosis_ai.eval.breakdown import GroupSummary, measure_groups
from osmosis_ai.eval.run_folder import Run

SHOWN = 50
"""Values told at once; `eval show --by KEY --all` has them all."""


def find_groups(run: Run, key: str) -> list[GroupSummary]:
    """What a run measured for each value of a metadata key."""
    return measure_groups(run, key, workspace=run.paths.folder.resolve().parents[2])


def groups_beside(run: Run, key: str | None, *, mode: Mode) -> list[GroupSummary]:
    """The same where a key was asked for; the run is done, so what goes wrong is a warning."""
    if key is None:
        return []
    try:
        return find_groups(run, key)
    except OsmosisError as error:
        print_warning(str(error), mode=mode)
        return []


def group_sections(key: str | None, groups: Sequence[GroupSummary]) -> list[Section]:
    """The groups for people; nothing where there are none."""
    if not groups:
        return []
    title = f"By {key}" if len(groups) <= SHOWN else f"By {key} ({SHOWN} of {len(groups):,} values)"
    return [Section(title, [_fact(group) for group in groups[:SHOWN]])]


def _fact(group: GroupSummary) -> Fact:
    over = f"mean over {group.mean.over:,} rollouts of {group.rows:,} rows"
    note = f"{over}; pass rate {percent(group.pass_rate)}"
    return Fact(group.value, number(group.mean), note)
