"""The wall-clock minutes that a crontab matches: the next, the last, how many.

Wall clock only, in naive datetimes: what daylight saving makes of them is decided in zone.py.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from datetime import datetime, timedelta
from functools import lru_cache

from celery_sqlbeat.schedule.cron import Cron
from celery_sqlbeat.schedule.zone import FIRST_YEAR, LAST_YEAR


def next_wall(cron: Cron, after: datetime) -> datetime | None:
    """The first matching minute on the wall clock later than `after` (naive)."""
    index = 0
    if _days_of(cron, after.year, after.month) >> after.day & 1:
        index = bisect_right(cron.times, after.hour * 60 + after.minute)
        if index < len(cron.times):
            return _at(after.year, after.month, after.day, cron.times[index])
    year, month, later = after.year, after.month, -2 << after.day
    while year <= LAST_YEAR:
        if days := _days_of(cron, year, month) & later:
            return _at(year, month, (days & -days).bit_length() - 1, cron.times[0])
        later = -1
        year, month = (year, month + 1) if month < 12 else (year + 1, 1)
    return None


def last_wall(cron: Cron, until: datetime) -> datetime | None:
    """The last matching minute on the wall clock not later than `until` (naive)."""
    if _days_of(cron, until.year, until.month) >> until.day & 1:
        index = bisect_right(cron.times, until.hour * 60 + until.minute)
        if index:
            return _at(until.year, until.month, until.day, cron.times[index - 1])
    year, month, earlier = until.year, until.month, (1 << until.day) - 1
    while year >= FIRST_YEAR:
        if days := _days_of(cron, year, month) & earlier:
            return _at(year, month, days.bit_length() - 1, cron.times[-1])
        earlier = -1
        year, month = (year, month - 1) if month > 1 else (year - 1, 12)
    return None


def count_walls(cron: Cron, first: datetime, end: datetime) -> int:
    """How many matching minutes the wall clock shows from `first` on and before `end` (naive)."""
    if first >= end:
        return 0
    before_first, before_end = _times_before(cron, first), _times_before(cron, end)
    return _days_before(cron, first, end) * len(cron.times) + before_end - before_first


def _days_before(cron: Cron, first: datetime, end: datetime) -> int:
    """How many matching days lie from the day of `first` on and before the day of `end`."""
    count = -_dates_before(cron, first) + _dates_before(cron, end)
    year, month = first.year, first.month
    while (year, month) != (end.year, end.month):
        count += _days_of(cron, year, month).bit_count()
        year, month = (year, month + 1) if month < 12 else (year + 1, 1)
    return count


def _dates_before(cron: Cron, wall: datetime) -> int:
    return (_days_of(cron, wall.year, wall.month) & (1 << wall.day) - 1).bit_count()


def _times_before(cron: Cron, wall: datetime) -> int:
    """How many matching minutes of its own day lie before this one."""
    if not _days_of(cron, wall.year, wall.month) >> wall.day & 1:
        return 0
    begun = 1 if wall.second or wall.microsecond else 0
    return bisect_left(cron.times, wall.hour * 60 + wall.minute + begun)


def _days_of(cron: Cron, year: int, month: int) -> int:
    """The matching days of a month, one bit per day."""
    if not cron.months >> month & 1:
        return 0
    weekday, existing = _shape(year, month)
    return cron.days[weekday] & existing


@lru_cache(maxsize=4096)
def _shape(year: int, month: int) -> tuple[int, int]:
    """The weekday of a month's first day (Sunday is 0) and its days as bits."""
    first = datetime(year, month, 1)  # noqa: DTZ001  # the calendar itself has no zone
    length = ((first + timedelta(days=31)).replace(day=1) - first).days
    return first.isoweekday() % 7, (2 << length) - 2


def _at(year: int, month: int, day: int, minute: int) -> datetime:
    return datetime(year, month, day, minute // 60, minute % 60)  # noqa: DTZ001  # a wall clock shows no zone
