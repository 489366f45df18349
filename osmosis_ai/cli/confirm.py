"""Before a run that costs money: what it may cost, and whether somebody wants it."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from osmosis_ai.cli.mode import InteractiveRequired, Mode, Stopped
from osmosis_ai.cli.timing import cost
from osmosis_ai.eval.forecast import Forecast


def confirm(forecast: Forecast, *, yes: bool, mode: Mode) -> None:
    """Say what a run may cost, and ask whether to go on, unless `yes` says so.

    Raises Stopped where the answer is no, and InteractiveRequired where nobody could be asked.
    """
    notes = list(_notes(forecast))
    prompt = f"{forecast.rollouts:,} rollouts x model {forecast.model_path} - continue?"
    if yes:
        return
    if mode is not Mode.RICH or not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise InteractiveRequired(
            f"{prompt} {' '.join(notes)} Give --yes to go on without being asked.",
            details={"prompt": prompt, "summary": _summary(forecast), "notes": notes},
        )
    print("\n".join([*notes, f"{prompt} [y/N] "]), end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Stopped("Nothing has run, and nothing is paid.")


def _notes(forecast: Forecast) -> Iterator[str]:
    """What can be told beforehand, and what cannot."""
    tokens, least = f"{forecast.prompt_tokens:,}", forecast.least_usd
    if least is None:
        yield f"The price of this model is not known; the prompts alone are about {tokens} tokens."
    else:
        yield (
            f"The prompts of the first calls are about {tokens} tokens, {cost(least)}; answers and "
            "further calls come on top."
        )
    if forecast.likely_usd is not None:
        yield f"As the {forecast.tries:,} tries so far: about {cost(forecast.likely_usd)}."
    if forecast.most_usd is not None:
        yield f"The limits in [evaluation] end it at {cost(forecast.most_usd)}."


def _summary(forecast: Forecast) -> dict[str, object]:
    return {
        "rollouts": forecast.rollouts,
        "model_path": forecast.model_path,
        "prompt_tokens": forecast.prompt_tokens,
        "least_usd": forecast.least_usd,
        "likely_usd": forecast.likely_usd,
        "most_usd": forecast.most_usd,
    }
