"""A process may hold as many files as its rollouts need, or says how many fit."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import logging, resource, sys
logging.basicConfig(format="%(message)s")
soft, hard, rollouts = (int(word) for word in sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
from osmosis_ai.rollout.descriptors import raise_descriptor_limit
raise_descriptor_limit(rollouts=rollouts or None)
print(resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def raised(*, soft: int, hard: int, rollouts: int | None) -> tuple[str, str]:
    """The limits afterwards and what was said, in a process of its own: it cannot be undone."""
    words = [str(soft), str(hard), str(rollouts or 0)]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True, check=True
    )
    return done.stdout.strip(), done.stderr.strip()


def test_the_limit_goes_up_to_what_the_system_allows() -> None:
    assert raised(soft=200, hard=400, rollouts=8) == ("(400, 400)", "")


def test_it_never_goes_down() -> None:
    assert raised(soft=400, hard=400, rollouts=None) == ("(400, 400)", "")


def test_what_does_not_fit_is_said_with_what_does() -> None:
    """Better at the start than as a failed connection in the middle of the night."""
    limits, said = raised(soft=200, hard=400, rollouts=1000)
    assert limits == "(400, 400)"
    assert said == (
        "this process may hold 400 files and connections, enough for about 84 rollouts at once, "
        "and there may be 1000: raise the limit (`ulimit -Hn`), or run fewer"
    )


@pytest.mark.parametrize("rollouts", [None, 84])
def test_what_fits_or_is_not_bounded_is_not_spoken_of(rollouts: int | None) -> None:
    assert raised(soft=200, hard=400, rollouts=rollouts)[1] == ""
