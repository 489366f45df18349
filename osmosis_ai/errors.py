"""The error tree: everything this package raises on purpose.

OsmosisError
  ConfigError        the user's file, flag or argument         (also a ValueError)
  DatasetError       a row or a file that cannot be used
  MissingExtraError  an optional package is not installed      (also a ModuleNotFoundError)
  RolloutError       one rollout failed; carries phase and category
    ModelError, WorkflowError, GraderError, BackendError
  BudgetError        a run has taken as much of its model as it may
  ProtocolError      the other side broke the contract; carries the HTTP status
  RunError           a run folder cannot be used: locked, changed inputs, torn journal
"""

from __future__ import annotations

from typing import NamedTuple


class OsmosisError(Exception):
    """Base of every error this package raises on purpose; `str()` is written for a person."""


class Issue(NamedTuple):
    """One fault of a file: the dotted key it is at, and what is wrong there."""

    key: str
    message: str


class ConfigError(OsmosisError, ValueError):
    """A file, flag or argument of the user's cannot be used; the message names the key.

    `issues` lists the faults one by one where a whole file was checked.
    """

    def __init__(
        self, message: str, *, key: str | None = None, issues: tuple[Issue, ...] = ()
    ) -> None:
        super().__init__(message)
        self.key = key
        self.issues = issues


class DatasetError(OsmosisError):
    """A data set or one of its rows cannot be used; the message names file and row."""


class MissingExtraError(OsmosisError, ModuleNotFoundError):
    """An optional package is not installed; the message holds the install line."""

    def __init__(
        self,
        message: str,
        *,
        extra: str = "",  # a default, for a copy in another process is made of the message alone
        name: str | None = None,
        path: str | None = None,
    ) -> None:
        super().__init__(message)
        self.extra = extra
        self.name = name
        self.path = path


class RolloutError(OsmosisError):
    """One rollout failed; `phase` says where, `category` how."""

    def __init__(
        self, message: str, *, phase: str | None = None, category: str | None = None
    ) -> None:
        super().__init__(message)
        self.phase = phase
        self.category = category


class ModelError(RolloutError):
    """The model endpoint did not answer a call; `status_code` is what it said, None for nothing."""

    def __init__(
        self,
        message: str,
        *,
        phase: str | None = None,
        category: str | None = None,
        status_code: int | None = None,
    ) -> None:
        super().__init__(message, phase=phase, category=category)
        self.status_code = status_code


class WorkflowError(RolloutError):
    """The user's workflow failed."""


class GraderError(RolloutError):
    """The user's grader failed."""


class BackendError(RolloutError):
    """The place where a rollout runs failed it."""


class BudgetError(OsmosisError):
    """A run has taken as much of its model as it may; the message names the limit."""


class ProtocolError(OsmosisError):
    """The other side of a connection broke the contract; `status_code` is its HTTP status."""

    def __init__(self, message: str, *, status_code: int | None = None) -> None:
        super().__init__(message)
        self.status_code = status_code


class RunError(OsmosisError):
    """A run folder cannot be used: locked, made from other inputs, or torn."""
