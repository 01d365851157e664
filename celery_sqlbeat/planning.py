"""Plan what becomes of due rows: what each fires or skips, or its quarantine. It never raises."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial

from celery_sqlbeat import events
from celery_sqlbeat.config.policy import ALLOW, REPLACE, SKIP
from celery_sqlbeat.environment import Ids
from celery_sqlbeat.errors import FieldError, PayloadLocked
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
    DueBatch,
    DueJob,
    GapRecord,
    JobRecord,
    LeftAttempt,
    Plan,
    Quarantine,
    QuarantineJob,
    RepairJob,
    ReplaceableRun,
    Slot,
    lifecycle,
)
from celery_sqlbeat.model.definition import Definition, Rules, Slots, instant, read_definition
from celery_sqlbeat.model.one_offs import ONE_OFF
from celery_sqlbeat.schedule import Fire, Gap, Misfire, Skip, Timeline

# Half of what the column holds: a fence grows with every claim, and by an epoch at each recovery.
HIGHEST_FENCE = 2**62
_first_attempt = partial(
    Slot, kind=SCHEDULE, attempt=1, failures=0, lost_leases=0, advances=True, continues=None, same_run=False
)


class Planner:
    """Plans whole batches; a beat keeps one for as long as its settings hold."""

    def __init__(self, rules: Rules, ids: Ids | None = None, code: Mapping[str, Slots] | None = None) -> None:
        """Keep the rules. `code` has the slots of custom schedule classes, by code key."""
        self._rules = rules
        self._ids = ids or Ids()
        self._code = code or {}

    def __call__(self, due: DueBatch) -> Plan:
        """Plan one batch; no row can stop the others."""
        plan = Plan([], [], [], [], [], [])
        run_ids, claim_ids = self._ids.run_ids(len(due.jobs)), self._ids.claim_ids(len(due.jobs))
        for job, *ids in zip(due.jobs, run_ids, claim_ids, strict=True):
            try:
                definition = self._definition(job)
                most = definition.policy.max_parallel if definition.policy.overlap == ALLOW else None
                if most is not None and job.open_runs >= most:
                    self._pass_by(plan, job, definition)
                else:
                    self._plan_one(plan, job, definition, due.attempts, ids)
            except PayloadLocked:
                plan.locked.append(job)
            except Exception as error:
                # What was planned of a row before it turned out wrong is not written either.
                plan.gaps[:] = [gap for gap in plan.gaps if gap.job_id != job.job_id]
                plan.left[:] = [left for left in plan.left if left.job_id != job.job_id]
                plan.quarantines.append(_quarantine(job, error))
        return plan

    def repairs(self, rows: Sequence[JobRecord]) -> tuple[list[RepairJob], list[QuarantineJob]]:
        """Plan the repair of rows, and the quarantine of those with a new reason for it."""
        repairs, quarantines = list[RepairJob](), list[QuarantineJob]()
        for row in rows:
            try:
                repairs.append(self._repair(row))
            except Exception as error:
                if not isinstance(error, PayloadLocked) and _reason(error) != row.quarantine:
                    job_id, name, fence, version, reason = _quarantine(row, error)
                    quarantines.append(QuarantineJob(name, job_id, fence, version, reason))
        return repairs, quarantines

    def makes_room(self, run: ReplaceableRun) -> tuple[bool, datetime | None]:
        """Return whether a run makes room for the slot that has come, or for which later one."""
        try:
            definition = read_definition(run, self._rules)
        except FieldError:
            return False, None  # it is quarantined for that when it is due
        if definition.policy.overlap != REPLACE or not isinstance(definition.timeline, Timeline):
            return False, None
        if run.started:
            return True, None
        # It stays: without workers each slot would send one more message.
        return False, definition.timeline.passed_by(run.replace_at, run.now, run.job_id).next_slot

    def _pass_by(self, plan: Plan, job: DueJob, definition: Definition) -> None:
        """Skip the slots that have come, as `max_parallel` runs go on; waiting attempts wait on."""
        due = job.next_run_time
        if job.run_id is None and job.left_run_id is None and isinstance(due, datetime) and due <= job.now:
            self._advance(plan, job, definition.timeline.passed_by(instant("NextRunTime", due), job.now, job.job_id))

    def _advance(self, plan: Plan, job: DueJob, answer: Skip | None) -> None:
        if answer is None:
            return  # its code has not said yet when it is due
        self._note_gap(plan, job, answer.gap)
        plan.advances.append(Advance(job.job_id, job.fence, answer.next_slot))

    def _plan_one(
        self, plan: Plan, job: DueJob, definition: Definition, attempts: Mapping[str, Attempt], ids: Sequence[str]
    ) -> None:
        run_id, claim_id = ids
        prior = attempts.get(job.run_id) if job.run_id else None
        left = attempts.get(job.left_run_id) if job.left_run_id else None
        if left is not None and left.state in (lifecycle.CLAIMED, lifecycle.RUNNING):
            if left.advances:
                # The schedule's own slot comes first; an extra one waits on in the outbox.
                prior, job = left, job._replace(extra=0)
            else:
                plan.left.append(LeftAttempt(left.run_id, SENT_BACK, job.job_id))
        is_one_off = prior is not None and prior.kind == ONE_OFF
        is_left = prior is not None and prior.state == lifecycle.RUNNING
        if prior is not None and not is_one_off and (is_left or (job.extra and prior.state == lifecycle.RETRY)):
            plan.left.append(LeftAttempt(prior.run_id, LEFT, job.job_id))
        if prior is None or prior.state in lifecycle.OUTCOMES or (not job.extra and not prior.advances):
            slot = self._fresh_slot(plan, job, definition)
        else:
            slot = self._replacing_slot(plan, job, definition, prior) or _continued_slot(job, definition, prior)
        if slot is None:
            return
        call, policy = definition.call, definition.policy
        overlaps = policy.overlap == ALLOW and not is_one_off
        plan.claims.append(
            Claim(
                job_id=job.job_id,
                job_name=job.job_name,
                task_name=call.task_name,
                args=call.args,
                kwargs=call.kwargs,
                options=call.options,
                run_id=slot.continues if slot.same_run and slot.continues else run_id,
                claim_id=claim_id,
                fence=job.fence + 1,
                slot=slot,
                lease_seconds=definition.lease_seconds,
                max_retries=definition.max_retries,
                exclusive=not overlaps,
                code_key=job.code_key,
                timeline=definition.timeline,
                max_runtime=policy.max_runtime,
                replace_at=_replace_at(job, definition, slot),
                max_parallel=policy.max_parallel if overlaps else None,
                pool=policy.pool,
                is_sensitive=policy.sensitive,
                retry=policy.retry,
            )
        )

    def _fresh_slot(self, plan: Plan, job: DueJob, definition: Definition) -> Slot | None:
        due = job.retry_at if job.next_run_time is None else job.next_run_time
        if isinstance(job.next_run_time, datetime) and job.next_run_time > job.now:
            # RetryAt was set by hand, or its history is gone: its slot runs, NextRunTime stays.
            slot = instant("RetryAt", job.retry_at)
            return _first_attempt(scheduled_for=slot, planned_at=due, delay_seconds=None)
        due = instant("NextRunTime", due)
        last_run = None if job.last_run_time is None else instant("LastRunTime", job.last_run_time)
        ran_until = job.ran_until if isinstance(job.ran_until, datetime) else None
        # A slot that was set by hand is not the one that the last claim planned, and is run.
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
        """Return the slot that replaces one that waits for its retry; None where none has come."""
        if definition.policy.overlap != REPLACE or prior.state != lifecycle.RETRY or job.extra or not prior.advances:
            return None
        if not isinstance(definition.timeline, Timeline):
            return None  # only its code knows the slots of a custom schedule class
        if job.next_run_time != prior.seen_next_run_time:
            return None  # an operator has set the next slot, which runs after this one
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
        self._note_gap(plan, job, answer.gap)
        return _first_attempt(scheduled_for=answer.slot, planned_at=answer.next_slot, delay_seconds=answer.delay)

    def _note_gap(self, plan: Plan, job: DueJob, gap: Gap | None) -> None:
        if gap is not None:
            run_id = self._ids.run_ids(1)[0]
            plan.gaps.append(GapRecord(run_id, job.job_id, gap.first, gap.last, gap.count, gap.reason))

    def _definition(self, row: DueJob | JobRecord) -> Definition:
        # SQLite keeps any value in any column.
        if not isinstance(row.fence, int) or not 0 <= row.fence < HIGHEST_FENCE:
            raise FieldError("Fence", row.fence, "write a whole number, such as 0; a larger one than any before it")
        if row.schedule != CODE_SCHEDULE:
            return read_definition(row, self._rules)
        # The text says only that the code knows the slots; the rest of the row counts as ever.
        definition = read_definition(row._replace(schedule=None, interval_minutes=None), self._rules)
        slots = self._code.get(row.code_key or "")
        if slots is None:
            raise FieldError("Schedule", row.schedule, "only a beat whose code has this entry can say when it is due")
        return definition._replace(timeline=slots)

    def _repair(self, row: JobRecord) -> RepairJob:
        retry_at = None if row.retry_at is None else instant("RetryAt", row.retry_at)
        if row.schedule == CODE_SCHEDULE and row.code_key is not None:
            # A beat that has the entry asks it at the claim, and postpones it until it is due.
            due = row.now if row.next_run_time is None else instant("NextRunTime", row.next_run_time)
            return RepairJob(row.job_name, row.job_id, row.fence, row.version, due, retry_at)
        definition = self._definition(row)
        if row.job_name == row.job_id:  # a one-off, whose attempt waits
            return RepairJob(row.job_name, row.job_id, row.fence, row.version, None, retry_at)
        if row.last_run_time is not None:
            instant("LastRunTime", row.last_run_time)
        if row.next_run_time is not None:
            return RepairJob(
                row.job_name, row.job_id, row.fence, row.version, instant("NextRunTime", row.next_run_time), retry_at
            )
        start = None if row.start_at is None else instant("StartAt", row.start_at)
        first = definition.timeline.first_slot(row.now, start, row.job_id)
        if first is None:
            raise FieldError("Schedule", row.schedule, "this never comes; write another one, or disable the job")
        return RepairJob(row.job_name, row.job_id, row.fence, row.version, first, retry_at)


def _replace_at(job: DueJob, definition: Definition, slot: Slot) -> datetime | None:
    """Return the next slot, for which this run is to make room if it still goes on."""
    timeline = definition.timeline
    if definition.policy.overlap != REPLACE or not isinstance(timeline, Timeline):
        return None  # only its code knows the slots of a custom schedule class
    at = slot.planned_at
    return at if at is None or at > job.now else timeline.passed_by(at, job.now, job.job_id).next_slot


def _continued_slot(job: DueJob, definition: Definition, prior: Attempt) -> Slot:
    same_attempt = prior.state in (lifecycle.SCHEDULED, lifecycle.CLAIMED)
    if job.extra:
        # The schedule's own slot may come while this run goes on.
        due = job.next_run_time
        planned_at, delay = due if isinstance(due, datetime) and due > job.now else None, None
    else:
        planned_at, delay = definition.timeline.next_after_retry(prior.scheduled_for, job.now, job.job_id)
    return Slot(
        kind=prior.kind,
        scheduled_for=prior.scheduled_for,
        attempt=prior.attempt if same_attempt else prior.attempt + 1,
        failures=prior.failures,
        lost_leases=prior.lost_leases,
        planned_at=planned_at,
        delay_seconds=delay,
        advances=not job.extra,
        continues=prior.run_id,
        same_run=same_attempt or prior.kind == ONE_OFF,
        unknown_seconds=_unknown_seconds(job, prior),
    )


def _unknown_seconds(job: DueJob, prior: Attempt) -> float | None:
    waits = (prior.state, prior.reason) == (lifecycle.SCHEDULED, lifecycle.UNKNOWN_TASK)
    return (job.now - prior.created_at).total_seconds() if waits and prior.created_at is not None else None


def _quarantine(row: DueJob | JobRecord, error: Exception) -> Quarantine:
    if not isinstance(error, FieldError):  # ours, not the row's: its traceback goes to the log
        events.fault_caught(doing="plan a row", error=error)
    return Quarantine(row.job_id, row.job_name, row.fence, row.version, _reason(error))


def _reason(error: Exception) -> str:
    is_ours = isinstance(error, FieldError)
    text = str(error) if is_ours else f"this row cannot be planned ({type(error).__name__}): correct it"
    return text[:LONGEST_QUARANTINE]
