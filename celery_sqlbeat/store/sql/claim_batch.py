"""Read and write the rows of one claim, inside its transaction.

No condition is decided here: the plan says what becomes of a row, and the fence in the statement
who wins it.
"""

from collections.abc import Sequence
from typing import Any

from celery_sqlbeat.model import SCHEDULE, Attempt, Claim, Claimable, DueJob, Plan
from celery_sqlbeat.model.lifecycle import LONGEST_QUEUED_SECONDS
from celery_sqlbeat.store.sql.session import Session


def scope_of(namespace: str, claimable: Claimable) -> dict[str, Any]:
    """Return the parameters that restrict a statement to the jobs that this beat may claim."""
    return {
        "namespace": namespace,
        "code_owner": claimable.owner,
        "code_keys": list(claimable.code_keys),
        "other_entries": list(claimable.other_entries),
    }


def read_due(session: Session, namespace: str, batch_size: int, claimable: Claimable) -> list[DueJob]:
    """Read due jobs: extra slots of the outbox first, then schedules."""
    scope = scope_of(namespace, claimable)
    due: dict[str, DueJob] = {}
    # The outbox first: the schedule of a job that runs longer than its interval is due whenever it
    # is free.
    for row in session.fetch("read_outbox", batch_size=batch_size, **scope):
        job = DueJob._make(row)
        if claimable.includes(job.job_name, job.code_owner):
            due.setdefault(job.job_id, job)  # one slot of a job at a time; the others wait until it is free
    for row in session.fetch("read_due", batch_size=batch_size - len(due), **scope):
        job = DueJob._make(row)
        if claimable.includes(job.job_name, job.code_owner):
            due.setdefault(job.job_id, job)
    return list(due.values())


def without_locked(session: Session, due: list[DueJob]) -> list[DueJob]:
    """Leave out jobs whose attempts somebody keeps locked: the others do not wait for them."""
    prior = sorted(_prior(due))
    locked = {row[0] for row in session.fetch("lock_attempts", prior)} if prior else set()
    return [job for job in due if not locked & {job.left_run_id, job.run_id}] if locked else due


def read_attempts(session: Session, due: Sequence[DueJob]) -> dict[str, Attempt]:
    """Read the attempts that the next ones of these jobs continue, by run id."""
    wanted = _prior(due)
    return {row[0]: Attempt._make(row) for row in session.fetch("read_attempts", wanted)} if wanted else {}


def count_open(session: Session, job_id: str) -> int:
    """Count the runs of a job that go on, or are on their way to a worker."""
    return int(session.fetch("read_beside", job_id=job_id, queued_seconds=LONGEST_QUEUED_SECONDS)[0][0])


def write_claims(session: Session, claims: list[Claim], beat: str, dispatch_seconds: float) -> set[str]:
    """Claim jobs on their fences, write the runs of those won, and return their ids."""
    if not claims:
        return set()
    rows = [(c.job_id, c.fence - 1, c.run_id, c.claim_id, c.slot.planned_at, c.replace_at) for c in claims]
    won = {row[0] for row in session.fetch("claim_jobs", rows, beat=beat, dispatch_seconds=dispatch_seconds)}
    new = [_new_run(c) for c in claims if not c.slot.same_run]
    if new:
        session.fetch("insert_runs", new, beat=beat)
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
        session.fetch("reopen_runs", again, beat=beat)
    return won


def write_rest(session: Session, plan: Plan, won: set[str]) -> None:
    """Write what the plan holds beside its claims; not for jobs that another beat has claimed."""
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


def _prior(due: Sequence[DueJob]) -> list[tuple[str]]:
    """Return the ids of the attempts that the next ones of these jobs continue."""
    return [(run_id,) for job in due for run_id in (job.left_run_id, job.run_id) if run_id is not None]


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
