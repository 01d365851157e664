"""State what a beat may ask of a store.

A miss is an absence in the answer, not an exception. A TransientError is raised where a retry may
help.
"""

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import NamedTuple, Protocol

from celery_sqlbeat.model import (
    Beside,
    Claim,
    Claimable,
    Claimed,
    CodeImport,
    CodeRow,
    CodeState,
    DueBatch,
    HeldLease,
    LivingRelease,
    Plan,
    Quarantine,
    Repair,
    ReplaceableRun,
    RowNeedingRepair,
)
from celery_sqlbeat.model.lifecycle import Ending


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


FIRST_ID = "00000000-0000-0000-0000-000000000000"
LAST_ID = "ffffffff-ffff-ffff-ffff-ffffffffffff"
ANY_VERSION = 0  # of a row; they count from 1
ALL_JOBS = Claimable()
EVERY_SHARE = "0123456789abcdef"  # of jobs, by the last digit of their ids


class Recorded(NamedTuple):
    """The outcome of recording what became of claims, as run ids.

    Those in neither set were started by a worker or lost meanwhile.
    """

    done: set[str]
    busy: set[str]
    """Claims that the beat still holds: somebody keeps their rows locked, or they are refused."""


class WriteResult(NamedTuple):
    """The outcome of a batch of rows, by the id that each begins with."""

    done: set[str]
    refused: dict[str, str]
    """What the database does not take, and why; all others could be written."""


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


class BeatStore(Protocol):
    """What a beat needs. It cannot finish a run."""

    def due(
        self, batch_size: int, claimable: Claimable = ALL_JOBS, share: str = EVERY_SHARE, besides: Collection[str] = ()
    ) -> DueBatch:
        """Read due jobs, of extra slots first. It locks nothing, and waits for no locked row.

        `share`: only jobs whose id ends with one of these hexadecimal digits. `besides`: the ids of
        jobs whose rows were locked a moment ago, where a read would find them again.
        """

    def claim(self, due: DueBatch, plan: Plan, dispatch_seconds: float) -> Claimed:
        """Write what was planned of due jobs, where they are as they were read.

        One transaction writes the claims and their runs, gaps, advances and quarantines.
        """

    def mark_published(self, published: Iterable[tuple[Claim, float]]) -> Recorded:
        """Record what the broker confirmed, with the seconds that each may stay queued.

        No claim that was started or lost meanwhile is moved backwards, and no statement waits for a
        locked row. So it is with all that records a claim or takes a lease.
        """

    def mark_dispatched(self, claims: Iterable[Claim], reason: str | None = None) -> Recorded:
        """Record slots that were fired and forgotten: their jobs go on at once."""

    def release_claims(self, claims: Iterable[Claim], reason: str, seconds: float = 0.0) -> Recorded:
        """Give back what was not published for certain, unless a worker has started it meanwhile.

        It is due again after so many seconds.
        """

    def fail(self, refused: Iterable[tuple[Claim, Ending]]) -> Recorded:
        """End attempts whose message cannot be made: another one follows, or the dead letters."""

    def skip(self, claims: Iterable[Claim], reason: str) -> Recorded:
        """End slots that are not to run any more: their jobs go on at once."""

    def cancel(self, claims: Iterable[Claim], reason: str) -> Recorded:
        """End slots that somebody chose not to send: their jobs go on at once."""

    def ended(self, batch_size: int, grace_seconds: float = 0.0) -> list[HeldLease]:
        """Return leases that ended at least so long ago, of leased and of overlapping runs."""

    def reclaim(self, endings: Iterable[tuple[HeldLease, Ending]], grace_seconds: float = 0.0) -> set[str]:
        """Take ended leases from their holders, unless they were extended meanwhile."""

    def replaceable(self, batch_size: int, owner: str = "") -> list[ReplaceableRun]:
        """Return runs that hold their jobs although the next slot has come.

        Of jobs of this app, and of those that belong to no app.
        """

    def replace(self, runs: Iterable[ReplaceableRun]) -> set[str]:
        """Cancel runs and free their jobs; the run ids returned have lost their leases by that.

        Runs whose next slot was moved on meanwhile, and those of a job that was paused, are left
        alone.
        """

    def postpone_replacing(self, runs: Iterable[tuple[ReplaceableRun, datetime | None]]) -> None:
        """Let runs hold their jobs until another slot comes; None: until they end."""

    def note_check_ins(self, check_ins: Iterable[tuple[Claim, str]]) -> Recorded:
        """Keep the check-ins that a monitor opened for these slots."""

    def check_ins(self, run_ids: Iterable[str]) -> dict[str, str]:
        """Return what monitors have opened for the slots of these runs, by run id."""

    def postpone_start_deadline(self, waiting: Iterable[tuple[HeldLease, float]]) -> set[str]:
        """Give queued slots a later deadline; return the run ids that this beat republishes."""

    def release_orphan_locks(self, lock_seconds: float) -> list[str]:
        """Free locks that stand for no run; returns the names of the jobs that are free again."""

    def next_deadlines(self, claimable: Claimable = ALL_JOBS) -> NextDeadlines:
        """Return when some beat has something to do."""

    def starts_after(self, instant: datetime, claimable: Claimable = ALL_JOBS) -> datetime | None:
        """Return when there is something to claim that is due later than this."""

    def changes(self) -> int:
        """Return the counter that grows with every change made through this package."""

    def rows_needing_repair(self, batch_size: int, after_id: str = FIRST_ID, owner: str = "") -> list[RowNeedingRepair]:
        """Return rows without a next run or with other forms of time, bad ones, and deleted ones.

        With an owner those of other apps are only to be deleted: their policies are not this
        beat's.
        """

    def repair_rows(self, repairs: Iterable[Repair], quarantines: Iterable[Quarantine] = ()) -> WriteResult:
        """Write repairs and quarantines; those that changed meanwhile are left alone."""

    def delete_requested(self, job_ids: Iterable[str]) -> WriteResult:
        """Delete the jobs whose deletion was asked for and whose runs have ended."""


class CodeStore(Protocol):
    """What a beat needs to bring its `beat_schedule` into the table."""

    def newest_release(self, owner: str, release: str, live_seconds: float) -> NewestRelease:
        """Return the winning release, if the asking beat is alive.

        A release that nobody has seen yet would be the newest.

        A beat whose release is the winner, but not the one imported last, has something to import.
        """

    def code_rows(self, owner: str) -> list[CodeRow]:
        """Return the jobs of an owner, as they stand."""

    def living(self, live_seconds: float) -> list[LivingRelease]:
        """Return what the living beats of the namespace have in their code, of all apps."""

    def jobs_of(self, tasks: Iterable[str], page_size: int) -> dict[str, str]:
        """Return the tasks of enabled jobs that have one of these, by job name; at most a page."""

    def announce(self) -> None:
        """Let the other beats notice that something has changed."""

    def owners(self) -> dict[str, int]:
        """Return how many enabled jobs each app has."""

    def code_state(self, owner: str, release: str, live_seconds: float) -> CodeState:
        """Return what an import of this release is planned from."""

    def import_code(self, batch: CodeImport) -> Imported:
        """Register a release with its entries, and write rows that are as they were read.

        Imports of one owner come one after the other. Nothing is written where other beats have
        come or gone. An entry that the database refuses is left out.
        """

    def adopt(self, owner: str, former_owner: str, names: Collection[str] | None = None) -> list[str]:
        """Give an app's jobs, or those of these names, to another app; return their names."""
