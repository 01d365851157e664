"""What a store may be asked to delete for good, and what it answers."""

from collections.abc import Collection, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import NamedTuple


class DeadLetters(NamedTuple):
    """Purge these dead letters."""

    run_ids: Collection[str]


class OldRuns(NamedTuple):
    """Purge a batch of ended runs of slots at `after` or later, the oldest first."""

    keep_seconds: float
    after: datetime | None = None
    limit: int | None = None
    """Of the batch; None: what suits the store."""


class OldNodes(NamedTuple):
    """Purge nodes that were silent for so long, and names of jobs that were deleted then."""

    keep_seconds: float


class OldKeys(NamedTuple):
    """Purge a batch of idempotency keys whose time is over, those first that ended first."""

    limit: int | None = None
    """Of the batch; None: what suits the store."""


class WholeNamespace(NamedTuple):
    """Purge what is left of a namespace: releases, names, free locks, keys, its counter.

    Nothing of one that has a job, a node or a held lock. Its runs are purged before. No fence of it
    is remembered: only for one that nobody will use again.
    """


class Purged(NamedTuple):
    """The rows that were deleted, and how to go on."""

    rows: int
    refused: Mapping[str, str] = MappingProxyType({})
    """The ids of rows that the store refuses to delete, and why.

    Old ones are logged once, and not tried again until a batch begins at the oldest row.
    """
    last: datetime | None = None
    """The latest slot of the batch: the next batch may begin there."""
    limit: int = 0
    """Of the batch. One that is not full says that nothing is left, or others delete the rest."""
    rest: float = 0.0
    """How long to rest after a full batch, in times of what it took."""
