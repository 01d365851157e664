"""The instants at which a schedule fires: the next, the latest, how many; for all kinds of schedule alike.

Instants are aware datetimes, zones tzinfo. An interval has no grid of its own: it is counted from the first argument.
"""

from __future__ import annotations

from datetime import datetime, timezone, tzinfo
from functools import lru_cache

from celery_sqlbeat.schedule.cron import Cron
from celery_sqlbeat.schedule.cron_grid import count_fires, last_fire, next_fire
from celery_sqlbeat.schedule.every import Every, step
from celery_sqlbeat.schedule.once import Once
from celery_sqlbeat.schedule.solar import Solar, count_events, last_event, next_event
from celery_sqlbeat.schedule.text import Schedule
from celery_sqlbeat.schedule.zone import FIRST_YEAR, LAST_YEAR

_FIRST = datetime(FIRST_YEAR, 1, 1)  # noqa: DTZ001  # naive UTC
_LAST = datetime(LAST_YEAR, 12, 31)  # noqa: DTZ001  # naive UTC


def next_after(schedule: Schedule, instant: datetime, zone: tzinfo) -> datetime | None:
    """The first instant of the schedule later than this one; None if there is none."""
    if isinstance(schedule, Every):
        return step(schedule, instant, zone)
    if isinstance(schedule, Once):
        return schedule.at if schedule.at > instant else None
    return _next_on_grid(schedule, instant, zone)


def latest_at(schedule: Schedule, after: datetime, until: datetime, zone: tzinfo) -> datetime | None:
    """The last instant of the schedule later than `after` and not later than `until`; None if there is none."""
    if isinstance(schedule, Every):
        passed = (until - after) // schedule.interval
        return after + passed * schedule.interval if passed > 0 else None
    if isinstance(schedule, Once):
        return schedule.at if after < schedule.at <= until else None
    low, high = _naive(after), _naive(until)
    if low >= high:
        return None
    return _aware(
        last_event(schedule, low, high) if isinstance(schedule, Solar) else last_fire(schedule, low, high, zone)
    )


def count_between(schedule: Schedule, first: datetime, last: datetime, zone: tzinfo) -> int:
    """How many instants of the schedule lie between these two, both included; see count_events for the sun's."""
    if first > last:
        return 0
    if isinstance(schedule, Every):
        return (last - first) // schedule.interval + 1
    if isinstance(schedule, Once):
        return int(first <= schedule.at <= last)
    low, high = _naive(first), _naive(last)
    return count_events(schedule, low, high) if isinstance(schedule, Solar) else count_fires(schedule, low, high, zone)


@lru_cache(maxsize=16384)
def _next_on_grid(schedule: Cron | Solar, instant: datetime, zone: tzinfo) -> datetime | None:
    """Cached, as many jobs share a crontab and fire at the same instant."""
    after = _naive(instant)
    return _aware(next_event(schedule, after) if isinstance(schedule, Solar) else next_fire(schedule, after, zone))


def _naive(instant: datetime) -> datetime:
    """The same instant in naive UTC, moved to the edge of the calendar if it lies beyond."""
    if instant.tzinfo is None:
        raise TypeError("an instant has a time zone")
    if instant.tzinfo is not timezone.utc:
        instant = instant.astimezone(timezone.utc)
    return min(max(instant.replace(tzinfo=None), _FIRST), _LAST)


def _aware(instant: datetime | None) -> datetime | None:
    return None if instant is None or instant >= _LAST else instant.replace(tzinfo=timezone.utc)
