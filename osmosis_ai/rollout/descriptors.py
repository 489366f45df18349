"""How many files and connections a process may hold, raised to what its rollouts need."""

from __future__ import annotations

import logging
import resource
import sys

logger = logging.getLogger(__name__)

DESCRIPTORS_PER_ROLLOUT = 4
"""One rollout in flight: its call to the model, the other end and the onward call where the bridge
is in this process, and a file that is being written or an answer that is being posted."""

OWN_DESCRIPTORS = 64
"""What a process holds without any rollout: its modules, logs, loops and listening sockets."""

USUAL_DESCRIPTORS = 65_536
"""Enough for 16,000 rollouts. More only where it is asked for: a system without a limit allows
a billion, and some programs that a rollout may start walk through all that they might have."""


def raise_descriptor_limit(*, rollouts: int | None) -> None:
    """Let this process hold more files; warn where `rollouts` at once do not fit all the same.

    The limit goes up as far as the system allows (`ulimit -Hn`), never down. `rollouts` is None
    where nobody bounds them: then there is nothing to hold the limit against.
    """
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft, hard = map(_count, limits)
    wanted = OWN_DESCRIPTORS + DESCRIPTORS_PER_ROLLOUT * (rollouts or 0)
    limit = max(soft, min(hard, max(wanted, USUAL_DESCRIPTORS)))
    if limit > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limits[1]))
    if wanted > limit:
        logger.warning(
            "this process may hold %d files and connections, enough for about %d rollouts at once, "
            "and there may be %d: raise the limit (`ulimit -Hn`), or run fewer",
            limit,
            max(1, (limit - OWN_DESCRIPTORS) // DESCRIPTORS_PER_ROLLOUT),
            rollouts,
        )


def _count(limit: int) -> int:
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit
