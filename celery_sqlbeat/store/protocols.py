"""State what workers, administrators and transfers may ask of a store; beats have `beat_protocol`.

A miss is an absence in the answer, not an exception. A TransientError is raised where a retry may
help.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import NamedTuple, Protocol

import celery_sqlbeat
from celery_sqlbeat.model import (
    EndedSlot,
    JobCounts,
    JobRecord,
    JobWrite,
    JobWriteResult,
    NewRun,
    Node,
    RefusedStart,
    RunningJob,
    RunRecord,
    SeenNode,
    StartedRun,
    StartRequest,
    Unbegun,
)
from celery_sqlbeat.model.lifecycle import Ending


class Schema(NamedTuple):
    """Which schema the store has, which one this release knows, and whose store it is."""

    version: int
    known: int
    oldest: str | None = None
    """The oldest release that may work on it, where it is newer than this release knows."""
    store_id: str = ""
    """The id that `init` gave to this store."""
    epoch: int = 0
    """One more with each recovery."""

    @property
    def remark(self) -> str | None:
        """What an operator should know of it: that a newer release has upgraded it."""
        if self.version <= self.known:
            return None
        own = celery_sqlbeat.__version__
        return (
            f"the schema is at version {self.version}, newer than version {self.known}, which celery-sqlbeat {own} "
            f"knows: releases from {self.oldest} on may use it"
        )


class Extended(NamedTuple):
    """The outcome of one heartbeat, as run ids. The leases of all others are extended."""

    lost: set[str]
    """Somebody else may run them."""
    busy: set[str]
    """Somebody keeps their rows locked: not extended, and not lost."""


class WorkerStore(Protocol):
    """What a worker needs. It cannot claim."""

    def start(self, requests: Iterable[StartRequest]) -> dict[str, StartedRun]:
        """Take over the leases of the runs that may begin, by run id.

        One that is missing may not, as `refuse` says. Asking twice with the same start id gives the
        same answer, so a lost reply is no lost start. Where two requests of one batch ask for the
        same run, the start id in the answer says which of them may begin.
        """

    def refuse(self, requests: Iterable[StartRequest]) -> dict[str, RefusedStart]:
        """Say why runs may not begin, by run id; a run that is missing is not known.

        A run that can never begin any more ends with that.
        """

    def extend(self, held: Sequence[tuple[StartedRun, float]]) -> Extended:
        """Extend leases by so many seconds from now; wait for no row that somebody keeps locked."""

    def postpone(self, unbegun: Iterable[Unbegun]) -> set[str]:
        """Postpone the start deadlines of runs whose messages wait here.

        Return the ids of these runs. The others have begun, or were fired and forgotten, or are
        another claim's; or somebody keeps their rows locked.
        """

    def finish(self, outcomes: Iterable[tuple[StartedRun, Ending]]) -> set[str]:
        """Write how runs ended.

        Return the run ids of those whose lease was lost, so that nothing was written.
        """


class ResultStore(Protocol):
    """What is needed to end the results of attempts that another one followed."""

    def unended(self, page_size: int, since_seconds: float) -> list[EndedSlot]:
        """Return slots that ended lately and whose earlier attempts may have no final result."""

    def ended(self, run_ids: Iterable[str]) -> None:
        """Record that the results of these attempts are ended, or need no end."""


class NodeStore(Protocol):
    """The register of nodes, which beats, workers and administrators have in common."""

    def heartbeat(self, node: Node) -> datetime:
        """Record that this node is alive, or has stopped in order; return the server's clock.

        Beats notice a stop as any change.
        """

    def seen(self, memory_seconds: float) -> list[SeenNode]:
        """Return the nodes that were alive within so many seconds."""

    def tasks(self, node_ids: Iterable[str]) -> dict[str, str | None]:
        """Return the JSON lists of the tasks that workers know, by node.

        None where one has not told them.
        """

    def clock(self) -> datetime:
        """Return the server's clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobQuery:
    """Ask for the jobs of these names, or for a page of all jobs."""

    names: Collection[str] | None = None
    only_quarantined: bool = False
    """Whether only the jobs are asked for that cannot run as they stand."""
    after_name: str = ""
    """The last name of the page before."""
    page_size: int = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class RunQuery:
    """Ask for the attempts of these ids, or for a page of the history, newest first."""

    run_ids: Collection[str] | None = None
    job_id: str | None = None
    """Asks for one job's history, latest slot and attempt first."""
    only_dead: bool = False
    """Asks for the dead letters, oldest first."""
    state: str | None = None
    """Asks for the attempts in this state among the next `page_size`.

    The last of these ends the page in any state, so that the next page can follow.
    """
    after: RunRecord | None = None
    """The last attempt of the page before."""
    page_size: int = 500


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


class AdminStore(Protocol):
    """What an administrator needs.

    Every change bumps the change counter, so that beats notice it.
    """

    def jobs(self, query: JobQuery) -> dict[str, JobRecord]:
        """Return jobs by name; a page is in the order of the names."""

    def counts(self, since_seconds: float = 0.0) -> JobCounts:
        """Return how many jobs there are of each kind, and attempts of the last seconds' slots."""

    def running(self, least_seconds: float, most: int) -> list[RunningJob]:
        """Return jobs whose run goes on for at least so many seconds, oldest run first."""

    def write_jobs(self, writes: Sequence[JobWrite], together: bool = False) -> JobWriteResult:
        """Write jobs that are as their writes expect, at most one write for each name.

        With `together` nothing is written where there is a conflict.
        """

    def enqueue(self, runs: Sequence[NewRun]) -> set[str]:
        """Add attempts, which wait for a beat; return their ids.

        One is missing where its job is gone. A dead letter is replayed once, and only while it is
        the last attempt of its slot and none of them is open.
        """

    def cancel(self, job_name: str, reason: str = "cancelled by hand") -> bool:
        """Cancel the run that holds a job; its worker stops the task at the next heartbeat."""

    def runs(self, query: RunQuery) -> list[RunRecord]:
        """Return attempts in the order of the query; those of given ids in any order."""

    def purge(self, what: DeadLetters | OldRuns | OldNodes) -> Purged:
        """Delete rows for good; those that the store refuses to delete are passed by."""
