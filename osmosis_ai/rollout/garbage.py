"""While many rollouts run, the garbage collector looks less often at those in flight."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

YOUNG_OBJECTS = 50_000
"""How many objects come to stay before the collector looks at them: about 500 rollouts' own."""

_PYTHONS_OWN = (700, 2000)


@contextmanager
def patient_collector() -> Iterator[None]:
    """Let more objects gather between two looks of the collector; Python's pace comes back after.

    At that pace what belongs to a rollout grows old before the rollout ends, and the collector goes
    through everything in the process several times a second: a fifth of a server's time with 512
    rollouts in flight, a tenth of an evaluation's with 64. A pace that somebody has set is left
    alone.
    """
    first, *others = gc.get_threshold()
    if first not in _PYTHONS_OWN:
        yield
        return
    gc.set_threshold(YOUNG_OBJECTS, *others)
    try:
        yield
    finally:
        gc.set_threshold(first, *others)
