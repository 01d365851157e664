"""What beats, workers and administrators may ask of a store, in narrow parts. Every kind of database keeps to it.

A miss is an absence in the answer, not an exception. A TransientError is raised where trying again later may help.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import NamedTuple, Protocol

from celery_sqlbeat.lifecycle import Ending
from celery_sqlbeat.model import (
    Attempt,
    Beside,
    Claim,
    Claimable,
    CodeChanges,
    CodeRow,
    DueJob,
    EndedSlot,
    GapRecord,
    HeldLease,
    JobArrival,
    JobChange,
    JobCounts,
    JobDraft,
    JobRecord,
    LivingRelease,
    LooseRow,
    Mend,
    Node,
    Plan,
    Quarantine,
    RefusedStart,
    ReplaceableRun,
    RunningJob,
    RunRecord,
    SeenNode,
    StartedRun,
    StartRequest,
    Unbegun,
)
from celery_sqlbeat.store.steps import Steps
from celery_sqlbeat.store.wake import Wake

Parallel = Callable[[str], int]
"""How many runs of a job, by its id, go on beside each other."""
Plans = Callable[[Sequence[DueJob], Mapping[str, Attempt], Parallel], Plan]
Answer = Callable[[], set[str]]
"""Waits for what a statement that is under way has done: the ids of the runs concerned. Called once."""
CodePlans = Callable[[datetime, Sequence[CodeRow], Beside], CodeChanges]

FIRST_ID = "00000000-0000-0000-0000-000000000000"
LAST_ID = "ffffffff-ffff-ffff-ffff-ffffffffffff"
ANY_VERSION = 0  # of a row; they count from 1
ALL_JOBS = Claimable()


class Claimed(NamedTuple):
    """The outcome of one claim: what this beat now holds, the whole plan, and what was looked at."""

    claims: list[Claim]
    plan: Plan
    names: Mapping[str, str]
    """Of the jobs that were looked at, by their ids."""

    @property
    def looked_at(self) -> int:
        """How many jobs were looked at."""
        return len(self.names)


class Written(NamedTuple):
    """The outcome of a batch of rows, by job id."""

    done: set[str]
    refused: dict[str, str]
    """What the database does not take, and why; all others could be written."""


class CodeTally(NamedTuple):
    """How many jobs an app has here, and how many of them are disabled because they left the code.

    Where it changes without an import of this beat, somebody else has added, deleted or disabled some.
    """

    jobs: int
    left: int


class NewestRelease(NamedTuple):
    """Which release of a `beat_schedule` is the newest that has a live beat, and which one the table holds."""

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
    """Names of jobs that stay as they were, as the database refuses what the code says of them, and why."""


class BeatStore(Protocol):
    """What a beat needs. It cannot finish a run."""

    def claim(self, plan: Plans, batch_size: int, dispatch_seconds: float, claimable: Claimable = ALL_JOBS) -> Claimed:
        """Claim a batch of due jobs; `plan` says, between reading and writing, what becomes of each row."""

    def mark_published(self, published: Iterable[tuple[Claim, float]]) -> Answer:
        """Begin to record what the broker confirmed, with the seconds that each may stay queued.

        Those that the answer lacks were started or lost meanwhile, and neither is moved backwards; or somebody keeps
        their rows locked, which `unmarked` tells. So it is with all that records a claim or takes a lease.
        """

    def unmarked(self, claims: Iterable[Claim]) -> set[str]:
        """Of claims that a mark missed, the run ids of those that are still this beat's to record."""

    def mark_dispatched(self, claims: Iterable[Claim], reason: str | None = None) -> Answer:
        """Begin to record slots that were fired and forgotten: their jobs go on at once."""

    def give_back(self, claims: Iterable[Claim], reason: str, seconds: float = 0.0) -> set[str]:
        """Give back what was not published for certain, unless a worker has started it meanwhile.

        It is due again after so many seconds.
        """

    def fail(self, refused: Iterable[tuple[Claim, Ending]]) -> set[str]:
        """End attempts whose message cannot be made: another one follows, or the dead letters."""

    def skip(self, claims: Iterable[Claim], reason: str) -> set[str]:
        """End slots that are not to run any more: their jobs go on at once."""

    def cancel(self, claims: Iterable[Claim], reason: str) -> set[str]:
        """End slots that somebody chose not to send: their jobs go on at once."""

    def ended(self, batch_size: int, grace_seconds: float = 0.0) -> list[HeldLease]:
        """Leases that ended so long ago or longer, of leased and of overlapping runs."""

    def reclaim(self, endings: Iterable[tuple[HeldLease, Ending]], grace_seconds: float = 0.0) -> set[str]:
        """Take ended leases from their holders; those that were extended meanwhile are left alone."""

    def replaceable(self, batch_size: int, owner: str = "") -> list[ReplaceableRun]:
        """Runs that hold their jobs although the next slot has come, of jobs of this app and of none."""

    def replace(self, runs: Iterable[ReplaceableRun]) -> set[str]:
        """Cancel runs and free their jobs; the run ids returned have lost their leases by that."""

    def postpone_replacing(self, runs: Iterable[tuple[ReplaceableRun, datetime | None]]) -> None:
        """Let runs hold their jobs until another slot comes; None: until they end."""

    def note_check_ins(self, check_ins: Iterable[tuple[Claim, str]]) -> set[str]:
        """Keep what a monitor has opened for these slots; returns the run ids for which it was kept."""

    def check_ins(self, run_ids: Iterable[str]) -> dict[str, str]:
        """What monitors have opened for the slots of these runs, by run id."""

    def extend_queued(self, waiting: Iterable[tuple[HeldLease, float]]) -> set[str]:
        """Give queued slots a later deadline; the run ids returned are this beat's to publish again."""

    def free_strays(self, lock_seconds: float) -> list[str]:
        """Free locks that stand for no run; returns the names of the jobs that are free again."""

    def next_wake(self, claimable: Claimable = ALL_JOBS) -> Wake:
        """When some beat has something to do."""

    def starts_after(self, instant: datetime, claimable: Claimable = ALL_JOBS) -> datetime | None:
        """When there is something to claim that is due later than this."""

    def changes(self) -> int:
        """The counter that grows with every change made through this package."""

    def loose_rows(self, batch_size: int, after_id: str = FIRST_ID, owner: str = "") -> list[LooseRow]:
        """Rows that need attention: without a next run, in another form of time, in quarantine, to be deleted.

        With an owner those of other apps are only to be deleted: their policies are not this beat's.
        """

    def mend(self, mends: Iterable[Mend], quarantines: Iterable[Quarantine] = ()) -> Written:
        """Write what was found out about loose rows; those that changed meanwhile are left for the next look."""

    def delete_requested(self, job_ids: Iterable[str]) -> Written:
        """Delete the jobs whose deletion was asked for and whose runs have ended."""


class CodeStore(Protocol):
    """What a beat needs to bring its `beat_schedule` into the table."""

    def newest_release(self, owner: str, release: str, live_seconds: float) -> NewestRelease:
        """Who wins, if the beat that asks is alive; a release that nobody has seen yet would be the newest.

        A beat whose release is the winner, but not the one imported last, has something to import.
        """

    def code_rows(self, owner: str) -> list[CodeRow]:
        """The jobs of an owner, as they stand."""

    def living(self, live_seconds: float) -> list[LivingRelease]:
        """What the living beats of the namespace have in their code, of all apps."""

    def jobs_of(self, tasks: Iterable[str], page_size: int) -> dict[str, str]:
        """The tasks of the enabled jobs that have one of these, by job name; no more jobs than that."""

    def announce(self) -> None:
        """Let the other beats notice that something has changed."""

    def owners(self) -> dict[str, int]:
        """How many enabled jobs each app has."""

    def import_code(
        self, owner: str, release: str, plan: CodePlans, live_seconds: float, entries: Mapping[str, str] | None = None
    ) -> Imported:
        """Register a release with the digests of its entries, and write what `plan` makes of the rows.

        Where a newer release has a live beat, only what that one lacks. Imports of one owner come one after the other.
        An entry that the database refuses is left out, and the others are written. May safely run twice.
        """

    def adopt(self, owner: str, former_owner: str, names: Collection[str] | None = None) -> list[str]:
        """Make the jobs of an app, or those of these names, those of another one; returns their names."""


class Extended(NamedTuple):
    """The outcome of one heartbeat, as run ids. The leases of all others are extended."""

    lost: set[str]
    """Somebody else may run them."""
    busy: set[str]
    """Somebody keeps their rows locked: not extended, and not lost."""


class WorkerStore(Protocol):
    """What a worker needs. It cannot claim."""

    def start(self, requests: Iterable[StartRequest]) -> dict[str, StartedRun]:
        """Take over the leases of the runs that may begin, by run id; one that is missing may not, as `refusing` says.

        Asking twice with the same start id gives the same answer, so a lost reply is no lost start. Where two requests
        of one batch ask for the same run, the start id in the answer says which of them may begin.
        """

    def starting(self, requests: Iterable[StartRequest]) -> Steps[dict[str, StartedRun]]:
        """The same in steps."""

    def refusing(self, requests: Iterable[StartRequest]) -> Steps[dict[str, RefusedStart]]:
        """Why runs may not begin; what was sent and never can ends with that. A run that is missing is not known."""

    def extend(self, held: Sequence[tuple[StartedRun, float]]) -> Extended:
        """Extend leases by so many seconds from now; waits for no row that somebody keeps locked."""

    def postpone(self, unbegun: Iterable[Unbegun]) -> set[str]:
        """Let the deadlines of runs move on whose messages wait here for their start; returns the ids of these runs.

        The others have begun, or were fired and forgotten, or are another claim's; or somebody keeps their rows locked.
        """

    def finish(self, outcomes: Iterable[tuple[StartedRun, Ending]]) -> set[str]:
        """Write how runs ended; returns the run ids of those whose lease was lost, so that nothing was written."""

    def finishing(self, outcomes: Iterable[tuple[StartedRun, Ending]]) -> Steps[set[str]]:
        """The same in steps."""


class Purged(NamedTuple):
    """A batch of history that was deleted."""

    rows: int
    last: datetime | None
    """The latest of their slots: the next batch may begin there."""
    refused: int = 0
    """How many more the database does not let go: passed by, until a batch begins without a place."""


class Purging(NamedTuple):
    """How a kind of database deletes much without disturbing others."""

    rows: int
    """Of one batch."""
    rest: float
    """How long to rest after a batch, in times of what it took."""
    most_a_second: float


class AdminStore(Protocol):
    """What an administrator needs. Every change bumps the change counter, so that beats notice it."""

    def add_jobs(self, drafts: Sequence[JobDraft]) -> set[str]:
        """Add jobs; returns the names added. The others are there already and stay as they are."""

    def update_job(
        self,
        draft: JobDraft,
        version: int,
        reschedule: bool,
        enabled: bool | None = None,
        gap: GapRecord | None = None,
        fence: int | None = None,
    ) -> int | None:
        """Change a job that is still at this version; returns the new version, or None on a conflict.

        `enabled` None leaves that as it is; a gap is what was skipped while the job was paused; `fence` as in `resume`.
        """

    def jobs(self, names: Iterable[str]) -> dict[str, JobRecord]:
        """The jobs of these names, by name."""

    def list_jobs(self, page_size: int, after_name: str = "") -> list[JobRecord]:
        """A page of jobs, by name."""

    def set_aside(self, page_size: int, after_name: str = "") -> list[JobRecord]:
        """A page of the jobs that cannot run as they are written, by name."""

    def counts(self) -> JobCounts:
        """How many jobs there are of each kind."""

    def running(self, least_seconds: float, most: int) -> list[RunningJob]:
        """Jobs whose run began so many seconds ago or earlier and goes on; the oldest runs first."""

    def states(self, since_seconds: float) -> dict[str, int]:
        """How many attempts of the slots of the last seconds are in each state; each skipped slot counts."""

    def pause(self, job_name: str, reason: str, version: int = ANY_VERSION) -> int | None:
        """Pause a job; returns the new version, or None where there is nothing to pause."""

    def resume(
        self,
        job_name: str,
        version: int,
        next_run_time: datetime | None,
        gap: GapRecord | None = None,
        finished: bool = False,
        fence: int | None = None,
    ) -> int | None:
        """Resume a paused job at a slot, with the record of those skipped; None on a conflict.

        `finished`: no slot is left, so that the job stays disabled for that reason. With the `fence` that was read it
        is a conflict, too, if a run of the job has ended since.
        """

    def add_slot(self, run_id: str, job_id: str) -> bool:
        """Add one extra slot, due now; False where the job is gone."""

    def delete(self, job_name: str, force: bool = False, version: int = ANY_VERSION) -> bool:
        """Delete a job once its runs have ended, or at once with `force`, which cancels them."""

    def cancel(self, job_name: str, reason: str = "cancelled by hand") -> bool:
        """Cancel the run that holds a job; its worker stops the task when it next extends the lease."""

    def runs(self, page_size: int, before_id: str = LAST_ID) -> list[RunRecord]:
        """A page of the history, newest first."""

    def runs_in(self, state: str, scan_size: int, before_id: str) -> list[RunRecord]:
        """Those in one state of a page of the history, newest first; its last run ends the list in whatever state."""

    def job_runs(self, job_id: str, page_size: int, before: RunRecord | None = None) -> list[RunRecord]:
        """A page of one job's history, latest slot and attempt first; the next one is before the last of this one."""

    def run(self, run_id: str) -> RunRecord | None:
        """One attempt."""

    def dead(self, page_size: int, after_id: str = FIRST_ID) -> list[RunRecord]:
        """A page of the dead letters, oldest first."""

    def replay(self, letters: Sequence[tuple[str, RunRecord]]) -> set[str]:
        """Give dead letters a new attempt under new run ids; returns the new ids. One letter is replayed once."""

    def purge_dead(self, run_ids: Iterable[str]) -> set[str]:
        """Delete dead letters for good."""

    @property
    def purging(self) -> Purging:
        """How the history is best deleted here."""

    def purge_history(self, keep_seconds: float, batch_size: int, after: datetime | None = None) -> Purged:
        """Delete a batch of ended runs, the oldest first, of slots at `after` or later.

        Fewer than a batch: nothing is left, or others are deleting the rest. Rows that the database refuses to delete
        are logged once, and passed by.
        """

    def purge_nodes(self, keep_seconds: float) -> None:
        """Forget nodes that were not alive for so long, and the names of jobs that were deleted so long ago."""


class ResultStore(Protocol):
    """What is needed to end the results of attempts that another one followed."""

    def unended(self, page_size: int, since_seconds: float) -> list[EndedSlot]:
        """Slots that ended within so many seconds, and whose earlier attempts may have no final result."""

    def ended(self, run_ids: Iterable[str]) -> None:
        """Say that the results of these attempts are ended, or need no end."""


class TransferStore(Protocol):
    """What jobs need that come from elsewhere, in batches."""

    def place(self, arrivals: Sequence[JobArrival], changes: Sequence[JobChange]) -> set[str]:
        """Write a batch, all of it; or nothing, where somebody else was faster: then these names are returned."""


class NodeStore(Protocol):
    """Who is there, and whose store this is: what all three have in common."""

    def note(self, node: Node) -> datetime:
        """Say that this node is alive; returns the server's clock."""

    def stop(self, node_id: str) -> None:
        """Say that this node has stopped in order; beats notice it as any change."""

    def seen(self, memory_seconds: float) -> list[SeenNode]:
        """The nodes that were alive within so many seconds."""

    def tasks(self, node_ids: Iterable[str]) -> dict[str, str | None]:
        """The JSON lists of the tasks that workers know, by node; None where one has not told them."""

    def clock(self) -> datetime:
        """The server's clock."""

    def identity(self) -> tuple[str, int]:
        """The id that `init` gave to this store, and its epoch, which grows with every recovery."""
