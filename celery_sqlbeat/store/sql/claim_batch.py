"""Read and write the rows of one claim.

No condition is decided here: the plan says what becomes of a row, and the statement, which compares
the row with what was read, who wins it.
"""

from datetime import datetime
from typing import Any, TypeVar

from celery_sqlbeat.model import (
    SCHEDULE,
    Attempt,
    Claim,
    Claimable,
    Claimed,
    DueBatch,
    DueJob,
    HeldLease,
    JobRecord,
    Plan,
)
from celery_sqlbeat.model.lifecycle import LONGEST_QUEUED_SECONDS
from celery_sqlbeat.model.one_offs import ONE_OFF
from celery_sqlbeat.store.sql.engine import Database
from celery_sqlbeat.store.sql.session import Call, Session

Marked = TypeVar("Marked", DueJob, HeldLease, JobRecord)


def without_mark(row: Marked) -> Marked:
    """Return a row without the code key that keeps one-offs from releases that do not know them."""
    return row._replace(code_key=None) if row.code_key == ONE_OFF else row


def scope_of(namespace: str, claimable: Claimable) -> dict[str, Any]:
    """Return the parameters that restrict a statement to the jobs that this beat may claim."""
    return {
        "namespace": namespace,
        "code_owner": claimable.owner,
        "code_keys": [*claimable.code_keys, ONE_OFF],
        "other_entries": list(claimable.other_entries),
    }


def read_due(database: Database, scope: dict[str, Any], claimable: Claimable) -> DueBatch:
    """Read due jobs, and the attempts that their next ones continue."""
    scope["queued_seconds"] = LONGEST_QUEUED_SECONDS
    # The outbox first: the schedule of a job that runs longer than its interval is due whenever it
    # is free. One slot of a job at a time; the others wait until it is free.
    jobs: dict[str, DueJob] = {}
    for rows in database.read_together([Call("read_outbox", None, scope), Call("read_due", None, scope)]):
        for job in map(without_mark, map(DueJob._make, rows)):
            if claimable.includes(job.job_name, job.code_owner):
                jobs.setdefault(job.job_id, job)
    due = list(jobs.values())[: scope["batch_size"]]
    wanted = sorted({(run_id,) for job in due for run_id in (job.left_run_id, job.run_id) if run_id is not None})
    if not wanted:
        return DueBatch(due)
    attempts = {row[0]: Attempt._make(row) for row in database.read("read_attempts", wanted)}
    # SQL Server tells of an attempt that somebody keeps locked only that it is there.
    locked = {run_id for run_id, attempt in attempts.items() if attempt.state is None}
    return DueBatch([job for job in due if not locked & {job.left_run_id, job.run_id}], attempts)


def write_plan(session: Session, due: DueBatch, plan: Plan, beat: str, dispatch_seconds: float) -> Claimed:
    """Write a plan; each row only where its job and attempts are as they were read."""
    seen = {job.job_id: (job, *_prior(due, job)) for job in due.jobs}
    claims = [
        (*_expected(*seen[c.job_id]), c.run_id, c.claim_id, c.slot.planned_at, c.replace_at, seen[c.job_id][0].now)
        for c in plan.claims
    ]
    advances = [(*_expected(*seen[a.job_id]), a.next_slot) for a in plan.advances]
    new = [_new_run(c) for c in plan.claims if not c.slot.same_run]
    again = [_reopened_run(c) for c in plan.claims if c.slot.same_run]
    aside = [(q.job_id, q.fence, q.version, q.reason) for q in plan.quarantines]
    claim = {"beat": beat, "dispatch_seconds": dispatch_seconds}
    won, advanced, quarantined, *_ = _write(
        session,
        Call("claim_jobs", claims, claim),
        Call("advance_jobs", advances),
        Call("quarantine_jobs", aside),
        # Runs of jobs that the first of these statements did not claim are not written.
        Call("insert_runs", new, {"beat": beat}),
        Call("reopen_runs", again, {"beat": beat}),
    )
    moved = won | advanced
    gaps = [gap for gap in plan.gaps if gap.job_id in moved]
    left = [attempt[:2] for attempt in plan.left if attempt.job_id in moved]
    _write(session, Call("leave_attempts", left), Call("insert_gaps", gaps))
    planned = {c.job_id for c in plan.claims} | {a.job_id for a in plan.advances} | {q.job_id for q in plan.quarantines}
    return Claimed(
        [c for c in plan.claims if c.job_id in won],
        gaps,
        [q for q in plan.quarantines if q.job_id in quarantined],
        planned - moved - quarantined,
        len(advanced),
    )


def _write(session: Session, *calls: Call) -> list[set[str]]:
    """Run the blocks that have rows; return the ids that each one gives."""
    answers = iter(session.fetch_together([call for call in calls if call.rows]))
    return [{row[0] for row in next(answers)} if call.rows else set() for call in calls]


def _prior(due: DueBatch, job: DueJob) -> tuple[Attempt | None, Attempt | None]:
    """Return the attempts that the plan of a job was made with."""
    return due.attempts.get(job.run_id or ""), due.attempts.get(job.left_run_id or "")


def _expected(job: DueJob, waiting: Attempt | None, left: Attempt | None) -> tuple[object, ...]:
    """Return what a job and its attempts are compared with."""
    return (
        job.job_id,
        job.fence,
        job.version,
        *(at if isinstance(at, datetime) else None for at in (job.next_run_time, job.retry_at)),
        *((waiting.run_id, waiting.state) if waiting else (None, None)),
        *((left.run_id, left.state) if left else (None, None)),
    )


def renumber(session: Session, plan: Plan) -> Plan:
    """Return the plan with new rows numbered after the attempts that their slots have already."""
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


def _new_run(claim: Claim) -> tuple[object, ...]:
    slot = claim.slot
    return (
        claim.run_id,
        claim.job_id,
        claim.claim_id,
        slot.kind,
        slot.scheduled_for,
        slot.attempt,
        slot.delay_seconds,
        claim.lease_seconds,
        claim.max_retries,
        slot.failures,
        slot.lost_leases,
        claim.exclusive,
        slot.advances,
        slot.continues,
        claim.max_runtime,
        claim.max_parallel,
    )


def _reopened_run(claim: Claim) -> tuple[object, ...]:
    slot = claim.slot
    return (
        claim.run_id,
        claim.claim_id,
        slot.delay_seconds,
        claim.lease_seconds,
        claim.max_retries,
        claim.exclusive,
        claim.max_runtime,
        claim.max_parallel,
        slot.attempt,
        slot.failures,
        slot.lost_leases,
    )


def joined(first: Claimed, second: Claimed) -> Claimed:
    """Join two parts of a batch."""
    return Claimed(
        first.claims + second.claims,
        first.gaps + second.gaps,
        first.quarantines + second.quarantines,
        first.missed | second.missed,
        first.advanced + second.advanced,
    )
