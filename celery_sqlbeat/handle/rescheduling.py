"""When a job is due next after somebody has defined it anew, or has resumed it. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from celery_sqlbeat.definition import Definition, instant
from celery_sqlbeat.errors import ScheduleError
from celery_sqlbeat.handle.drafting import Text, Wish
from celery_sqlbeat.model import CODE_SCHEDULE, FINISHED, PAUSED, GapRecord, JobRecord
from celery_sqlbeat.schedule import Every, Gap, Misfire, Skip, Timeline


class Resumption(NamedTuple):
    """How a paused job goes on: at which slot, and which it has skipped."""

    next_run_time: datetime | None
    gap: Gap | None
    finished: bool
    """Nothing is left of its schedule."""


class Change(NamedTuple):
    """What else a row gets that becomes another definition."""

    moves: bool
    """Whether its next run becomes this one."""
    next_run_time: datetime | None
    enabled: bool | None
    """None: as it is."""
    gap: Gap | None


def change_of(row: JobRecord, before: Definition | None, wish: Wish) -> Change | None:
    """How a row becomes what somebody wishes; None where it is that already. `before`: None where it was unreadable."""
    moves = is_another_schedule(row, before, wish)
    enabled = wish.enabled if wish.enabled is not bool(row.enabled) else None
    next_run_time, gap = changed_run(row, wish) if moves else None, None
    if enabled and not moves:
        at = resumption(row, wish.definition)
        if at.finished:
            enabled = None
        elif at.next_run_time is not None and at.next_run_time != row.next_run_time:
            moves, next_run_time, gap = True, at.next_run_time, at.gap
    is_the_same = text_of(row)._replace(interval_minutes=None) == wish.text and row.quarantine is None
    return None if is_the_same and not moves and enabled is None else Change(moves, next_run_time, enabled, gap)


def fence_of(row: JobRecord, to: Change) -> int | None:
    """The fence at which a change holds: a run that ends meanwhile may move where an enabled job goes on."""
    return row.fence if to.enabled else None


def text_of(row: JobRecord) -> Text:
    """What people wrote into a row."""
    return Text(
        row.job_name,
        row.task_name,
        row.schedule,
        row.interval_minutes,
        row.time_zone,
        row.args,
        row.kwargs,
        row.options,
        row.policies,
        row.lock_timeout_minutes,
    )


def first_run(wish: Wish, now: datetime) -> datetime | None:
    """The first slot of a new job; None where the job's id has a share in it, so that a beat fills it in."""
    first = _sometime(wish, wish.definition.timeline.first_slot(now, wish.start_at))
    return None if wish.definition.policy.jitter else first


def is_another_schedule(row: JobRecord, before: Definition | None, wish: Wish) -> bool:
    """Whether a changed job has other slots than before; `before` is None where the row could not be read."""
    has_ended = row.disabled_reason == FINISHED  # and so has no next run; the same again does not begin it anew
    if before is None or not (isinstance(row.next_run_time, datetime) or has_ended):
        return True
    if row.start_at != wish.start_at:
        return True
    old, new = before.timeline, wish.definition.timeline
    if not isinstance(old, Timeline) or not isinstance(new, Timeline):
        return True
    if (str(old.schedule), old.jitter) != (str(new.schedule), new.jitter):
        return True
    # An elapsed interval is the same in every zone.
    return str(old.zone) != str(new.zone) and not (isinstance(new.schedule, Every) and not new.schedule.relative)


def changed_run(row: JobRecord, wish: Wish) -> datetime:
    """The next slot of a job that has another schedule now.

    An interval counts from the last run, so that a job which is changed again and again is not put off for ever.
    """
    timeline, since = wish.definition.timeline, row.now
    if isinstance(timeline, Timeline) and isinstance(timeline.schedule, Every) and wish.start_at is None:
        last = row.claimed_at if row.locked_by is not None else row.last_run_time
        since = min(last, row.now) if isinstance(last, datetime) else row.now
    first = _sometime(wish, timeline.first_slot(since, wish.start_at, row.job_id))
    # A single instant that has passed stays what it is: the slot is late, and says so.
    passed = since is not row.now and first < row.now
    return row.now if passed else first


def _sometime(wish: Wish, first: datetime | None) -> datetime:
    if first is None:
        raise ScheduleError(wish.text.schedule, "this never comes; write another one")
    return first


def resumption(row: JobRecord, definition: Definition) -> Resumption:
    """How a paused job goes on: what was due meanwhile is skipped, and is recorded as one gap."""
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
    """Whether a run has the slot that is due, or will take it up again: it was not missed."""
    return row.run_id is not None or row.retry_at is not None


def gap_record(run_id: str, row: JobRecord, gap: Gap) -> GapRecord:
    """The record of slots that a paused job has skipped."""
    return GapRecord(run_id, row.job_id, gap.first, gap.last, gap.count, PAUSED)


def is_asked_of_code(row: JobRecord) -> bool:
    """Whether only the code that defines the job knows its slots."""
    return bool(row.schedule == CODE_SCHEDULE)
