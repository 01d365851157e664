"""Claim due jobs, record what became of the claims, and reclaim what others left behind."""

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from functools import partial
from operator import itemgetter

from celery_sqlbeat import events
from celery_sqlbeat.errors import DatabaseUnavailable, RowRefused, StoreError, TransientError
from celery_sqlbeat.model import (
    Claim,
    Claimable,
    Claimed,
    DueBatch,
    DueJob,
    HeldLease,
    Plan,
    Quarantine,
    Repair,
    ReplaceableRun,
    RowNeedingRepair,
)
from celery_sqlbeat.model.lifecycle import (
    CANCELLED,
    DISPATCHED,
    REPLACED_REASON,
    SKIPPED,
    Ending,
    released,
)
from celery_sqlbeat.store.beat_protocol import (
    ALL_JOBS,
    EVERY_SHARE,
    FIRST_ID,
    NextDeadlines,
    Recorded,
    WriteResult,
)
from celery_sqlbeat.store.sql.claim_batch import joined, read_due, renumber, scope_of, write_plan
from celery_sqlbeat.store.sql.engine import Conflict, Database
from celery_sqlbeat.store.sql.faults import in_halves, refusal, write_jobs, write_runs
from celery_sqlbeat.store.sql.runs import Release, delete_free, release
from celery_sqlbeat.store.sql.session import Row, Session

BY_RUN = itemgetter(1)
"""Every statement locks jobs in the order of their runs, so that no two deadlock."""


class SqlBeatStore:
    """The BeatStore of one namespace in a SQL database."""

    def __init__(self, database: Database, namespace: str, beat: str) -> None:
        self._database = database
        self._namespace = namespace
        self._beat = beat
        self._unanswered: list[Claim] = []
        """Claims whose commit had no answer, and of which nobody could ask whether they stand."""

    def due(
        self, batch_size: int, claimable: Claimable = ALL_JOBS, share: str = EVERY_SHARE, besides: Collection[str] = ()
    ) -> DueBatch:
        """Read due jobs, and the attempts that their next ones continue."""
        self._release_unanswered()
        scope = scope_of(self._namespace, claimable)
        scope |= {"batch_size": batch_size, "share": share, "besides": sorted(besides)}
        return read_due(self._database, scope, claimable)

    def claim(self, due: DueBatch, plan: Plan, dispatch_seconds: float) -> Claimed:
        """Write a plan where the jobs are as they were read."""
        if not any(plan):
            return Claimed([], [], [], set())
        try:
            return self._claim(due, plan, dispatch_seconds)
        except RowRefused as error:
            return self._claim_in_halves(due, plan, dispatch_seconds, error)

    def _claim_in_halves(self, due: DueBatch, plan: Plan, dispatch_seconds: float, error: RowRefused) -> Claimed:
        """Claim a batch but for the rows that the database refuses; these are quarantined."""
        whole = Claimed([], [], [], set())

        def write(part: Sequence[DueJob]) -> None:
            nonlocal whole
            ids = {job.job_id for job in part}
            try:
                whole = joined(whole, self._claim(due, plan.only(ids), dispatch_seconds))
            except TransientError:
                if not whole.claims:
                    raise
                # What is claimed by now goes out; the rest stays due.

        def quarantine(job: DueJob, why: RowRefused) -> None:
            row = Quarantine(job.job_id, job.job_name, job.fence, refusal(str(why)))
            if job.job_id in self.repair_rows([], [row]).done:
                whole.quarantines.append(row)
            else:
                events.row_refused(action="set a job aside", row=job.job_name, error=row.reason)

        in_halves(due.jobs, write, quarantine, error)
        return whole

    def _claim(self, due: DueBatch, plan: Plan, dispatch_seconds: float) -> Claimed:
        """Claim in one transaction."""
        attempted: list[Claimed] = []

        def work(session: Session, renumbered: bool = False) -> Claimed:
            attempted.clear()
            made = renumber(session, plan) if renumbered else plan
            attempted.append(write_plan(session, due, made, self._beat, dispatch_seconds))
            return attempted[0]

        def resolve_commit(session: Session) -> Claimed | None:
            ids = [(claim.run_id, claim.claim_id) for claim in attempted[0].claims] if attempted else []
            return attempted[0] if ids and session.fetch("read_claims", ids[:1]) else None

        try:
            try:
                return self._database.write(work, resolve_commit)
            except Conflict:
                # An operator set NextRunTime back to a slot that was run before: it becomes a
                # further attempt of it.
                return self._database.write(lambda session: work(session, renumbered=True), resolve_commit)
        except TransientError:
            self._unanswered += plan.claims
            raise

    def _release_unanswered(self) -> None:
        """Release claims that may have been committed: none was published, and none need wait."""
        claims, self._unanswered = self._unanswered, []
        if not claims:
            return
        try:
            self.release_claims(claims, "the answer to the claim was lost")
        except DatabaseUnavailable:
            self._unanswered = claims
            raise
        except StoreError as error:  # one of their rows is locked: they are taken over when their time is over
            events.step_failed(step="give back claims", subject=f"{len(claims)} without an answer", error=error)

    def mark_published(self, published: Iterable[tuple[Claim, float]]) -> Recorded:
        """Record confirmed messages, with the seconds that each may stay queued."""
        queued = list(published)
        rows = sorted(((c.job_id, c.run_id, c.claim_id, c.fence, seconds) for c, seconds in queued), key=BY_RUN)
        done = write_runs(rows, partial(self._fetch_ids, "mark_published"), "mark_published")
        return self._recorded([c for c, _ in queued], done)

    def mark_dispatched(self, claims: Iterable[Claim], reason: str | None = None) -> Recorded:
        """Record slots that are fired and forgotten."""
        return self._release(claims, Ending(DISPATCHED, reason))

    def release_claims(self, claims: Iterable[Claim], reason: str, seconds: float = 0.0) -> Recorded:
        """Release claims that were surely not published; they are due again after these seconds."""
        return self._release(claims, released(reason, seconds))

    def fail(self, refused: Iterable[tuple[Claim, Ending]]) -> Recorded:
        """End attempts whose message cannot be made."""
        endings = list(refused)
        releases = [Release(c.job_id, c.run_id, c.claim_id, c.fence, ending) for c, ending in endings]
        done = release(self._database, self._namespace, releases, only_unstarted=True)
        return self._recorded([c for c, _ in endings], done)

    def skip(self, claims: Iterable[Claim], reason: str) -> Recorded:
        """End slots that are not to run any more."""
        return self._release(claims, Ending(SKIPPED, reason))

    def cancel(self, claims: Iterable[Claim], reason: str) -> Recorded:
        """End slots that somebody chose not to send."""
        return self._release(claims, Ending(CANCELLED, reason))

    def note_check_ins(self, check_ins: Iterable[tuple[Claim, str]]) -> Recorded:
        """Keep the check-ins that a monitor opened for these slots."""
        noted = list(check_ins)
        rows = sorted((c.run_id, c.claim_id, check_in) for c, check_in in noted)
        return self._recorded([c for c, _ in noted], self._fetch_ids("note_check_ins", rows))

    def check_ins(self, run_ids: Iterable[str]) -> dict[str, str]:
        """Return what monitors have opened for the slots of these runs, by run id."""
        rows = [(run_id,) for run_id in sorted(run_ids)]
        answer: list[Row] = self._database.read("read_check_ins", rows)
        return {row[0]: row[1] for row in answer}

    def next_deadlines(self, claimable: Claimable = ALL_JOBS) -> NextDeadlines:
        """Return when some beat has something to do."""
        self._release_unanswered()
        rows = self._database.read("read_next", **scope_of(self._namespace, claimable))
        return NextDeadlines._make(rows[0])

    def starts_after(self, instant: datetime, claimable: Claimable = ALL_JOBS) -> datetime | None:
        """Return when a job is due next after this instant."""
        rows = self._database.read("read_later", **scope_of(self._namespace, claimable), after=instant)
        return min((at for at in rows[0] if at is not None), default=None)

    def changes(self) -> int:
        """Return the counter that grows with every change made through this package."""
        rows = self._database.read("read_changes", namespace=self._namespace)
        return int(rows[0][0]) if rows else 0

    def _release(self, claims: Iterable[Claim], ending: Ending) -> Recorded:
        claims = list(claims)
        releases = [Release(c.job_id, c.run_id, c.claim_id, c.fence, ending) for c in claims]
        free = partial(release, self._database, self._namespace, only_unstarted=True)
        return self._recorded(claims, write_runs(releases, free, "release"))

    def _recorded(self, claims: Iterable[Claim], done: set[str]) -> Recorded:
        """Read which of the claims that a statement missed this beat still holds."""
        missed = [(c.job_id, c.run_id, c.claim_id, c.fence) for c in claims if c.run_id not in done]
        held = self._database.read("read_unmarked", sorted(missed, key=BY_RUN)) if missed else []
        return Recorded(done, {row[0] for row in held})

    def ended(self, batch_size: int, grace_seconds: float = 0.0) -> list[HeldLease]:
        """Read leases that ended at least this long ago."""
        scope = {"namespace": self._namespace, "grace_seconds": grace_seconds, "batch_size": batch_size}
        leases = [HeldLease._make(row) for row in self._database.read("read_ended", **scope)]
        if len(leases) < batch_size:
            scope["batch_size"] = batch_size - len(leases)
            leases += [HeldLease._make(row) for row in self._database.read("read_ended_held", **scope)]
        return leases

    def reclaim(self, endings: Iterable[tuple[HeldLease, Ending]], grace_seconds: float = 0.0) -> set[str]:
        """Take ended leases from their holders, unless they were extended meanwhile."""
        releases = [Release(lease.job_id, lease.run_id, lease.claim_id, lease.fence, end) for lease, end in endings]
        free = partial(release, self._database, self._namespace, only_ended=True, grace_seconds=grace_seconds)
        return write_runs(releases, free, "reclaim")

    def replaceable(self, batch_size: int, owner: str = "") -> list[ReplaceableRun]:
        """Read runs that hold their jobs although the next slot has come."""
        scope = {"namespace": self._namespace, "code_owner": owner}
        rows = self._database.read("read_replaceable", batch_size=batch_size, **scope)
        return [ReplaceableRun._make(row) for row in rows]

    def replace(self, runs: Iterable[ReplaceableRun]) -> set[str]:
        """Cancel runs and free their jobs, unless their next slot was moved on meanwhile."""
        ending = Ending(CANCELLED, REPLACED_REASON)
        releases = [Release(run.job_id, run.run_id, run.claim_id, run.fence, ending) for run in runs]
        free = partial(release, self._database, self._namespace, only_replaceable=True)
        return write_runs(releases, free, "replace")

    def postpone_replacing(self, runs: Iterable[tuple[ReplaceableRun, datetime | None]]) -> None:
        """Let runs hold their jobs until another slot comes."""
        rows = [(run.job_id, run.run_id, run.claim_id, run.fence, at) for run, at in runs]
        if rows:
            self._database.fetch("postpone_replacing", sorted(rows, key=BY_RUN))

    def postpone_start_deadline(self, waiting: Iterable[tuple[HeldLease, float]]) -> set[str]:
        """Give queued slots a later deadline; return the run ids that this beat republishes."""
        rows = [(w.job_id, w.run_id, w.claim_id, w.fence, w.republishes, seconds) for w, seconds in waiting]
        postpone = partial(self._fetch_ids, "postpone_start_deadline", beat=self._beat)
        return write_runs(sorted(rows, key=BY_RUN), postpone, "postpone_start_deadline")

    def release_orphan_locks(self, lock_seconds: float) -> list[str]:
        """Release locks that stand for no run; returns the names of the jobs."""
        rows = self._database.fetch("release_orphan_locks", namespace=self._namespace, lock_seconds=lock_seconds)
        return [name for _, name, locked_by in rows if locked_by is None]

    def rows_needing_repair(self, batch_size: int, after_id: str = FIRST_ID, owner: str = "") -> list[RowNeedingRepair]:
        """Read rows that cannot fire as they stand, or are to be deleted."""
        scope = {"namespace": self._namespace, "code_owner": owner}
        rows = self._database.read("read_rows_needing_repair", batch_size=batch_size, after_id=after_id, **scope)
        return [RowNeedingRepair._make(row) for row in rows]

    def repair_rows(self, repairs: Iterable[Repair], quarantines: Iterable[Quarantine] = ()) -> WriteResult:
        """Write repairs and quarantines, unless the rows changed meanwhile."""
        result = WriteResult(set(), {})
        for block, rows in (
            ("repair_rows", sorted(tuple(repair) for repair in repairs)),
            ("quarantine_jobs", sorted((q.job_id, q.fence, q.reason) for q in quarantines)),
        ):
            write_jobs(result, rows, partial(self._fetch_ids, block))
        return result

    def delete_requested(self, job_ids: Iterable[str]) -> WriteResult:
        """Delete jobs whose deletion was requested and whose runs have ended."""
        result = WriteResult(set(), {})
        rows = [(job_id,) for job_id in sorted(job_ids)]
        write_jobs(
            result,
            rows,
            lambda part: self._database.write(lambda session: delete_free(session, self._namespace, part)),
        )
        return result

    def _fetch_ids(self, block: str, rows: Sequence[Row], **scalars: str) -> set[str]:
        return {row[0] for row in self._database.fetch(block, rows, **scalars)}
