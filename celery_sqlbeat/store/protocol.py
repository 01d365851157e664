"""State what may be asked of a store: the verbs that every adapter implements.

A store is one namespace of one database. Each verb takes a batch, is atomic for each row of it,
and gives back what it has done: a miss is an absence in the answer, not an exception. The adapter
retries, and finds out by a read whether a commit without an answer happened. A TransientError is
raised where a retry of the caller's may help. No callback, session or generator crosses.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime
from typing import Protocol

from celery_sqlbeat.model import (
    Claim,
    Claimable,
    Claimed,
    CodeImport,
    CodeState,
    DueBatch,
    EndedSlot,
    HeldLease,
    JobCounts,
    JobRecord,
    JobWrite,
    JobWriteResult,
    LivingRelease,
    NewRun,
    Node,
    Plan,
    RefusedStart,
    RunningJob,
    RunRecord,
    SeenNode,
    StartedRun,
    StartRequest,
    Unbegun,
)
from celery_sqlbeat.model.locks import HeldLock, LockRecord
from celery_sqlbeat.model.one_offs import Cancellation, CancelRequest, OneOff, Submitted
from celery_sqlbeat.store.purges import DeadLetters, OldKeys, OldNodes, OldRuns, Purged, WholeNamespace
from celery_sqlbeat.store.records import (
    ALL_JOBS,
    EVERY_SHARE,
    Expired,
    Extended,
    Guard,
    Imported,
    JobQuery,
    KeptRun,
    NewestRelease,
    NextDeadlines,
    Pulse,
    Recorded,
    Release,
    Remark,
    RunNote,
    RunQuery,
    Schema,
)


class Store(Protocol):
    """One namespace of a database, as beats, workers and administrators use it."""

    namespace: str

    # When there is work.

    def pulse(self) -> Pulse:
        """Return the server's clock, and the counter that grows with every change of a job."""

    def next_deadlines(self, claimable: Claimable = ALL_JOBS, after: datetime | None = None) -> NextDeadlines:
        """Return the earliest instants at which some beat has something to do.

        `after`: asks only for what is due later than this, and for nothing else.
        """

    # Claims: the work of beats.

    def due(
        self, batch_size: int, claimable: Claimable = ALL_JOBS, share: str = EVERY_SHARE, besides: Collection[str] = ()
    ) -> DueBatch:
        """Read due jobs, of extra slots first. It locks nothing, and waits for no locked row.

        `share`: only jobs whose id ends with one of these hexadecimal digits. `besides`: the ids of
        jobs whose rows were locked a moment ago, where a read would find them again.
        """

    def claim(self, due: DueBatch, plan: Plan, beat: str, dispatch_seconds: float) -> Claimed:
        """Write what was planned of due jobs, where they are as they were read.

        A job's claim, its run, gap, advance or quarantine are written together or not at all.
        """

    def mark_published(self, published: Iterable[tuple[Claim, float]]) -> Recorded:
        """Record what the broker confirmed, with the seconds that each may stay queued.

        No claim that was started or lost meanwhile is moved backwards, and nothing waits for a
        locked row.
        """

    def expired(self, batch_size: int, owner: str = "") -> Expired:
        """Return leases that have ended, and runs that hold their jobs although the next slot came.

        Of the latter only those of jobs of this app, and of those that belong to no app.
        """

    def postpone(
        self, waiting: Sequence[tuple[HeldLease, float]] | Sequence[Unbegun] | Sequence[KeptRun], node: str = ""
    ) -> set[str]:
        """Give queued slots a later start deadline, or let runs hold their jobs for longer.

        Return the ids of the runs whose deadline this call has moved: of the leases that a beat
        found ended, those that this beat may publish again; of the messages that wait in a worker,
        those that have a deadline. `node`: the beat that would publish them.
        """

    # Runs: the work of workers, and every end.

    def start(self, requests: Sequence[StartRequest], worker: str) -> dict[str, StartedRun | RefusedStart]:
        """Take over the leases of the runs that may begin, and say why others may not, by run id.

        One that is missing is not known. Asking twice with the same start id gives the same answer,
        so a lost reply is no lost start. Where two requests of one batch ask for the same run, the
        start id in the answer says which of them may begin. A run that can never begin any more
        ends with that.
        """

    def extend(self, held: Sequence[tuple[StartedRun, float]]) -> Extended:
        """Extend leases by so many seconds from now; wait for no row that somebody keeps locked."""

    def finish(self, releases: Sequence[Release], guard: Guard = Guard.HELD) -> Recorded:
        """End runs, or their attempts, and free their jobs; nothing is written without the right.

        A claim that is in neither part of the answer is lost.
        """

    def note_runs(self, notes: Sequence[RunNote]) -> Recorded:
        """Keep what others know of runs: the check-ins of monitors, and whose results are ended."""

    def unended_results(self, page_size: int, since_seconds: float) -> list[EndedSlot]:
        """Return slots that ended lately and whose earlier attempts may have no final result."""

    # Jobs and history: the work of administrators. Every change bumps the change counter.

    def jobs(self, query: JobQuery) -> dict[str, JobRecord]:
        """Return jobs by name; a page is in the order that the query names."""

    def write_jobs(self, writes: Sequence[JobWrite], together: bool = False) -> JobWriteResult:
        """Write jobs that are as their writes expect, at most one write for each name.

        With `together` nothing is written where there is a conflict. Upkeep, which bumps no
        counter, and the cancelling of runs are written beside the others, each by itself.
        """

    def release_orphan_locks(self, lock_seconds: float) -> list[str]:
        """Release locks that stand for no run; return the names of the jobs that are free again."""

    def enqueue(self, runs: Sequence[NewRun]) -> set[str]:
        """Add attempts, which wait for a beat; return their ids.

        One is missing where its job is gone. A dead letter is replayed once, and only while it is
        the last attempt of its slot and none of them is open; that of a one-off keeps its id.
        """

    def runs(self, query: RunQuery) -> list[RunRecord]:
        """Return attempts in the order of the query; those of given ids in any order."""

    def counts(self, since_seconds: float = 0.0) -> JobCounts:
        """Return how many jobs there are of each kind, and attempts of the last seconds' slots."""

    def running(self, least_seconds: float, most: int) -> list[RunningJob]:
        """Return jobs whose run goes on for at least so many seconds, oldest run first."""

    def purge(self, what: DeadLetters | OldRuns | OldNodes | OldKeys | WholeNamespace) -> Purged:
        """Delete rows for good; those that the store refuses to delete are passed by.

        A one-off is forgotten with its last run.
        """

    # One-offs, and the end of runs that somebody cancels.

    def submit(self, one_offs: Sequence[OneOff], submitter: str, dispatch_seconds: float) -> dict[str, Submitted]:
        """Add one-offs, and say which run each stands for, by the run id that was asked for.

        One with a key that stands for another run adds nothing. One with a claim id is claimed by
        the submitter, for so many seconds. Asking twice gives the same answer. One that the store
        refuses is missing; where it refuses all, a RowRefused says why.
        """

    def cancel(self, requests: Sequence[CancelRequest]) -> dict[str, Cancellation]:
        """End runs that have not begun, and ask the workers of the others to stop them.

        A run that is missing in the answer is not known. What is running ends as cancelled only.
        """

    # Nodes: the register of beats and workers.

    def heartbeat(self, node: Node) -> datetime:
        """Record that a node is alive, or has stopped in order; return the server's clock.

        Beats notice a stop as any change.
        """

    def nodes(self, memory_seconds: float) -> list[SeenNode]:
        """Return the nodes that were alive within so many seconds."""

    def tasks(self, node_ids: Iterable[str]) -> dict[str, str | None]:
        """Return the JSON lists of the tasks that workers know, by node; None of one without."""

    # Named locks.

    def take_lock(self, key: str, token: str, holder: str, lease_seconds: float) -> LockRecord | None:
        """Take a lock that is free, or whose lease has ended, and return who holds it now.

        It was taken if the token is the caller's, and then its fence is higher than any before.
        Asking twice with the same token gives the same answer. None: it was freed meanwhile.
        """

    def extend_locks(self, held: Sequence[HeldLock]) -> set[str]:
        """Extend the leases of locks; return the tokens of those that are still held."""

    def release_locks(self, held: Sequence[HeldLock]) -> set[str]:
        """Free locks; return the tokens of those that were still held."""

    def locks(self, after_key: str = "", page_size: int = 500) -> list[LockRecord]:
        """Return a page of the locks that somebody holds, by key."""

    # The beat_schedule of an app.

    def newest_release(self, owner: str, release: str, live_seconds: float) -> NewestRelease:
        """Return the winning release, if the asking beat is alive.

        A release that nobody has seen yet would be the newest.
        """

    def living(self, live_seconds: float) -> list[LivingRelease]:
        """Return what the living beats of the namespace have in their code, of all apps."""

    def code_state(self, owner: str, release: str, live_seconds: float) -> CodeState:
        """Return what an import of this release is planned from."""

    def import_code(self, batch: CodeImport) -> Imported:
        """Register a release with its entries, and write rows that are as they were read.

        Imports of one owner come one after the other. Nothing is written where other beats have
        come or gone. An entry that the store refuses is left out.
        """

    def adopt(self, owner: str, former_owner: str, names: Collection[str] | None = None) -> list[str]:
        """Give an app's jobs, or those of these names, to another app; return their names."""

    # The store itself.

    def migrate(self, progress: Callable[[str], None] = lambda _: None) -> list[str]:
        """Create or upgrade what the store is made of; return the names of the steps taken."""

    def check_schema(self) -> Schema:
        """Return its version and the store's id; a SchemaError: this release cannot use it."""

    def recover(self, progress: Callable[[int], None] = lambda _: None) -> int:
        """Raise every fence by an epoch, after a restore; return the new epoch."""

    def remarks(self) -> list[Remark]:
        """Return what `check` says of the server: what it may lose, and what is set wrongly."""

    def close(self) -> None:
        """Close the idle connections."""
