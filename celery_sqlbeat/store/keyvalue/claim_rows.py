"""What becomes of the rows of a job that a beat claims, moves on or sets aside."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

from celery_sqlbeat.model import (
    FINISHED,
    REPLACED,
    SCHEDULE,
    SENT_BACK,
    Advance,
    Attempt,
    Claim,
    DueBatch,
    DueJob,
    GapRecord,
    LeftAttempt,
    Plan,
    Quarantine,
)
from celery_sqlbeat.model.lifecycle import CANCELLED, CLAIMED, REPLACED_REASON, RETRY, RUNNING, SCHEDULED, SKIPPED
from celery_sqlbeat.model.one_offs import ONE_OFF
from celery_sqlbeat.store.keyvalue.rows import Key, Row, Scan
from celery_sqlbeat.store.keyvalue.tables import JOB, RUN, after, kept, micros, runs_index, score
from celery_sqlbeat.store.keyvalue.units import View

UNLOCKED_BY_HAND = "unlocked by hand"


class PlannedJob(NamedTuple):
    """What a plan says of one job."""

    job: DueJob
    prior: Sequence[Attempt]
    """The attempts that it was planned with."""
    claim: Claim | None
    advance: Advance | None
    quarantine: Quarantine | None
    gaps: Sequence[GapRecord]
    left: Sequence[LeftAttempt]

    def keys(self) -> Iterator[Key]:
        """Return the rows to read."""
        yield JOB, self.job.job_id
        yield from ((RUN, attempt.run_id) for attempt in self.prior)
        yield from ((RUN, attempt.run_id) for attempt in self.left)
        if self.claim is not None and self.claim.slot.continues is not None:
            yield RUN, self.claim.slot.continues


class MovedJob(NamedTuple):
    """What was written of one job."""

    claim: Claim | None = None
    gaps: Sequence[GapRecord] = ()
    quarantine: Quarantine | None = None
    is_advanced: bool = False


def parts_of(due: DueBatch, plan: Plan) -> list[PlannedJob]:
    """Return what the plan says of each job."""
    claims, advances = {c.job_id: c for c in plan.claims}, {a.job_id: a for a in plan.advances}
    quarantines = {q.job_id: q for q in plan.quarantines}
    seen = {job.job_id: job for job in due.jobs}
    return [
        PlannedJob(
            seen[job_id],
            [due.attempts[run_id] for run_id in _prior_ids(seen[job_id]) if run_id in due.attempts],
            claims.get(job_id),
            advances.get(job_id),
            quarantines.get(job_id),
            [gap for gap in plan.gaps if gap.job_id == job_id],
            [left for left in plan.left if left.job_id == job_id],
        )
        for job_id in dict.fromkeys((*claims, *advances, *quarantines))
    ]


def _prior_ids(job: DueJob) -> Iterator[str]:
    yield from (run_id for run_id in (job.run_id, job.left_run_id) if run_id is not None)


def write_part(view: View, part: PlannedJob, beat: str, dispatch_seconds: float) -> MovedJob | None:
    """Claim, advance or set aside one job; None where it is not as it was read."""
    job_id = part.job.job_id
    job = view.row(JOB, job_id)
    if job is None or not is_free_at(job, part.job.fence, part.job.version):
        return None
    if part.quarantine is not None:
        job["quarantine"] = part.quarantine.reason
        return MovedJob(quarantine=part.quarantine)
    if not _is_as_read(view, job, part):
        return None
    numbers = _Numbers(view, job_id, job)
    claim = part.claim
    if claim is not None:
        if not claim.slot.same_run:
            slot = claim.slot
            number = numbers.free(slot.scheduled_for, slot.kind, slot.attempt)
            if number != slot.attempt:
                claim = claim._replace(slot=slot._replace(attempt=number))
        _take(view, job, claim, part.job, beat, dispatch_seconds)
    elif part.advance is not None:
        job["next_run_time"] = kept(part.advance.next_slot)
        if part.advance.next_slot is None:
            job |= {"enabled": 0, "disabled_reason": FINISHED}
    gaps = [gap._replace(attempt=numbers.free(gap.first, SCHEDULE, gap.attempt)) for gap in part.gaps]
    for left in part.left:
        _leave(view, left)
    for gap in gaps:
        view.add(RUN, gap.run_id, gap_row(gap, job, view.now))
    return MovedJob(claim, gaps, is_advanced=part.advance is not None)


def is_free_at(job: Row, fence: int, version: int) -> bool:
    """Return whether no run holds a job, and none began nor was it changed since it was so."""
    return bool(job["fence"] == fence and job["version"] == version) and job.get("locked_by") is None


def _is_as_read(view: View, job: Row, part: PlannedJob) -> bool:
    read = part.job
    return (
        job.get("quarantine") is None
        and (bool(job.get("enabled")) or job.get("disabled_reason") == FINISHED)
        and job.get("next_run_time") == kept(read.next_run_time)
        and job.get("retry_at") == kept(read.retry_at)
        and all((view.row(RUN, prior.run_id) or {}).get("state") == prior.state for prior in part.prior)
    )


class _Numbers:
    """The numbers of new attempts; a slot that ran before, and was set again by hand, has some."""

    def __init__(self, view: View, job_id: str, job: Row) -> None:
        self._view = view
        self._job_id = job_id
        self._job = job
        self._newest: int | None = job.get("newest_slot")

    def free(self, slot_at: datetime, kind: str, number: int) -> int:
        """Return this number, or the next one where the slot has such an attempt already."""
        slot = micros(slot_at)
        if kind == SCHEDULE and (self._newest is None or slot > self._newest):
            self._job["newest_slot"] = max(slot, self._job.get("newest_slot") or slot)
            return number
        ids = self._view.scan(Scan(runs_index(self._job_id), low=score(slot), high=score(slot))).ids
        runs = [self._view.row(RUN, run_id) or {} for run_id, _ in ids]
        taken = {run["attempt"] for run in runs if (run.get("scheduled_for"), run.get("kind")) == (slot, kind)}
        return max(taken) + 1 if number in taken else number


def _take(view: View, job: Row, claim: Claim, read: DueJob, beat: str, dispatch_seconds: float) -> None:
    """Give a job to a claim, and write its run."""
    slot, now = claim.slot, view.now
    job |= {
        "locked_by": beat,
        "locked_at": now,
        "claimed_at": micros(read.now),
        "lease_ends_at": after(now, dispatch_seconds),
        "published_at": None,
        "planned_at": kept(slot.planned_at),
        "replace_at": kept(claim.replace_at),
        "started_retry": None,
        "republishes": None,
        "fence": job["fence"] + 1,
        "run_id": claim.run_id,
        "claim_id": claim.claim_id,
        "is_parallel": 1 if claim.max_parallel is not None else job.get("is_parallel"),
    }
    claimed = {
        "state": CLAIMED,
        "prior_state": SCHEDULED,
        "attempt": slot.attempt,
        "failures": slot.failures,
        "lost_leases": slot.lost_leases,
        "fence": job["fence"],
        "claim_id": claim.claim_id,
        "claimed_by": beat,
        "claimed_at": job["claimed_at"],
        "planned_at": job["planned_at"],
        "delay_seconds": slot.delay_seconds,
        "lease_seconds": claim.lease_seconds,
        "max_retries": claim.max_retries,
        "max_runtime": claim.max_runtime,
        "exclusive": int(claim.exclusive),
        "max_parallel": claim.max_parallel,
    }
    prior = view.row(RUN, slot.continues)
    if slot.same_run:
        if prior is not None:
            prior |= claimed | dict.fromkeys(_OF_AN_ATTEMPT)
            if slot.kind == ONE_OFF:
                prior["results_ended_at"] = now  # those of earlier attempts have the same id
        return
    view.add(
        RUN,
        claim.run_id,
        {
            **claimed,
            "job_id": claim.job_id,
            "job_name": job["job_name"],
            "kind": slot.kind,
            "scheduled_for": micros(slot.scheduled_for),
            "seen_next_run_time": job.get("next_run_time") if prior is None else prior.get("seen_next_run_time"),
            "advances": int(slot.advances),
            "created_at": now,
        },
    )


_OF_AN_ATTEMPT = (
    "reason",
    "published_at",
    "started_by",
    "start_id",
    "started_at",
    "started_retry",
    "finished_at",
    "due_at",
    "error",
    "traceback",
)


def _leave(view: View, left: LeftAttempt) -> None:
    """Close an attempt that another one follows; its holder has lost it."""
    run = view.row(RUN, left.run_id)
    if run is None or run["state"] not in (RETRY, RUNNING, CLAIMED):
        return
    state, is_replaced = run["state"], left.again == REPLACED
    if is_replaced:
        run |= {"state": CANCELLED, "prior_state": state, "reason": REPLACED_REASON}
    elif state != RETRY:
        run |= {
            "state": SCHEDULED if state == CLAIMED else RETRY,
            "prior_state": state,
            "reason": UNLOCKED_BY_HAND,
        }
    run |= {
        "due_at": view.now if left.again == SENT_BACK else None,
        "finished_at": None if state == CLAIMED else run.get("finished_at") or view.now,
        "held_by": None,
        "lease_ends_at": None,
    }


def gap_row(gap: GapRecord, job: Row, now: int) -> Row:
    """Return the row of slots that were skipped."""
    return {
        "job_id": gap.job_id,
        "job_name": job["job_name"],
        "kind": SCHEDULE,
        "scheduled_for": micros(gap.first),
        "last_slot": micros(gap.last),
        "slot_count": gap.slot_count,
        "attempt": gap.attempt,
        "state": SKIPPED,
        "prior_state": SCHEDULED,
        "reason": gap.reason,
        "fence": job["fence"],
        "finished_at": now,
        "created_at": now,
    }
