"""What a store is asked and what it answers, beside the records of the model."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from types import MappingProxyType
from typing import Literal, NamedTuple

import celery_sqlbeat
from celery_sqlbeat.model import Beside, Claim, Claimable, HeldLease, ReplaceableRun, RunRecord, StartedRun
from celery_sqlbeat.model.lifecycle import Ending
from celery_sqlbeat.model.one_offs import NOBODY_ASKED, Asked

FIRST_ID = "00000000-0000-0000-0000-000000000000"
LAST_ID = "ffffffff-ffff-ffff-ffff-ffffffffffff"
ANY_VERSION = 0  # of a row; they count from 1
ALL_JOBS = Claimable()
EVERY_SHARE = "0123456789abcdef"  # of jobs, by the last digit of their ids


class Pulse(NamedTuple):
    """The server's clock and the change counter, which a beat reads while it has nothing to do."""

    now: datetime
    changes: int
    wakes_at: datetime | None = None
    """When the next job or one-off is due, or the next lease ends.

    What was due before hides nothing: of that only one-offs are told, which no change counts.
    """


class NextDeadlines(NamedTuple):
    """The earliest instants at which any beat has work, and the change counter."""

    now: datetime
    due_at: datetime | None
    lease_ends_at: datetime | None
    planned_at: datetime | None
    held_ends_at: datetime | None
    outbox_at: datetime | None
    changes: int
    replace_at: datetime | None = None
    locked: int = 0
    """How many jobs are locked, by any process."""

    def starts_at(self) -> datetime | None:
        """Return when there is something to claim."""
        return min((at for at in (self.due_at, self.outbox_at) if at is not None), default=None)

    def has_runs(self) -> bool:
        """Return whether some run goes on, or a lock stands for one."""
        return self.locked > 0 or self.held_ends_at is not None

    def ends_at(self) -> datetime | None:
        """Return when a lease ends, or a run is to make room for the next one."""
        ends = (self.lease_ends_at, self.held_ends_at, self.replace_at)
        return min((at for at in ends if at is not None), default=None)

    def stirs(self, before: "NextDeadlines") -> bool:
        """Return whether more has happened since then than heartbeats."""
        return (self.changes, self.planned_at) != (before.changes, before.planned_at) or (
            self.starts_at() != before.starts_at()
        )


class Recorded(NamedTuple):
    """The outcome of a batch that ends or marks claims, as run ids.

    Those in neither set were started by a worker or lost meanwhile.
    """

    done: set[str]
    busy: set[str]
    """Claims that the asking beat still holds: somebody keeps their rows locked, or they are
    refused. Empty where no beat asks for its own claims."""


class Guard(Enum):
    """Which right a release needs, beside its claim and fence."""

    HELD = "held"
    """It is a worker's, whose start was the last one."""
    UNSTARTED = "unstarted"
    """It is a beat's, and no worker has begun the run."""
    EXPIRED = "expired"
    """The lease has ended, and was not extended meanwhile."""
    REPLACEABLE = "replaceable"
    """The next slot has come and was not moved on, and the job is not paused."""


class Release(NamedTuple):
    """A run, the right to write about it, and how it ends."""

    job_id: str
    run_id: str
    claim_id: str
    fence: int
    ending: Ending
    started_retry: int | None = None
    """Only where this retry of Celery's is the last that began; None: whichever did."""

    @classmethod
    def of(cls, run: Claim | HeldLease | ReplaceableRun | StartedRun, ending: Ending) -> "Release":
        """Return how a run ends, by the right of who read or began it."""
        retry = run.celery_retries if isinstance(run, StartedRun) else None
        return cls(run.job_id, run.run_id, run.claim_id, run.fence, ending, retry)


class Expired(NamedTuple):
    """What a beat may reclaim, or replace."""

    leases: list[HeldLease]
    """Past their end, of leased and of overlapping runs."""
    replaceable: list[ReplaceableRun]
    """They hold their jobs although the next slot has come."""


class KeptRun(NamedTuple):
    """A run that holds its job until another slot comes; None: until it ends."""

    run: ReplaceableRun
    until: datetime | None


class RunNote(NamedTuple):
    """What is kept with a run for others; what is None or False stays as it is."""

    run_id: str
    claim_id: str | None = None
    """Only where the run is of this claim."""
    check_in: str | None = None
    """What a monitor opened for its slot."""
    results_ended: bool = False
    """Whether the results of the earlier attempts are ended, or need no end."""


class Extended(NamedTuple):
    """The outcome of one heartbeat, as run ids. The leases of all others are extended."""

    lost: set[str]
    """Somebody else may run them."""
    busy: set[str]
    """Somebody keeps their rows locked: not extended, and not lost."""
    asked: Mapping[str, Asked] = NOBODY_ASKED
    """Runs that are extended, and that somebody has asked to stop."""


class CodeTally(NamedTuple):
    """How many jobs an app has here, and how many of them are disabled because they left the code.

    Where it changes without an import of this beat, somebody else has added, deleted or disabled
    some.
    """

    jobs: int
    left: int


class NewestRelease(NamedTuple):
    """The newest release of a `beat_schedule` with a living beat, and the one that is imported."""

    winner: str
    imported: str | None
    tally: CodeTally = CodeTally(0, 0)
    has_others: bool = False
    """Whether another release, or another app, has a live beat in this namespace."""


class Imported(NamedTuple):
    """What an import has done; nothing where another release is the newest."""

    winner: str
    added: list[str]
    changed: list[str]
    left: list[str]
    kept: dict[str, str | None]
    """Names that belong to another owner (None: to the database), left as they are."""
    spared: frozenset[str] = frozenset()
    """Names of jobs that left this code, and may be in that of another living beat."""
    beside: Beside = Beside()
    """What the other living beats of the app had."""
    tally: CodeTally = CodeTally(0, 0)
    refused: Mapping[str, str] = MappingProxyType({})
    """Names of jobs that are unchanged since the database refuses their row, and why."""
    is_stale: bool = False
    """Whether something was not written since what it was planned from has changed: plan again."""


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


class Remark(NamedTuple):
    """What `check` says of a server."""

    level: Literal["error", "warning", "note"]
    topic: str
    text: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobQuery:
    """Ask for the jobs of these names, or for a page of all jobs, or of those of one kind."""

    names: Collection[str] | None = None
    one_offs: bool = False
    """Whether the names are the run ids of one-offs, whose rows are no jobs to anybody else."""
    only_quarantined: bool = False
    """Whether only the jobs are asked for that cannot run as they stand."""
    needing_repair_of: str | None = None
    """Asks for jobs without a next run or with other forms of time, bad ones, and deleted ones, in
    the order of their ids. With an app's name those of other apps are only to be deleted: their
    policies are not this beat's. "": of every app."""
    of_tasks: Collection[str] | None = None
    """Asks for enabled jobs that have one of these tasks."""
    after_name: str = ""
    """The last name of the page before."""
    after_id: str = FIRST_ID
    """The last id of the page before, of the jobs that need repair."""
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
    one_offs: bool = False
    """Asks for one-offs only."""
    after: RunRecord | None = None
    """The last attempt of the page before."""
    page_size: int = 500
