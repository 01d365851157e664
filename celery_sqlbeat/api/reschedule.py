"""Decide when a job is due after it was defined anew or resumed. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

from celery_sqlbeat.api.job_input import JobSpec, JobText, draft_of, flag, given_policies, policies_text
from celery_sqlbeat.config.payload_key import is_sealed
from celery_sqlbeat.environment import Ids
from celery_sqlbeat.errors import FieldError, PayloadLocked, ScheduleError
from celery_sqlbeat.model import CODE_SCHEDULE, FINISHED, LEFT_THE_CODE, PAUSED, GapRecord, JobRecord, UpdateJob
from celery_sqlbeat.model.definition import Definition, Rules, instant, read_definition
from celery_sqlbeat.schedule import Every, Gap, Misfire, Skip, Timeline


class Resumption(NamedTuple):
    """The slot at which a paused job goes on, and the slots that it has skipped."""

    next_run_time: datetime | None
    gap: Gap | None
    finished: bool
    """Whether its schedule has no slot left."""


class Change(NamedTuple):
    """What changes in a row beside its definition."""

    moves: bool
    """Whether `next_run_time` replaces the row's."""
    next_run_time: datetime | None
    enabled: bool | None
    """None: unchanged."""
    gap: Gap | None


def change_of(row: JobRecord, before: Definition | None, spec: JobSpec) -> Change | None:
    """Return what changes so that a row becomes what is wanted; None where nothing does.

    `before` is None where the row could not be read.
    """
    moves = is_another_schedule(row, before, spec)
    enabled = spec.enabled if spec.enabled is not bool(row.enabled) else None
    next_run_time, gap = changed_run(row, spec) if moves else None, None
    if enabled and not moves:
        at = resumption(row, spec.definition)
        if at.finished:
            enabled = None
        elif at.next_run_time is not None and at.next_run_time != row.next_run_time:
            moves, next_run_time, gap = True, at.next_run_time, at.gap
    is_the_same = text_of(row)._replace(interval_minutes=None) == spec.text and row.quarantine is None
    return None if is_the_same and not moves and enabled is None else Change(moves, next_run_time, enabled, gap)


def update_of(row: JobRecord, text: JobText, start_at: datetime | None, change: Change, ids: Ids) -> UpdateJob:
    """Return the write that changes a row as it was read."""
    for field, kept in (("Args", row.args), ("Kwargs", row.kwargs)):
        if is_sealed(kept):
            raise PayloadLocked(field)  # who cannot read them would keep the new ones in plain text
    return UpdateJob(
        draft_of(text, change.next_run_time, bool(row.enabled), start_at),
        version=row.version,
        reschedule=change.moves,
        enabled=change.enabled,
        gap=gap_record(row, change.gap, ids),
        fence=row.fence if change.enabled else None,  # a run that ends may move the next slot
    )


def text_of(row: JobRecord) -> JobText:
    """Return the columns of a row that people write."""
    return JobText._make(getattr(row, column) for column in JobText._fields)


def definition_of(row: JobRecord, rules: Rules) -> Definition | None:
    """Read the definition of a row; None if the row is wrong, and its quarantine says why.

    The timeline of a job that is timed by its code means nothing.
    """
    if is_timed_by_code(row):
        row = row._replace(schedule=None, interval_minutes=None)
    try:
        return read_definition(row, rules)
    except FieldError:
        return None


def first_run(spec: JobSpec, now: datetime) -> datetime | None:
    """Return the first slot of a new job; with jitter None, as a beat needs the job's id for it."""
    first = _sometime(spec, spec.definition.timeline.first_slot(now, spec.start_at))
    return None if spec.definition.policy.jitter else first


def is_another_schedule(row: JobRecord, before: Definition | None, spec: JobSpec) -> bool:
    """Tell whether a changed job has other slots; `before` is None for an unreadable row."""
    has_ended = row.disabled_reason == FINISHED  # and so has no next run; the same again does not begin it anew
    if before is None or not (isinstance(row.next_run_time, datetime) or has_ended):
        return True
    if row.start_at != spec.start_at:
        return True
    old, new = before.timeline, spec.definition.timeline
    if not isinstance(old, Timeline) or not isinstance(new, Timeline):
        return True
    if (str(old.schedule), old.jitter) != (str(new.schedule), new.jitter):
        return True
    # An elapsed interval is the same in every zone.
    return str(old.zone) != str(new.zone) and not (isinstance(new.schedule, Every) and not new.schedule.relative)


def changed_run(row: JobRecord, spec: JobSpec) -> datetime:
    """Return the next slot of a job whose schedule has changed.

    An interval counts from the last run: repeated changes do not postpone a job for ever.
    """
    timeline, since = spec.definition.timeline, row.now
    if isinstance(timeline, Timeline) and isinstance(timeline.schedule, Every) and spec.start_at is None:
        last = row.claimed_at if row.locked_by is not None else row.last_run_time
        since = min(last, row.now) if isinstance(last, datetime) else row.now
    first = _sometime(spec, timeline.first_slot(since, spec.start_at, row.job_id))
    # A single instant that has passed stays what it is: the slot is late, and says so.
    passed = since is not row.now and first < row.now
    return row.now if passed else first


def _sometime(spec: JobSpec, first: datetime | None) -> datetime:
    if first is None:
        raise ScheduleError(spec.text.schedule, "this never comes; write another one")
    return first


def resumption(row: JobRecord, definition: Definition) -> Resumption:
    """Return where a paused job goes on; the slots that came meanwhile are one gap."""
    if row.next_run_time is None:
        return Resumption(None, None, row.disabled_reason == FINISHED)
    if is_held(row):
        return Resumption(row.next_run_time, None, False)
    due = instant("NextRunTime", row.next_run_time)
    if due > row.now:
        return Resumption(due, None, False)
    answer = definition.timeline.plan(due, row.now, None, Misfire("skip", 0.0), row.job_id)
    if isinstance(answer, Skip):
        return Resumption(answer.next_slot, answer.gap, answer.next_slot is None)
    # Else it is due at this very instant.
    return Resumption(due, None, False) if answer is None else Resumption(answer.slot, answer.gap, False)


def is_held(row: JobRecord) -> bool:
    """Tell whether a run has the slot that is due, or will take it up again."""
    return row.run_id is not None or row.retry_at is not None


def gap_record(row: JobRecord, gap: Gap | None, ids: Ids) -> GapRecord | None:
    """Make the record of the slots that a paused job has skipped, if it has."""
    return None if gap is None else GapRecord(ids.run_ids(1)[0], row.job_id, gap.first, gap.last, gap.count, PAUSED)


def is_timed_by_code(row: JobRecord) -> bool:
    """Tell whether only the code that defines the job knows its slots."""
    return bool(row.schedule == CODE_SCHEDULE)


def code_change_of(
    row: JobRecord, given: Mapping[str, object], enabled: object, policies: Mapping[str, object], rules: Rules
) -> tuple[JobText, Change] | None:
    """Return what changes in a job of the code; None where nothing does.

    `given` holds the fields that only the code may set.
    """
    for field, value in given.items():
        if value is not None:
            raise FieldError(field, value, f"{_remedy(row)}; as it is, it takes enabled and policies")
    wanted, own = flag("Enabled", enabled), given_policies(policies)
    text = text_of(row)._replace(policies=policies_text(own), lock_timeout_minutes=None)
    if "timezone" in own:
        text = text._replace(time_zone=own["timezone"])
    change = _change(row, text, None if wanted is bool(row.enabled) else wanted, rules)
    return None if text == text_of(row) and change.enabled is None else (text, change)


def resumption_of(row: JobRecord, rules: Rules) -> Resumption:
    """Return where a paused job goes on, whether a row or the code defines it."""
    if is_held(row):
        return Resumption(row.next_run_time, None, False)
    if is_timed_by_code(row):
        # A beat that has the entry asks its schedule, and postpones the job until it is due.
        due = row.next_run_time
        return Resumption(due if isinstance(due, datetime) and due > row.now else row.now, None, False)
    return resumption(row, read_definition(row, rules))


def _change(row: JobRecord, text: JobText, enabled: bool | None, rules: Rules) -> Change:
    if not is_timed_by_code(row):
        definition = read_definition(text, rules)
        if text.time_zone != row.time_zone:
            return Change(True, definition.timeline.first_slot(row.now, None, row.job_id), enabled, None)
    if enabled:
        at = resumption_of(row, rules)
        moves = not at.finished and at.next_run_time != row.next_run_time
        return Change(moves, at.next_run_time, None if at.finished else True, at.gap)
    return Change(False, None, enabled, None)


def _remedy(row: JobRecord) -> str:
    if row.disabled_reason == LEFT_THE_CODE:
        return f"its entry has left the beat_schedule of {row.code_owner}: delete it, and define it anew"
    return f"the beat_schedule of {row.code_owner} defines this job: change it there"
