"""What becomes of each job that arrives: it is added, changed, the same already, or left behind with a reason. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from celery_sqlbeat.definition import Rules, read_definition
from celery_sqlbeat.errors import FieldError
from celery_sqlbeat.handle.drafting import Wish, draft_of, wish
from celery_sqlbeat.handle.records import plain
from celery_sqlbeat.handle.rescheduling import change_of, fence_of, first_run, gap_record, text_of
from celery_sqlbeat.ids import Ids
from celery_sqlbeat.model import FINISHED, PAUSED, JobArrival, JobChange, JobRecord
from celery_sqlbeat.schedule import Timeline
from celery_sqlbeat.transfer.arrivals import Arrival, Left

ADD, CHANGE, SAME, CODE, LEFT = "add", "change", "same", "code", "left"


@dataclass(frozen=True)
class Step:
    """What happens to one job, as it is shown, and what is written for it."""

    name: str
    action: str
    schedule: str | None = None
    next_run_time: datetime | None = None
    last_run_time: datetime | None = None
    remarks: tuple[str, ...] = ()
    arrival: JobArrival | None = None
    change: JobChange | None = None

    def as_json(self) -> dict[str, Any]:
        """What is shown of it, as plain values for JSON."""
        shown = (self.schedule, self.next_run_time, self.last_run_time, self.remarks)
        names = ("schedule", "next_run_time", "last_run_time", "remarks")
        return {"name": self.name, "action": self.action, **plain(dict(zip(names, shown, strict=True)))}


def checked(arrivals: Sequence[Arrival], rules: Rules) -> tuple[list[tuple[Arrival, Wish]], list[Left]]:
    """The arrivals that the table can take, and the others with what is wrong with them."""
    good: list[tuple[Arrival, Wish]] = []
    left: list[Left] = []
    for one in arrivals:
        try:
            good.append((one, wish(rules, **{**one.fields, "name": one.name})))
        except FieldError as error:
            left.append(Left(one.name, str(error)))
    return good, left


def left_behind(left: Left) -> Step:
    """The step of a job that stays where it is."""
    return Step(left.name, LEFT, remarks=(left.reason,))


def step_of(
    arrival: Arrival, wanted: Wish, row: JobRecord | None, now: datetime, rules: Rules, ids: Ids | None = None
) -> Step:
    """What becomes of one job; `row` is the one of its name that is there.

    A job that is there takes the definition and keeps its own state, which is newer than what somebody carried here.
    """
    if row is None:
        return _addition(arrival, wanted, now)
    if row.code_owner is not None:
        return left_behind(Left(arrival.name, f"the beat_schedule of {row.code_owner} defines it: change it there"))
    if row.delete_requested:
        return left_behind(Left(arrival.name, "the job of this name is deleted as soon as its run has ended"))
    try:
        before = read_definition(text_of(row), rules)
    except FieldError:  # it waits in quarantine for whoever puts it right
        before = None
    to = None if _has_ended(row, wanted) else change_of(row, before, wanted)
    at = row.next_run_time if to is None or not to.moves else to.next_run_time
    step = Step(
        arrival.name,
        SAME if to is None else CHANGE,
        wanted.text.schedule,
        at if isinstance(at, datetime) else None,
        row.last_run_time if isinstance(row.last_run_time, datetime) else None,
    )
    if to is None:
        return step
    draft = draft_of(wanted.text, to.next_run_time, bool(row.enabled), wanted.start_at)
    gap = None if to.gap is None else gap_record((ids or Ids()).run_ids(1)[0], row, to.gap)
    change = JobChange(draft, row.version, to.moves, to.enabled, gap, fence_of(row, to))
    return replace(step, remarks=arrival.remarks, change=change)


def _has_ended(row: JobRecord, wanted: Wish) -> bool:
    """Whether this very schedule came to its end: what ran once does not run again because its file comes again."""
    same = text_of(row)._replace(interval_minutes=None) == wanted.text and row.start_at == wanted.start_at
    return same and not row.enabled and row.disabled_reason == FINISHED and wanted.enabled is not True


def _addition(arrival: Arrival, wanted: Wish, now: datetime) -> Step:
    try:
        first = _first_slot(arrival, wanted, now)
    except FieldError as error:
        return left_behind(Left(arrival.name, str(error)))
    enabled = wanted.enabled is not False
    draft = draft_of(wanted.text, first, enabled, wanted.start_at)
    reason = None if enabled else arrival.disabled_reason or PAUSED
    return Step(
        arrival.name,
        ADD,
        wanted.text.schedule,
        first,
        arrival.last_run_time,
        arrival.remarks,
        JobArrival(draft, arrival.last_run_time, reason),
    )


def _first_slot(arrival: Arrival, wanted: Wish, now: datetime) -> datetime | None:
    """When it is due first: where the old scheduler would have fired it, even if that has passed."""
    if arrival.finished:
        return None
    if arrival.next_run_time is not None:
        return arrival.next_run_time
    timeline = wanted.definition.timeline
    if arrival.counts_from is not None and isinstance(timeline, Timeline):
        first = timeline.first_slot(arrival.counts_from, wanted.start_at)
        if first is not None:
            return first
    return first_run(wanted, now)
