"""Split a time zone into the periods that keep one offset from UTC, and bound the calendar.

The calendar ends where every database keeps an instant, one year inside the bounds of datetime.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from celery_sqlbeat.errors import FieldError

FIRST_YEAR, LAST_YEAR = 2, 9998  # one year inside the calendar, so that no offset can leave it
TICK = timedelta(microseconds=1)

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_+-]{0,31}(/[A-Za-z0-9_+-]{1,31}){0,3}", re.ASCII)
_FIRST_CHANGE = 1800  # the first change of any clock in the tz database is in 1834
# The shortest time between two changes that undo each other is 6.96 days (Recife 2000, Gaza 2040),
# so a probe every six days finds every change.
_PROBE = timedelta(days=6)
_SECOND = timedelta(seconds=1)


class Period(NamedTuple):
    """A span of one offset, in [`starts`, `ends`) naive UTC; `before` is the offset until then."""

    starts: datetime
    ends: datetime
    offset: timedelta
    before: timedelta


def zone_named(text: str) -> ZoneInfo:
    """Return the time zone of this name in the tz database."""
    remedy = "a time zone is a name of the tz database such as UTC or Europe/London"
    if not isinstance(text, str) or not _NAME.fullmatch(name := text[:200].strip()):
        raise FieldError("TimeZone", text, remedy)
    try:
        return _load(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        # ValueError: a file that holds no zone. OSError: a directory, or no permission.
        raise FieldError("TimeZone", text, remedy) from None


@lru_cache(maxsize=1024)
def _load(name: str) -> ZoneInfo:
    return ZoneInfo(name)


def periods_from(zone: tzinfo, instant: datetime) -> Iterator[Period]:
    """Yield the period of this instant (naive UTC) and all later ones; each ends with its year."""
    for year in range(instant.year, LAST_YEAR + 1):
        for period in periods_of(zone, year):
            if instant < period.ends:
                yield period


def periods_until(zone: tzinfo, instant: datetime) -> Iterator[Period]:
    """Yield the period that holds this instant (naive UTC) and all earlier ones, backwards."""
    for year in range(instant.year, FIRST_YEAR - 1, -1):
        for period in reversed(periods_of(zone, year)):
            if period.starts <= instant:
                yield period


@lru_cache(maxsize=8192)
def periods_of(zone: tzinfo, year: int) -> tuple[Period, ...]:
    """Return the periods of one year of UTC, in order."""
    starts, end = datetime(year, 1, 1), datetime(year + 1, 1, 1)  # noqa: DTZ001  # naive UTC, as everywhere below
    before = offset_at(zone, starts - _SECOND)
    offset = offset_at(zone, starts)
    periods = []
    seen = starts
    while year >= _FIRST_CHANGE and seen < end - _SECOND:
        probe = min(seen + _PROBE, end - _SECOND)
        if (later := offset_at(zone, probe)) != offset:
            change = _change_between(zone, seen, probe, offset)
            periods.append(Period(starts, change, offset, before))
            starts, before, offset = change, offset, later
        seen = probe
    return (*periods, Period(starts, end, offset, before))


def offset_at(zone: tzinfo, instant: datetime) -> timedelta:
    """Return how far the zone is ahead of UTC at this instant (naive UTC)."""
    return zone.fromutc(instant.replace(tzinfo=zone)).utcoffset() or timedelta()


def _change_between(zone: tzinfo, low: datetime, high: datetime, offset: timedelta) -> datetime:
    """Return the first second in (`low`, `high`] at which the offset is no longer this one."""
    while high - low > _SECOND:
        middle = low + (high - low) // 2 // _SECOND * _SECOND
        if offset_at(zone, middle) == offset:
            low = middle
        else:
            high = middle
    return high


EARLIEST = datetime(FIRST_YEAR, 1, 1, tzinfo=timezone.utc)
LATEST = datetime(LAST_YEAR + 1, 1, 1, tzinfo=timezone.utc) - TICK
BOUNDS = f"an instant lies in the years {FIRST_YEAR} to {LAST_YEAR}"


def within(instant: datetime | None) -> datetime | None:
    """Return the instant, or None if it is outside of what the tables can store."""
    return instant if instant is not None and EARLIEST <= instant <= LATEST else None


def plus(instant: datetime, delta: timedelta) -> datetime | None:
    """Return the sum, or None beyond the end of the calendar."""
    try:
        return within(instant + delta)
    except OverflowError:
        return None


def shifted(instant: datetime, delta: timedelta) -> datetime:
    """Return the sum, or the edge of the calendar that it would go beyond."""
    try:
        return min(max(instant + delta, EARLIEST), LATEST)
    except OverflowError:
        return EARLIEST if delta < timedelta() else LATEST
