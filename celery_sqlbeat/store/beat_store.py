"""What a beat does to the database: claim, mark, give back, take over what ended, and ask when to wake."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from operator import itemgetter
from typing import NamedTuple

from celery_sqlbeat.lifecycle import DISPATCHED, Ending, given_back
from celery_sqlbeat.model import SCHEDULE, Attempt, Claim, DueJob, HeldLease, LooseRow, Mend, Plan
from celery_sqlbeat.store.database import Conflict, Database
from celery_sqlbeat.store.run_store import Release, release
from celery_sqlbeat.store.session import Session

Planner = Callable[[Sequence[DueJob], Mapping[str, Attempt]], Plan]


class Claimed(NamedTuple):
    """The outcome of one claim: what this beat now holds, and how many rows were looked at."""

    claims: list[Claim]
    plan: Plan
    looked_at: int


class Wake(NamedTuple):
    """The earliest instants at which some beat has something to do, by the server's clock."""

    now: datetime
    due_at: datetime | None
    lease_ends_at: datetime | None
    planned_at: datetime | None
    held_ends_at: datetime | None
    outbox_at: datetime | None
    changes: int

    def earliest(self) -> datetime | None:
        """The first of them all."""
        return min((at for at in self[1:6] if at is not None), default=None)


class SqlBeatStore:
    """The part of the store that a beat needs, for one namespace."""

    def __init__(self, database: Database, namespace: str, beat: str) -> None:
        self._database = database
        self._namespace = namespace
        self._beat = beat

    def claim(self, plan: Planner, batch_size: int, dispatch_seconds: float, code_keys: Sequence[str] = ()) -> Claimed:
        """Claim a batch of due jobs; `plan` says, between reading and writing, what becomes of each row."""
        attempted: list[Claimed] = []

        def work(session: Session, renumbered: bool = False) -> Claimed:
            attempted.clear()
            due = self._due(session, batch_size, code_keys)
            made = plan(due, _attempts(session, due))
            if renumbered:
                made = _renumbered(session, made)
            won = self._write_claims(session, made.claims, dispatch_seconds)
            _write_rest(session, made, won)
            claimed = Claimed([claim for claim in made.claims if claim.job_id in won], made, len(due))
            attempted.append(claimed)
            return claimed

        def settle(session: Session) -> Claimed | None:
            if not attempted:
                return None
            written = [(claim.run_id, claim.claim_id) for claim in attempted[0].claims]
            return attempted[0] if written and session.fetch("read_claims", written[:1]) else None

        try:
            return self._database.write(work, settle)
        except Conflict:
            # An operator set NextRunTime back to a slot that was run before: it becomes a further attempt of that slot.
            return self._database.write(lambda session: work(session, renumbered=True), settle)

    def mark_published(self, published: Iterable[tuple[Claim, float]]) -> set[str]:
        """Record what the broker confirmed, with the seconds that each may stay queued.

        Returns the run ids marked; the others were started or lost meanwhile, and neither is moved backwards.
        """
        rows = [(c.job_id, c.run_id, c.claim_id, c.fence, seconds) for c, seconds in published]
        return {row[0] for row in self._database.fetch("mark_published", sorted(rows, key=_by_run))} if rows else set()

    def mark_dispatched(self, claims: Iterable[Claim]) -> set[str]:
        """Record slots that were fired and forgotten: their jobs go on at once."""
        return self._release_claims(claims, Ending(DISPATCHED))

    def give_back(self, claims: Iterable[Claim], reason: str) -> set[str]:
        """Give back what was not published for certain, unless a worker has started it meanwhile."""
        return self._release_claims(claims, given_back(reason))

    def ended(self, batch_size: int, grace_seconds: float = 0.0) -> list[HeldLease]:
        """Leases that ended so long ago or longer, of leased and of overlapping runs."""
        scope = {"namespace": self._namespace, "grace_seconds": grace_seconds, "batch_size": batch_size}
        found = [HeldLease._make(row) for row in self._database.read("read_ended", **scope)]
        if len(found) < batch_size:
            scope["batch_size"] = batch_size - len(found)
            found += [HeldLease._make(row) for row in self._database.read("read_ended_held", **scope)]
        return found

    def reclaim(self, endings: Iterable[tuple[HeldLease, Ending]], grace_seconds: float = 0.0) -> set[str]:
        """Take ended leases from their holders; those that were extended meanwhile are left alone."""
        releases = [Release(lease.job_id, lease.run_id, lease.claim_id, lease.fence, end) for lease, end in endings]
        return release(self._database, releases, only_ended=True, grace_seconds=grace_seconds)

    def extend_queued(self, waiting: Iterable[tuple[HeldLease, float]]) -> set[str]:
        """Give queued slots a later deadline; the run ids returned are this beat's to publish again."""
        rows = [(w.job_id, w.run_id, w.claim_id, w.fence, seconds) for w, seconds in waiting]
        if not rows:
            return set()
        return {row[0] for row in self._database.fetch("extend_queued", sorted(rows, key=_by_run), beat=self._beat)}

    def free_strays(self, lock_seconds: float) -> list[str]:
        """Free locks that stand for no run; returns the names of the jobs that are free again."""
        found = self._database.fetch("free_strays", namespace=self._namespace, lock_seconds=lock_seconds)
        return [name for _, name, locked_by in found if locked_by is None]

    def next_wake(self, code_keys: Sequence[str] = ()) -> Wake:
        """When some beat has something to do."""
        rows = self._database.read("read_next", namespace=self._namespace, code_keys=list(code_keys))
        return Wake._make(rows[0])

    def changes(self) -> int:
        """The counter that grows with every change made through this package."""
        rows = self._database.read("read_changes", namespace=self._namespace)
        return int(rows[0][0]) if rows else 0

    def loose_rows(self, batch_size: int, after_id: str = "") -> list[LooseRow]:
        """Rows that need attention: without a next run, in another form of time, in quarantine, to be deleted."""
        rows = self._database.read(
            "read_attention", namespace=self._namespace, batch_size=batch_size, after_id=after_id
        )
        return [LooseRow._make(row) for row in rows]

    def mend(self, mends: Iterable[Mend]) -> set[str]:
        """Write what was found out about loose rows; rows that changed meanwhile are left for the next look."""
        rows = sorted(tuple(mend) for mend in mends)
        return {row[0] for row in self._database.fetch("mend_jobs", rows)} if rows else set()

    def delete_requested(self, job_ids: Iterable[str]) -> set[str]:
        """Delete the jobs whose deletion was asked for and whose run has ended."""
        rows = [(job_id,) for job_id in sorted(job_ids)]
        return {row[0] for row in self._database.fetch("delete_requested", rows)} if rows else set()

    def _due(self, session: Session, batch_size: int, code_keys: Sequence[str]) -> list[DueJob]:
        scope = {"namespace": self._namespace, "code_keys": list(code_keys)}
        due = [DueJob._make(row) for row in session.fetch("read_due", batch_size=batch_size, **scope)]
        if len(due) < batch_size:
            taken = {job.job_id for job in due}
            for row in session.fetch("read_outbox", batch_size=batch_size - len(due), **scope):
                job = DueJob._make(row)
                if job.job_id not in taken:  # one slot of a job at a time; the others wait until it is free
                    taken.add(job.job_id)
                    due.append(job)
        return due

    def _write_claims(self, session: Session, claims: list[Claim], dispatch_seconds: float) -> set[str]:
        if not claims:
            return set()
        rows = [(c.job_id, c.fence - 1, c.run_id, c.claim_id, c.slot.planned_at) for c in claims]
        won = {row[0] for row in session.fetch("claim_jobs", rows, beat=self._beat, dispatch_seconds=dispatch_seconds)}
        new = [_new_run(c) for c in claims if not c.slot.same_run]
        if new:
            session.fetch("insert_runs", new, beat=self._beat)
        again = [
            (c.run_id, c.claim_id, c.slot.delay_seconds, c.lease_seconds, c.max_retries, c.exclusive)
            for c in claims
            if c.slot.same_run
        ]
        if again:
            session.fetch("reopen_runs", again, beat=self._beat)
        return won

    def _release_claims(self, claims: Iterable[Claim], ending: Ending) -> set[str]:
        releases = [Release(c.job_id, c.run_id, c.claim_id, c.fence, ending) for c in claims]
        return release(self._database, releases, only_unstarted=True)


# Every statement locks the jobs in the order of their runs, so that no two of them wait for each other.
_by_run = itemgetter(1)


def _new_run(c: Claim) -> tuple[object, ...]:
    slot = c.slot
    return (
        c.run_id,
        c.job_id,
        c.claim_id,
        slot.kind,
        slot.scheduled_for,
        slot.attempt,
        slot.delay_seconds,
        c.lease_seconds,
        c.max_retries,
        slot.failures,
        slot.lost_leases,
        c.exclusive,
        slot.advances,
        slot.continues,
    )


def _attempts(session: Session, due: Sequence[DueJob]) -> dict[str, Attempt]:
    wanted = [(job.run_id,) for job in due if job.run_id is not None]
    return {row[0]: Attempt._make(row) for row in session.fetch("read_attempts", wanted)} if wanted else {}


def _write_rest(session: Session, plan: Plan, won: set[str]) -> None:
    lost = {claim.job_id for claim in plan.claims if claim.job_id not in won}
    gaps = [gap for gap in plan.gaps if gap.job_id not in lost]
    for block, rows in (
        ("leave_attempts", [left[:2] for left in plan.left if left.job_id not in lost]),
        ("insert_gaps", gaps),
        ("advance_jobs", plan.advances),
        ("quarantine_jobs", [(q.job_id, q.fence, q.reason) for q in plan.quarantines]),
    ):
        if rows:
            session.fetch(block, rows)


def _renumbered(session: Session, plan: Plan) -> Plan:
    """The same plan, where each new row counts on from the attempts that its slot has already."""

    claims = [(c, (c.job_id, c.slot.scheduled_for, c.slot.kind)) for c in plan.claims]
    gaps = [(gap, (gap.job_id, gap.first, SCHEDULE)) for gap in plan.gaps]
    slots = sorted({key for _, key in (*claims, *gaps)})
    taken = {row[:3]: row[3] + 1 for row in session.fetch("read_attempt_numbers", slots)} if slots else {}
    return plan._replace(
        claims=[
            c._replace(slot=c.slot._replace(attempt=taken[key])) if key in taken and not c.slot.same_run else c
            for c, key in claims
        ],
        gaps=[gap._replace(attempt=taken.get(key, 0)) for gap, key in gaps],
    )
