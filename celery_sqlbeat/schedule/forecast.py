"""The next fires of a job, and what daylight saving does to each of them, in words."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone, tzinfo
from typing import NamedTuple

from celery_sqlbeat.schedule.cron import Cron
from celery_sqlbeat.schedule.every import Every
from celery_sqlbeat.schedule.plan import Timeline
from celery_sqlbeat.schedule.solar import Solar
from celery_sqlbeat.schedule.walls import next_wall

_MINUTE = timedelta(minutes=1)


class Forecast(NamedTuple):
    """One fire to come."""

    at: datetime
    local: datetime
    """The same instant in the job's time zone."""
    note: str | None
    """What is odd about it: the clocks change."""


def forecasts(timeline: Timeline, slot: datetime, since: datetime, key: str = "") -> Iterator[Forecast]:
    """The fires from this slot on, if each run ends in time; `since` is when the reader looks."""
    before, at = since, slot
    while True:
        yield Forecast(at, at.astimezone(timeline.zone), _note(timeline, before, at, key))
        following = timeline.following(at, key)
        if following is None:
            return
        before, at = at, following


def _note(timeline: Timeline, before: datetime, at: datetime, key: str) -> str | None:
    if isinstance(timeline.schedule, Solar):
        return None  # the sun knows no clocks
    change = _change_between(timeline.zone, before, at)
    if isinstance(timeline.schedule, Cron):
        point = at - timeline.offset(key)
        wall = point.astimezone(timeline.zone).replace(tzinfo=None, fold=0)
        if change is not None and next_wall(timeline.schedule, wall - _MINUTE) != wall:
            return f"{change}: the time that was asked for does not exist; it fires when they change"
        if _is_shown_twice(wall, timeline.zone):
            pass_ = "first" if point.astimezone(timeline.zone).fold == 0 else "second"
            return f"the clocks show {wall:%H:%M} twice: this is the {pass_} time"
    if change is not None and isinstance(timeline.schedule, Every) and not timeline.schedule.relative:
        return f"{change}; an interval counts elapsed time"
    return change


def _change_between(zone: tzinfo, before: datetime, at: datetime) -> str | None:
    shift = (at.astimezone(zone).utcoffset() or timedelta()) - (before.astimezone(zone).utcoffset() or timedelta())
    if not shift:
        return None
    hours = abs(shift) / timedelta(hours=1)
    return f"the clocks have gone {'forward' if shift > timedelta() else 'back'} {hours:g} h"


def _is_shown_twice(wall: datetime, zone: tzinfo) -> bool:
    first, second = (wall.replace(tzinfo=zone, fold=fold).astimezone(timezone.utc) for fold in (0, 1))
    return first < second
