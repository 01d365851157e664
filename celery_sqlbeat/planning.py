"""What becomes of due rows: which slot each one fires, which slots it skips, and what cannot run as it was written.

Pure: it runs between reading and writing in the transaction of a claim, so it neither waits nor raises.
"""

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime

from celery_sqlbeat import lifecycle
from celery_sqlbeat.definition import Definition, Rules, Slots, instant, read_definition
from celery_sqlbeat.errors import FieldError
from celery_sqlbeat.ids import Ids
from celery_sqlbeat.model import (
    CODE_SCHEDULE,
    LONGEST_QUARANTINE,
    SCHEDULE,
    Advance,
    Attempt,
    Claim,
    DueJob,
    GapRecord,
    LeftAttempt,
    LooseRow,
    Mend,
    Plan,
    Quarantine,
    Slot,
)
from celery_sqlbeat.schedule import Gap, Misfire, Skip

logger = logging.getLogger(__name__)

HIGHEST_FENCE = 2**62  # half of what the column holds: a fence grows with every claim, and by an epoch at each recovery


class Planner:
    """Plans whole batches; kept by a beat for as long as its settings hold."""

    def __init__(self, rules: Rules, ids: Ids | None = None, code: Mapping[str, Slots] | None = None) -> None:
        """`code` has the slots of custom schedule classes, by code key."""
        self._rules = rules
        self._ids = ids or Ids()
        self._code = code or {}

    def __call__(self, due: Sequence[DueJob], attempts: Mapping[str, Attempt]) -> Plan:
        """The plan for one batch. No row can stop the others."""
        plan = Plan([], [], [], [], [])
        run_ids, claim_ids = self._ids.run_ids(len(due)), self._ids.claim_ids(len(due))
        for job, run_id, claim_id in zip(due, run_ids, claim_ids, strict=True):
            try:
                self._plan_one(plan, job, attempts, run_id, claim_id)
            except Exception as error:
                # What was planned before it turned out that the row cannot run is not written either.
                plan.gaps[:] = [gap for gap in plan.gaps if gap.job_id != job.job_id]
                plan.left[:] = [left for left in plan.left if left.job_id != job.job_id]
                _report(error)
                plan.quarantines.append(Quarantine(job.job_id, job.job_name, job.fence, _reason(error)))
        return plan

    def mend(self, rows: Sequence[LooseRow]) -> tuple[list[Mend], list[Quarantine]]:
        """What becomes of rows that need attention: what is mended, and what goes to quarantine for a new reason."""
        mends: list[Mend] = []
        quarantines: list[Quarantine] = []
        for row in rows:
            try:
                mends.append(self._mend_one(row))
            except Exception as error:
                reason = _reason(error)
                if reason != row.quarantine:
                    _report(error)
                    quarantines.append(Quarantine(row.job_id, row.job_name, row.fence, reason))
        return mends, quarantines

    def _plan_one(self, plan: Plan, job: DueJob, attempts: Mapping[str, Attempt], run_id: str, claim_id: str) -> None:
        definition = self._definition(job)
        prior = attempts.get(job.run_id) if job.run_id else None
        left = attempts.get(job.left_run_id) if job.left_run_id else None
        if left is not None and left.state in (lifecycle.CLAIMED, lifecycle.RUNNING):
            if left.advances:
                prior, job = left, job._replace(extra=0)  # the schedule's own slot; an extra one waits on in the outbox
            else:
                plan.left.append(LeftAttempt(left.run_id, True, job.job_id))
        if prior is not None and (prior.state == lifecycle.RUNNING or (job.extra and prior.state == lifecycle.RETRY)):
            plan.left.append(LeftAttempt(prior.run_id, False, job.job_id))
        if prior is None or prior.state in lifecycle.OUTCOMES or (not job.extra and not prior.advances):
            slot = self._fresh_slot(plan, job, definition)
        else:
            slot = _continued_slot(plan, job, definition, prior)
        if slot is None:
            return
        plan.claims.append(
            Claim(
                job.job_id,
                job.job_name,
                *definition.call,
                slot.continues if slot.same_run and slot.continues else run_id,
                claim_id,
                job.fence + 1,
                slot,
                definition.lease_seconds,
                definition.max_retries,
                definition.policy.overlap == "skip",
                job.code_key,
                definition.timeline,
                definition.policy.max_runtime,
            )
        )

    def _fresh_slot(self, plan: Plan, job: DueJob, definition: Definition) -> Slot | None:
        due = job.retry_at if job.next_run_time is None else job.next_run_time
        if isinstance(job.next_run_time, datetime) and job.next_run_time > job.now:
            # RetryAt was set by hand, or the history of the retry is gone: its slot runs, the schedule stays.
            slot = instant("RetryAt", job.retry_at)
            return Slot(SCHEDULE, slot, 1, 0, 0, due, None, True, None, False)
        due = instant("NextRunTime", due)
        last_run = None if job.last_run_time is None else instant("LastRunTime", job.last_run_time)
        policy = definition.policy
        misfire = Misfire(policy.misfire, policy.misfire_grace, policy.catch_up_limit, self._rules.cron_deadline)
        answer = definition.timeline.plan(due, job.now, last_run, misfire, job.job_id)
        if answer.gap is not None:
            plan.gaps.append(_gap_record(self._ids, job, answer.gap))
        if isinstance(answer, Skip):
            plan.advances.append(Advance(job.job_id, job.fence, answer.next_slot))
            return None
        return Slot(SCHEDULE, answer.slot, 1, 0, 0, answer.next_slot, answer.delay, True, None, False)

    def _definition(self, row: DueJob | LooseRow) -> Definition:
        if not isinstance(row.fence, int) or not 0 <= row.fence < HIGHEST_FENCE:  # SQLite keeps any value in any column
            raise FieldError("Fence", row.fence, "write a whole number, such as 0; a larger one than any before it")
        if row.schedule != CODE_SCHEDULE:
            return read_definition(row, self._rules)
        # The text says only that the code knows when; the rest of the row counts as ever.
        definition = read_definition(row._replace(schedule=None, interval_minutes=None), self._rules)
        slots = self._code.get(row.code_key or "")
        if slots is None:
            raise FieldError("Schedule", row.schedule, "only a beat whose code has this entry can say when it is due")
        return definition._replace(timeline=slots)

    def _mend_one(self, row: LooseRow) -> Mend:
        retry_at = None if row.retry_at is None else instant("RetryAt", row.retry_at)
        if row.schedule == CODE_SCHEDULE and row.code_key is not None and row.code_key not in self._code:
            # A beat that has the entry asks it, and puts it off until it is due.
            due = row.now if row.next_run_time is None else instant("NextRunTime", row.next_run_time)
            return Mend(row.job_id, row.fence, due, retry_at)
        definition = self._definition(row)
        if row.last_run_time is not None:
            instant("LastRunTime", row.last_run_time)
        if row.next_run_time is not None:
            return Mend(row.job_id, row.fence, instant("NextRunTime", row.next_run_time), retry_at)
        start = None if row.start_at is None else instant("StartAt", row.start_at)
        first = definition.timeline.first_slot(row.now, start, row.job_id)
        if first is None:
            raise FieldError("Schedule", row.schedule, "this never comes; write another one, or disable the job")
        return Mend(row.job_id, row.fence, first, retry_at)


def _continued_slot(plan: Plan, job: DueJob, definition: Definition, prior: Attempt) -> Slot:
    same_run = prior.state in (lifecycle.SCHEDULED, lifecycle.CLAIMED)
    planned_at, delay = None, None
    if not job.extra:
        planned_at, delay = definition.timeline.next_after_retry(prior.scheduled_for, job.now, job.job_id)
    return Slot(
        prior.kind,
        prior.scheduled_for,
        prior.attempt if same_run else prior.attempt + 1,
        prior.failures,
        prior.lost_leases,
        planned_at,
        delay,
        not job.extra,
        prior.run_id,
        same_run,
    )


def _gap_record(ids: Ids, job: DueJob, gap: Gap) -> GapRecord:
    return GapRecord(ids.run_ids(1)[0], job.job_id, gap.first, gap.last, gap.count, gap.reason)


def _report(error: Exception) -> None:
    """An error of our own, not of the row's fields: its traceback is for the log."""
    if not isinstance(error, FieldError):
        logger.warning("a row cannot be planned", exc_info=error)


def _reason(error: Exception) -> str:
    if not isinstance(error, FieldError):
        return f"this row cannot be planned ({type(error).__name__}): correct it"[:LONGEST_QUARANTINE]
    return str(error)[:LONGEST_QUARANTINE]
