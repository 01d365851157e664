"""What a beat does to the database: claim, mark, give back, take over what ended, and ask when to wake."""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import chain
from operator import itemgetter
from typing import Any, TypeVar

from celery_sqlbeat.errors import DatabaseAway, RowRefused, StoreError, TransientError
from celery_sqlbeat.lifecycle import (
    CANCELLED,
    DISPATCHED,
    LONGEST_QUEUED_SECONDS,
    REPLACED_REASON,
    SKIPPED,
    Ending,
    given_back,
)
from celery_sqlbeat.model import (
    LONGEST_QUARANTINE,
    SCHEDULE,
    Attempt,
    Claim,
    Claimable,
    DueJob,
    HeldLease,
    LooseRow,
    Mend,
    Plan,
    Quarantine,
    ReplaceableRun,
)
from celery_sqlbeat.store.database import Conflict, Database
from celery_sqlbeat.store.halving import in_halves
from celery_sqlbeat.store.protocol import ALL_JOBS, FIRST_ID, Answer, Claimed, Plans, Written
from celery_sqlbeat.store.run_store import Release, delete_free, release
from celery_sqlbeat.store.session import Row, Session
from celery_sqlbeat.store.wake import Wake

logger = logging.getLogger(__name__)

R = TypeVar("R", bound=tuple[Any, ...])


class SqlBeatStore:
    """The BeatStore of one namespace in a SQL database."""

    def __init__(self, database: Database, namespace: str, beat: str) -> None:
        self._database = database
        self._namespace = namespace
        self._beat = beat
        self._unheard: list[Claim] = []
        """Claims whose commit had no answer, and nobody could ask what became of it."""

    def claim(self, plan: Plans, batch_size: int, dispatch_seconds: float, claimable: Claimable = ALL_JOBS) -> Claimed:
        self._give_back_unheard()
        seen: list[DueJob] = []
        all_of_them = partial(self._claim, plan, batch_size, dispatch_seconds, claimable, seen)
        try:
            return all_of_them()
        except RowRefused as error:
            return self._claim_in_halves(all_of_them, tuple(seen), error)

    def _claim_in_halves(
        self, claim: Callable[[Collection[str]], Claimed], due: Sequence[DueJob], error: RowRefused
    ) -> Claimed:
        """The database refuses some row of the batch: claim the others, and set that one aside."""
        parts = [Claimed([], Plan([], [], [], [], []), {})]

        def write(part: Sequence[DueJob]) -> None:
            try:
                parts.append(claim({job.job_id for job in part}))
            except TransientError:
                if not any(part.claims for part in parts):
                    raise
                # What is claimed by now goes out; the rest stays due.

        def set_aside(job: DueJob, why: RowRefused) -> None:
            quarantine = Quarantine(job.job_id, job.job_name, job.fence, refusal(str(why)))
            if job.job_id in self.mend([], [quarantine]).done:
                parts.append(Claimed([], Plan([], [], [], [], [quarantine]), {}))
            else:
                logger.error("job %s cannot be claimed, nor set aside: %s", job.job_name, quarantine.reason)

        in_halves(due, write, set_aside, error)
        return _joined(parts, {job.job_id: job.job_name for job in due})

    def _claim(
        self,
        plan: Plans,
        batch_size: int,
        dispatch_seconds: float,
        claimable: Claimable,
        seen: list[DueJob],
        among: Collection[str] | None = None,
    ) -> Claimed:
        """`among`: nothing but these jobs; `seen` is told which were due."""
        attempted: list[Claimed] = []

        def work(session: Session, renumbered: bool = False) -> Claimed:
            attempted.clear()
            due = self._due(session, batch_size, claimable)
            if among is not None:
                due = [job for job in due if job.job_id in among]
            due = _unlocked(session, due)
            seen[:] = due
            made = plan(due, _attempts(session, due), partial(_beside, session))
            if renumbered:
                made = _renumbered(session, made)
            won = self._write_claims(session, made.claims, dispatch_seconds)
            _write_rest(session, made, won)
            claimed = Claimed(
                [claim for claim in made.claims if claim.job_id in won], made, {job.job_id: job.job_name for job in due}
            )
            attempted.append(claimed)
            return claimed

        def settle(session: Session) -> Claimed | None:
            if not attempted:
                return None
            written = [(claim.run_id, claim.claim_id) for claim in attempted[0].claims]
            return attempted[0] if written and session.fetch("read_claims", written[:1]) else None

        try:
            try:
                return self._database.write(work, settle)
            except Conflict:
                # An operator set NextRunTime back to a slot that was run before: it becomes a further attempt of it.
                return self._database.write(lambda session: work(session, renumbered=True), settle)
        except TransientError:
            self._unheard += attempted[0].claims if attempted else []
            raise

    def _give_back_unheard(self) -> None:
        """A claim that was committed unheard was never published: it must not wait for the end of its time."""
        claims, self._unheard = self._unheard, []
        if not claims:
            return
        try:
            self.give_back(claims, "the answer to the claim was lost")
        except DatabaseAway:
            self._unheard = claims
            raise
        except StoreError as error:  # one of their rows is locked: they are taken over when their time is over
            logger.info("%d claims without an answer are not given back: %s", len(claims), error)

    def mark_published(self, published: Iterable[tuple[Claim, float]]) -> Answer:
        rows = [(c.job_id, c.run_id, c.claim_id, c.fence, seconds) for c, seconds in published]
        return self._in_parts(sorted(rows, key=_by_run), self._mark_published, "was not marked as published")

    def _mark_published(self, rows: Sequence[Row]) -> Answer:
        answer = self._database.ask("mark_published", rows)
        return lambda: {row[0] for row in answer()}

    def unmarked(self, claims: Iterable[Claim]) -> set[str]:
        rows = sorted(((c.job_id, c.run_id, c.claim_id, c.fence) for c in claims), key=_by_run)
        return {row[0] for row in self._database.read("read_unmarked", rows)} if rows else set()

    def mark_dispatched(self, claims: Iterable[Claim], reason: str | None = None) -> Answer:
        return self._release_claims(claims, Ending(DISPATCHED, reason))

    def give_back(self, claims: Iterable[Claim], reason: str, seconds: float = 0.0) -> set[str]:
        return self._release_claims(claims, given_back(reason, seconds))()

    def fail(self, refused: Iterable[tuple[Claim, Ending]]) -> set[str]:
        releases = [Release(c.job_id, c.run_id, c.claim_id, c.fence, ending) for c, ending in refused]
        return release(self._database, self._namespace, releases, only_unstarted=True)()

    def skip(self, claims: Iterable[Claim], reason: str) -> set[str]:
        return self._release_claims(claims, Ending(SKIPPED, reason))()

    def cancel(self, claims: Iterable[Claim], reason: str) -> set[str]:
        return self._release_claims(claims, Ending(CANCELLED, reason))()

    def ended(self, batch_size: int, grace_seconds: float = 0.0) -> list[HeldLease]:
        scope = {"namespace": self._namespace, "grace_seconds": grace_seconds, "batch_size": batch_size}
        found = [HeldLease._make(row) for row in self._database.read("read_ended", **scope)]
        if len(found) < batch_size:
            scope["batch_size"] = batch_size - len(found)
            found += [HeldLease._make(row) for row in self._database.read("read_ended_held", **scope)]
        return found

    def reclaim(self, endings: Iterable[tuple[HeldLease, Ending]], grace_seconds: float = 0.0) -> set[str]:
        releases = [Release(lease.job_id, lease.run_id, lease.claim_id, lease.fence, end) for lease, end in endings]
        free = partial(release, self._database, self._namespace, only_ended=True, grace_seconds=grace_seconds)
        return self._in_parts(releases, free, "was not taken over")()

    def replaceable(self, batch_size: int, owner: str = "") -> list[ReplaceableRun]:
        scope = {"namespace": self._namespace, "code_owner": owner}
        found = self._database.read("read_replaceable", batch_size=batch_size, **scope)
        return [ReplaceableRun._make(row) for row in found]

    def replace(self, runs: Iterable[ReplaceableRun]) -> set[str]:
        ending = Ending(CANCELLED, REPLACED_REASON)
        releases = [Release(one.job_id, one.run_id, one.claim_id, one.fence, ending) for one in runs]
        return self._in_parts(releases, partial(release, self._database, self._namespace), "was not replaced")()

    def postpone_replacing(self, runs: Iterable[tuple[ReplaceableRun, datetime | None]]) -> None:
        rows = [(one.job_id, one.run_id, one.claim_id, one.fence, at) for one, at in runs]
        if rows:
            self._database.fetch("postpone_replacing", sorted(rows, key=_by_run))

    def note_check_ins(self, check_ins: Iterable[tuple[Claim, str]]) -> set[str]:
        rows = sorted((c.run_id, c.claim_id, check_in) for c, check_in in check_ins)
        return {row[0] for row in self._database.fetch("note_check_ins", rows)}

    def check_ins(self, run_ids: Iterable[str]) -> dict[str, str]:
        rows = [(run_id,) for run_id in sorted(run_ids)]
        found: list[Row] = self._database.read("read_check_ins", rows)
        return {row[0]: row[1] for row in found}

    def extend_queued(self, waiting: Iterable[tuple[HeldLease, float]]) -> set[str]:
        rows = [(w.job_id, w.run_id, w.claim_id, w.fence, w.republishes, seconds) for w, seconds in waiting]
        return self._in_parts(sorted(rows, key=_by_run), self._extend_queued, "has no later deadline")()

    def _extend_queued(self, rows: Sequence[Row]) -> Answer:
        return lambda: {row[0] for row in self._database.fetch("extend_queued", rows, beat=self._beat)}

    def free_strays(self, lock_seconds: float) -> list[str]:
        found = self._database.fetch("free_strays", namespace=self._namespace, lock_seconds=lock_seconds)
        return [name for _, name, locked_by in found if locked_by is None]

    def next_wake(self, claimable: Claimable = ALL_JOBS) -> Wake:
        self._give_back_unheard()
        rows = self._database.read("read_next", **self._scope(claimable))
        return Wake._make(rows[0])

    def starts_after(self, instant: datetime, claimable: Claimable = ALL_JOBS) -> datetime | None:
        rows = self._database.read("read_later", **self._scope(claimable), after=instant)
        return min((at for at in rows[0] if at is not None), default=None)

    def changes(self) -> int:
        rows = self._database.read("read_changes", namespace=self._namespace)
        return int(rows[0][0]) if rows else 0

    def loose_rows(self, batch_size: int, after_id: str = FIRST_ID, owner: str = "") -> list[LooseRow]:
        scope = {"namespace": self._namespace, "code_owner": owner}
        rows = self._database.read("read_attention", batch_size=batch_size, after_id=after_id, **scope)
        return [LooseRow._make(row) for row in rows]

    def mend(self, mends: Iterable[Mend], quarantines: Iterable[Quarantine] = ()) -> Written:
        written = Written(set(), {})
        for block, rows in (
            ("mend_jobs", sorted(tuple(mend) for mend in mends)),
            ("quarantine_jobs", sorted((q.job_id, q.fence, q.reason) for q in quarantines)),
        ):
            self._write(written, rows, partial(self._fetch_ids, block))
        return written

    def delete_requested(self, job_ids: Iterable[str]) -> Written:
        written = Written(set(), {})
        rows = [(job_id,) for job_id in sorted(job_ids)]
        self._write(
            written,
            rows,
            lambda part: self._database.write(lambda session: delete_free(session, self._namespace, part)),
        )
        return written

    def _write(self, written: Written, rows: Sequence[Row], write: Callable[[Sequence[Row]], set[str]]) -> None:
        """Write rows that begin with the id of their job, but for those that the database refuses."""
        in_halves(
            rows,
            lambda part: written.done.update(write(part)),
            lambda row, why: written.refused.update({row[0]: refusal(str(why))}),
        )

    def _fetch_ids(self, block: str, rows: Sequence[Row]) -> set[str]:
        return {row[0] for row in self._database.fetch(block, rows)}

    def _scope(self, claimable: Claimable) -> dict[str, Any]:
        return {
            "namespace": self._namespace,
            "code_owner": claimable.owner,
            "code_keys": list(claimable.code_keys),
            "other_entries": list(claimable.other_entries),
        }

    def _due(self, session: Session, batch_size: int, claimable: Claimable) -> list[DueJob]:
        scope = self._scope(claimable)
        due: dict[str, DueJob] = {}
        # The outbox first: the schedule of a job that runs longer than its interval is due whenever it is free.
        for row in session.fetch("read_outbox", batch_size=batch_size, **scope):
            job = DueJob._make(row)
            if claimable.includes(job.job_name, job.code_owner):
                due.setdefault(job.job_id, job)  # one slot of a job at a time; the others wait until it is free
        for row in session.fetch("read_due", batch_size=batch_size - len(due), **scope):
            job = DueJob._make(row)
            if claimable.includes(job.job_name, job.code_owner):
                due.setdefault(job.job_id, job)
        return list(due.values())

    def _write_claims(self, session: Session, claims: list[Claim], dispatch_seconds: float) -> set[str]:
        if not claims:
            return set()
        rows = [(c.job_id, c.fence - 1, c.run_id, c.claim_id, c.slot.planned_at, c.replace_at) for c in claims]
        won = {row[0] for row in session.fetch("claim_jobs", rows, beat=self._beat, dispatch_seconds=dispatch_seconds)}
        new = [_new_run(c) for c in claims if not c.slot.same_run]
        if new:
            session.fetch("insert_runs", new, beat=self._beat)
        again = [
            (
                c.run_id,
                c.claim_id,
                c.slot.delay_seconds,
                c.lease_seconds,
                c.max_retries,
                c.exclusive,
                c.max_runtime,
                c.max_parallel,
            )
            for c in claims
            if c.slot.same_run
        ]
        if again:
            session.fetch("reopen_runs", again, beat=self._beat)
        return won

    def _release_claims(self, claims: Iterable[Claim], ending: Ending) -> Answer:
        releases = [Release(c.job_id, c.run_id, c.claim_id, c.fence, ending) for c in claims]
        free = partial(release, self._database, self._namespace, only_unstarted=True)
        return self._in_parts(releases, free, "was not released")

    def _in_parts(self, rows: Sequence[R], write: Callable[[Sequence[R]], Answer], failure: str) -> Answer:
        """Write rows whose second value is a run, but for those that the database refuses."""
        if not rows:
            return set
        answer = write(rows)

        def answered() -> set[str]:
            try:
                return answer()
            except RowRefused as error:
                done: set[str] = set()

                def tell(row: R, why: RowRefused) -> None:
                    logger.error("run %s %s: the database refuses it: %s", row[1], failure, why)

                in_halves(rows, lambda part: done.update(write(part)()), tell, error)
                return done

        return answered


def refusal(text: str) -> str:
    """Why a job is set aside that the database does not take."""
    return f"the database refuses this row: {text}"[:LONGEST_QUARANTINE]


def _joined(parts: Sequence[Claimed], names: Mapping[str, str]) -> Claimed:
    """What the parts of a batch became, as one."""
    plan = Plan(*(list(chain.from_iterable(some)) for some in zip(*(part.plan for part in parts), strict=True)))
    return Claimed([claim for part in parts for claim in part.claims], plan, names)


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
        c.max_runtime,
        c.max_parallel,
    )


def _beside(session: Session, job_id: str) -> int:
    """How many runs of a job go on, or are on their way to a worker."""
    return int(session.fetch("read_beside", job_id=job_id, queued_seconds=LONGEST_QUEUED_SECONDS)[0][0])


def _prior(due: Sequence[DueJob]) -> list[tuple[str]]:
    """The attempts that the next ones of these jobs go on with."""
    return [(run_id,) for job in due for run_id in (job.left_run_id, job.run_id) if run_id is not None]


def _unlocked(session: Session, due: list[DueJob]) -> list[DueJob]:
    """The jobs whose attempts can be written without waiting; one that somebody keeps locked must not stop them."""
    prior = sorted(_prior(due))
    locked = {row[0] for row in session.fetch("lock_attempts", prior)} if prior else set()
    return [job for job in due if not locked & {job.left_run_id, job.run_id}] if locked else due


def _attempts(session: Session, due: Sequence[DueJob]) -> dict[str, Attempt]:
    wanted = _prior(due)
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
