"""Compute the instants at which a crontab fires in a time zone, daylight saving included.

All datetimes here are naive: UTC, or wall clock where the name says so.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from datetime import datetime, timedelta, tzinfo
from functools import lru_cache

from celery_sqlbeat.schedule.cron import Cron
from celery_sqlbeat.schedule.zone import FIRST_YEAR, LAST_YEAR, TICK, Period, periods_from, periods_until


def next_wall(cron: Cron, after: datetime) -> datetime | None:
    """Return the first matching minute on the wall clock later than `after` (naive)."""
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
    """Return the last matching minute on the wall clock not later than `until` (naive)."""
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
    """Count the matching minutes of the wall clock in [`first`, `end`) (naive)."""
    if first >= end:
        return 0
    before_first, before_end = _times_before(cron, first), _times_before(cron, end)
    return _days_before(cron, first, end) * len(cron.times) + before_end - before_first


def _days_before(cron: Cron, first: datetime, end: datetime) -> int:
    """Count the matching days from the day of `first` to before the day of `end`."""
    count = -_dates_before(cron, first) + _dates_before(cron, end)
    year, month = first.year, first.month
    while (year, month) != (end.year, end.month):
        count += _days_of(cron, year, month).bit_count()
        year, month = (year, month + 1) if month < 12 else (year + 1, 1)
    return count


def _dates_before(cron: Cron, wall: datetime) -> int:
    return (_days_of(cron, wall.year, wall.month) & (1 << wall.day) - 1).bit_count()


def _times_before(cron: Cron, wall: datetime) -> int:
    """Count the matching minutes of the same day before this one."""
    if not _days_of(cron, wall.year, wall.month) >> wall.day & 1:
        return 0
    begun = 1 if wall.second or wall.microsecond else 0
    return bisect_left(cron.times, wall.hour * 60 + wall.minute + begun)


def _days_of(cron: Cron, year: int, month: int) -> int:
    """Return the matching days of a month, one bit per day."""
    if not cron.months >> month & 1:
        return 0
    weekday, existing = _shape(year, month)
    return cron.days[weekday] & existing


@lru_cache(maxsize=4096)
def _shape(year: int, month: int) -> tuple[int, int]:
    """Return the weekday of a month's first day (Sunday is 0) and its days as bits."""
    first = datetime(year, month, 1)  # noqa: DTZ001  # the calendar itself has no zone
    length = ((first + timedelta(days=31)).replace(day=1) - first).days
    return first.isoweekday() % 7, (2 << length) - 2


def _at(year: int, month: int, day: int, minute: int) -> datetime:
    return datetime(year, month, day, minute // 60, minute % 60)  # noqa: DTZ001  # a wall clock shows no zone


# When clocks change (the reasons are in docs/design/0005-daylight-saving.md):
#
# - A skipped time: a crontab with a fixed hour and minute fires once, at the instant the gap ends.
#   With a wildcard (`*`, `*/n`) in the hour or the minute the skipped times do not exist.
# - A repeated time: a crontab with a fixed hour fires at the first of the two. With a wildcard in
#   the hour it fires through both, in the order of elapsed time.
# - Never twice at one instant.


def next_fire(cron: Cron, after: datetime, zone: tzinfo) -> datetime | None:
    """Return the first instant later than `after`."""
    wall: datetime | None = None
    for period in periods_from(zone, after):
        opens = period.starts + period.offset
        if wall is None:
            wall = next_wall(cron, max(after + period.offset, _opening(cron, period) - TICK))
        elif period.offset < period.before and cron.every_hour:
            wall = next_wall(cron, opens - TICK)
        elif wall < opens:
            if cron.makes_up:
                return period.starts
            wall = next_wall(cron, opens - TICK)
        if wall is None:
            return None
        if wall - period.offset < period.ends:
            return wall - period.offset
    return None


def last_fire(cron: Cron, after: datetime, until: datetime, zone: tzinfo) -> datetime | None:
    """Return the last instant later than `after` and not later than `until`."""
    closes = until + TICK
    for period in periods_until(zone, until):
        opening = _opening(cron, period)
        wall = last_wall(cron, closes + period.offset - TICK)
        fire = wall - period.offset if wall and wall >= opening else _made_up(cron, period)
        if fire is not None:
            return fire if fire > after else None
        if period.starts <= after:
            return None
        closes = period.starts
    return None


def count_fires(cron: Cron, first: datetime, last: datetime, zone: tzinfo) -> int:
    """Count the instants in [`first`, `last`]."""
    count = 0
    for period in periods_from(zone, first):
        if period.starts > last:
            break
        opening = max(first + period.offset, _opening(cron, period))
        if first <= period.starts and _made_up(cron, period) is not None:
            count += 1
            opening += TICK  # the gap's end may match by itself, and fires once
        count += count_walls(cron, opening, min(last + TICK, period.ends) + period.offset)
    return count


def _opening(cron: Cron, period: Period) -> datetime:
    """Return the first wall time of a period that counts: a fixed hour skips its second pass."""
    offset = period.offset if cron.every_hour else max(period.offset, period.before)
    return period.starts + offset


def _made_up(cron: Cron, period: Period) -> datetime | None:
    """Return the end of the gap before a period, if it swallowed a time that is made up for."""
    if not cron.makes_up or period.offset <= period.before:
        return None
    skipped = next_wall(cron, period.starts + period.before - TICK)
    return period.starts if skipped is not None and skipped < period.starts + period.offset else None
