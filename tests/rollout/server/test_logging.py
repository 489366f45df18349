"""A server says what it does, unless whoever runs it has set that up."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from osmosis_ai.rollout.server import create_rollout_server
from tests.rollout.server.serving import local


@contextmanager
def new_process() -> Iterator[logging.Logger]:
    """The root logger as a new process has it."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers.clear()
    root.setLevel(logging.WARNING)
    try:
        yield root
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


def test_logging_is_set_up_where_it_is_not() -> None:
    with new_process() as root:
        create_rollout_server(backend=local())
        assert root.level == logging.INFO
        (handler,) = root.handlers
        record = logging.LogRecord("a.b", logging.INFO, "", 0, "said", None, None)
        assert handler.format(record).endswith(" INFO a.b: said")


def test_logging_that_is_set_up_is_left_alone() -> None:
    mine = logging.NullHandler()
    with new_process() as root:
        root.addHandler(mine)
        create_rollout_server(backend=local())
        assert root.handlers == [mine]


def test_logging_is_left_alone_where_that_is_asked() -> None:
    with new_process() as root:
        create_rollout_server(backend=local(), configure_logging=False)
        assert root.handlers == []
