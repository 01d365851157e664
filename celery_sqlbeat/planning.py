"""What becomes of due rows: which slot each one fires, which slots it skips, and what cannot run as it was written.

Pure: it runs between reading and writing in the transaction of a claim, so it neither waits nor raises.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from celery_sqlbeat import lifecycle
from celery_sqlbeat.definition import Definition, Rules, Slots, instant, read_definition
from celery_sqlbeat.errors import FieldError
from celery_sqlbeat.ids import Ids
from celery_sqlbeat.model import (
    CODE_SCHEDULE,
    LEFT,
    LONGEST_QUARANTINE,
    REPLACED,
    SCHEDULE,
    SENT_BACK,
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
    ReplaceableRun,
    Slot,
)
from celery_sqlbeat.policy import ALLOW, REPLACE, SKIP
from celery_sqlbeat.schedule import Fire, Gap, Misfire, Skip, Timeline

logger = logging.getLogger(__name__)

HIGHEST_FENCE = 2**62  # half of what the column holds: a fence grows with every claim, and by an epoch at each recovery


class Planner:
    """Plans whole batches; kept by a beat for as long as its settings hold."""

    def __init__(self, rules: Rules, ids: Ids | None = None, code: Mapping[str, Slots] | None = None) -> None:
        """`code` has the slots of custom schedule classes, by code key."""
        self._rules = rules
        self._ids = ids or Ids()
        self._code = code or {}

    def __call__(
        self, due: Sequence[DueJob], attempts: Mapping[str, Attempt], beside: Callable[[str], int] = lambda _: 0
    ) -> Plan:
        """The plan for one batch. No row can stop the others.

        `beside`: how many runs of a job go on, asked where only so many may.
        """
        plan = Plan([], [], [], [], [])
        run_ids, claim_ids = self._ids.run_ids(len(due)), self._ids.claim_ids(len(due))
        for job, run_id, claim_id in zip(due, run_ids, claim_ids, strict=True):
            try:
                definition = self._definition(job)
                most = definition.policy.max_parallel if definition.policy.overlap == ALLOW else None
                if most is not None and beside(job.job_id) >= most:
                    self._pass_by(plan, job, definition)
                else:
                    self._plan_one(plan, job, definition, attempts, run_id, claim_id)
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

    def makes_room(self, run: ReplaceableRun) -> tuple[bool, datetime | None]:
        """Whether a run makes room for the slot that has come; if not, for which later one it may.

        What waits in the queue has not begun: each slot would send one more message while all workers are away.
        """
        try:
            definition = read_definition(run, self._rules)
        except FieldError:
            return False, None  # it is set aside for that when it is due
        if definition.policy.overlap != REPLACE or not isinstance(definition.timeline, Timeline):
            return False, None
        if run.started:
            return True, None
        return False, definition.timeline.passed_by(run.replace_at, run.now, run.job_id).next_slot

    def _pass_by(self, plan: Plan, job: DueJob, definition: Definition) -> None:
        """As many runs go on as may: the slots that have come do not run. An attempt that waits goes on waiting."""
        due = job.next_run_time
        if job.run_id is None and job.left_run_id is None and isinstance(due, datetime) and due <= job.now:
            answer = definition.timeline.passed_by(instant("NextRunTime", due), job.now, job.job_id)
            self._advance(plan, job, answer)

    def _advance(self, plan: Plan, job: DueJob, answer: Skip | None) -> None:
        if answer is None:
            return  # its code has not said yet when it is due
        if answer.gap is not None:
            plan.gaps.append(_gap_record(self._ids, job, answer.gap))
        plan.advances.append(Advance(job.job_id, job.fence, answer.next_slot))

    def _plan_one(
        self,
        plan: Plan,
        job: DueJob,
        definition: Definition,
        attempts: Mapping[str, Attempt],
        run_id: str,
        claim_id: str,
    ) -> None:
        prior = attempts.get(job.run_id) if job.run_id else None
        left = attempts.get(job.left_run_id) if job.left_run_id else None
        if left is not None and left.state in (lifecycle.CLAIMED, lifecycle.RUNNING):
            if left.advances:
                prior, job = left, job._replace(extra=0)  # the schedule's own slot; an extra one waits on in the outbox
            else:
                plan.left.append(LeftAttempt(left.run_id, SENT_BACK, job.job_id))
        if prior is not None and (prior.state == lifecycle.RUNNING or (job.extra and prior.state == lifecycle.RETRY)):
            plan.left.append(LeftAttempt(prior.run_id, LEFT, job.job_id))
        if prior is None or prior.state in lifecycle.OUTCOMES or (not job.extra and not prior.advances):
            slot = self._fresh_slot(plan, job, definition)
        else:
            slot = self._replacing_slot(plan, job, definition, prior) or _continued_slot(job, definition, prior)
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
                definition.policy.overlap != ALLOW,
                job.code_key,
                definition.timeline,
                definition.policy.max_runtime,
                _replace_at(job, definition, slot),
                definition.policy.max_parallel if definition.policy.overlap == ALLOW else None,
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
        ran_until = job.ran_until if isinstance(job.ran_until, datetime) else None
        # A slot that somebody set by hand is another one than the last claim planned, and is run.
        if definition.policy.overlap == SKIP and ran_until is not None and due == job.planned_at and due <= ran_until:
            self._advance(plan, job, definition.timeline.passed_by(due, min(ran_until, job.now), job.job_id))
            return None
        busy_until = max((at for at in (last_run, ran_until) if at is not None), default=None)
        answer = self._answer(definition, job, due, busy_until)
        if not isinstance(answer, Fire):
            self._advance(plan, job, answer)
            return None
        return self._slot(plan, job, answer)

    def _replacing_slot(self, plan: Plan, job: DueJob, definition: Definition, prior: Attempt) -> Slot | None:
        """The slot that takes the place of one that waits for its retry; None where none has come since."""
        if definition.policy.overlap != REPLACE or prior.state != lifecycle.RETRY or job.extra or not prior.advances:
            return None
        if not isinstance(definition.timeline, Timeline):
            return None  # only its code knows the slots of a custom schedule class
        following, _ = definition.timeline.next_after_retry(prior.scheduled_for, job.now, job.job_id)
        if following is None or following > job.now:
            return None
        answer = self._answer(definition, job, following, job.now)
        if not isinstance(answer, Fire):
            return None
        plan.left.append(LeftAttempt(prior.run_id, REPLACED, job.job_id))
        return self._slot(plan, job, answer)

    def _answer(
        self, definition: Definition, job: DueJob, due: datetime, busy_until: datetime | None
    ) -> Fire | Skip | None:
        policy = definition.policy
        misfire = Misfire(policy.misfire, policy.misfire_grace, policy.catch_up_limit, self._rules.cron_deadline)
        return definition.timeline.plan(due, job.now, busy_until, misfire, job.job_id)

    def _slot(self, plan: Plan, job: DueJob, answer: Fire) -> Slot:
        if answer.gap is not None:
            plan.gaps.append(_gap_record(self._ids, job, answer.gap))
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
        if row.schedule == CODE_SCHEDULE and row.code_key is not None:
            # A beat that has the entry asks it when it claims, and puts it off until it is due.
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


def _replace_at(job: DueJob, definition: Definition, slot: Slot) -> datetime | None:
    """The first slot to come that finds this run still going on, where it is to make room for that one."""
    timeline = definition.timeline
    if definition.policy.overlap != REPLACE or not isinstance(timeline, Timeline):
        return None  # only its code knows the slots of a custom schedule class
    at = slot.planned_at
    return at if at is None or at > job.now else timeline.passed_by(at, job.now, job.job_id).next_slot


def _continued_slot(job: DueJob, definition: Definition, prior: Attempt) -> Slot:
    same_run = prior.state in (lifecycle.SCHEDULED, lifecycle.CLAIMED)
    planned_at, delay = None, None
    if job.extra:
        # The schedule's own slot, where it is to come: it may come while this run goes on.
        due = job.next_run_time
        planned_at = due if isinstance(due, datetime) and due > job.now else None
    else:
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
        _unknown_seconds(job, prior),
    )


def _unknown_seconds(job: DueJob, prior: Attempt) -> float | None:
    if prior.state != lifecycle.SCHEDULED or prior.reason != lifecycle.UNKNOWN_TASK or prior.created_at is None:
        return None
    return (job.now - prior.created_at).total_seconds()


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
