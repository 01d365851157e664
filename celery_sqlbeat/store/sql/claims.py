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
    QuarantineJob,
    ReplaceableRun,
    Unbegun,
)
from celery_sqlbeat.model.lifecycle import released
from celery_sqlbeat.store.records import (
    ALL_JOBS,
    EVERY_SHARE,
    Expired,
    KeptRun,
    NextDeadlines,
    Pulse,
    Recorded,
    Release,
)
from celery_sqlbeat.store.sql.claim_batch import joined, read_due, renumber, scope_of, without_mark, write_plan
from celery_sqlbeat.store.sql.engine import Conflict, Database, Part
from celery_sqlbeat.store.sql.faults import in_halves, refusal, write_runs
from celery_sqlbeat.store.sql.runs import recorded, release_unstarted
from celery_sqlbeat.store.sql.session import Row, Session
from celery_sqlbeat.store.sql.upkeep import write_upkeep

_RETRIES = itemgetter(Unbegun._fields.index("celery_retries"))
BY_RUN = itemgetter(1)
"""Every statement locks jobs in the order of their runs, so that no two deadlock."""


class Claims(Part):
    """The verbs of beats."""

    def __init__(self, database: Database, namespace: str = "default") -> None:
        super().__init__(database, namespace)
        self._unanswered: list[Claim] = []
        """Claims whose commit had no answer, and of which nobody could ask whether they stand."""

    def due(
        self, batch_size: int, claimable: Claimable = ALL_JOBS, share: str = EVERY_SHARE, besides: Collection[str] = ()
    ) -> DueBatch:
        """Read due jobs, and the attempts that their next ones continue."""
        self._release_unanswered()
        scope = scope_of(self.namespace, claimable)
        scope |= {"batch_size": batch_size, "share": share, "besides": sorted(besides)}
        return read_due(self.database, scope, claimable)

    def claim(self, due: DueBatch, plan: Plan, beat: str, dispatch_seconds: float) -> Claimed:
        """Write a plan where the jobs are as they were read."""
        if not any(plan):
            return Claimed([], [], [], set())
        try:
            return self._claim(due, plan, beat, dispatch_seconds)
        except RowRefused as error:
            return self._claim_in_halves(due, plan, beat, dispatch_seconds, error)

    def _claim_in_halves(
        self, due: DueBatch, plan: Plan, beat: str, dispatch_seconds: float, error: RowRefused
    ) -> Claimed:
        """Claim a batch but for the rows that the database refuses; these are quarantined."""
        whole = Claimed([], [], [], set())

        def write(part: Sequence[DueJob]) -> None:
            nonlocal whole
            ids = {job.job_id for job in part}
            try:
                whole = joined(whole, self._claim(due, plan.only(ids), beat, dispatch_seconds))
            except TransientError:
                if not whole.claims:
                    raise
                # What is claimed by now goes out; the rest stays due.

        def quarantine(job: DueJob, why: RowRefused) -> None:
            row = Quarantine(job.job_id, job.job_name, job.fence, job.version, refusal(str(why)))
            write = QuarantineJob(row.job_name, row.job_id, row.fence, row.version, row.reason)
            if write_upkeep(self.database, self.namespace, [write]).done:
                whole.quarantines.append(row)
            else:
                events.row_refused(action="set a job aside", row=job.job_name, error=row.reason)

        in_halves(due.jobs, write, quarantine, error)
        return whole

    def _claim(self, due: DueBatch, plan: Plan, beat: str, dispatch_seconds: float) -> Claimed:
        """Claim in one transaction."""
        attempted: list[Claimed] = []

        def work(session: Session, renumbered: bool = False) -> Claimed:
            attempted.clear()
            made = renumber(session, plan) if renumbered else plan
            attempted.append(write_plan(session, due, made, beat, dispatch_seconds))
            return attempted[0]

        def resolve_commit(session: Session) -> Claimed | None:
            ids = [(claim.run_id, claim.claim_id) for claim in attempted[0].claims] if attempted else []
            return attempted[0] if ids and session.fetch("read_claims", ids[:1]) else None

        try:
            try:
                return self.database.write(work, resolve_commit)
            except Conflict:
                # An operator set NextRunTime back to a slot that was run before: it becomes a
                # further attempt of it.
                return self.database.write(lambda session: work(session, renumbered=True), resolve_commit)
        except TransientError:
            self._unanswered += plan.claims
            raise

    def _release_unanswered(self) -> None:
        """Release claims that may have been committed: none was published, and none need wait."""
        claims, self._unanswered = self._unanswered, []
        if not claims:
            return
        try:
            ending = released("the answer to the claim was lost")
            release_unstarted(self.database, self.namespace, [Release.of(claim, ending) for claim in claims])
        except DatabaseUnavailable:
            self._unanswered = claims
            raise
        except StoreError as error:  # one of their rows is locked: they are taken over when their time is over
            events.step_failed(step="give back claims", subject=f"{len(claims)} without an answer", error=error)

    def mark_published(self, published: Iterable[tuple[Claim, float]]) -> Recorded:
        """Record confirmed messages, with the seconds that each may stay queued."""
        rows = sorted(((c.job_id, c.run_id, c.claim_id, c.fence, seconds) for c, seconds in published), key=BY_RUN)
        done = write_runs(rows, partial(self._fetch_ids, "mark_published"), "mark_published")
        return recorded(self.database, [row[:4] for row in rows], done)

    def pulse(self) -> Pulse:
        """Return the server's clock, and the counter that grows with every change of a job."""
        now, changes, *wakes = self.database.read("read_changes", namespace=self.namespace)[0]
        return Pulse(now, changes, min((at for at in wakes if at is not None), default=None))

    def next_deadlines(self, claimable: Claimable = ALL_JOBS, after: datetime | None = None) -> NextDeadlines:
        """Return when some beat has something to do."""
        self._release_unanswered()
        scope = scope_of(self.namespace, claimable)
        if after is None:
            return NextDeadlines._make(self.database.read("read_next", **scope)[0])
        now, due_at, outbox_at = self.database.read("read_later", **scope, after=after)[0]
        return NextDeadlines(now, due_at, None, None, None, outbox_at, 0)

    def expired(self, batch_size: int, owner: str = "") -> Expired:
        """Read leases that have ended, and runs that are to make room for the next slot."""
        scope = {"namespace": self.namespace, "batch_size": batch_size}
        leases = [without_mark(HeldLease._make(row)) for row in self.database.read("read_ended", **scope)]
        if len(leases) < batch_size:
            rest = {**scope, "batch_size": batch_size - len(leases)}
            leases += [HeldLease._make(row) for row in self.database.read("read_ended_held", **rest)]
        runs = self.database.read("read_replaceable", code_owner=owner, **scope)
        return Expired(leases, [ReplaceableRun._make(row) for row in runs])

    def postpone(
        self, waiting: Sequence[tuple[HeldLease, float]] | Sequence[Unbegun] | Sequence[KeptRun], node: str = ""
    ) -> set[str]:
        """Give queued slots a later start deadline, or let runs hold their jobs for longer."""
        unbegun = [run for run in waiting if isinstance(run, Unbegun)]
        kept = [run for run in waiting if isinstance(run, KeptRun)]
        leases = [row for row in waiting if not isinstance(row, (Unbegun, KeptRun))]
        moved = set[str]()
        if unbegun:
            by_run = {run.run_id: run for run in sorted(unbegun, key=_RETRIES)}
            moved |= self._fetch_ids("postpone_starts", sorted(by_run.values()), namespace=self.namespace)
        if kept:
            until = [(run.job_id, run.run_id, run.claim_id, run.fence, until) for run, until in kept]
            self.database.fetch("postpone_replacing", sorted(until, key=BY_RUN))
        if leases:
            rows = [(w.job_id, w.run_id, w.claim_id, w.fence, w.republishes, seconds) for w, seconds in leases]
            work = partial(self._fetch_ids, "postpone_start_deadline", beat=node)
            moved |= write_runs(sorted(rows, key=BY_RUN), work, "postpone_start_deadline")
        return moved

    def release_orphan_locks(self, lock_seconds: float) -> list[str]:
        """Release locks that stand for no run; returns the names of the jobs."""
        rows = self.database.fetch("release_orphan_locks", namespace=self.namespace, lock_seconds=lock_seconds)
        return [name for _, name, locked_by in rows if locked_by is None]

    def _fetch_ids(self, block: str, rows: Sequence[Row], **scalars: str) -> set[str]:
        return {row[0] for row in self.database.fetch(block, rows, **scalars)}
