"""The edges of the calendar: instants that every database keeps, one year inside those of datetime."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from celery_sqlbeat.schedule.zone import FIRST_YEAR, LAST_YEAR, TICK

EARLIEST = datetime(FIRST_YEAR, 1, 1, tzinfo=timezone.utc)
LATEST = datetime(LAST_YEAR + 1, 1, 1, tzinfo=timezone.utc) - TICK
BOUNDS = f"an instant lies in the years {FIRST_YEAR} to {LAST_YEAR}"


def within(instant: datetime | None) -> datetime | None:
    """The instant, or None where no table can keep it: the rows of the databases have the same bounds."""
    return instant if instant is not None and EARLIEST <= instant <= LATEST else None


def plus(instant: datetime, delta: timedelta) -> datetime | None:
    """The sum, or None beyond the end of the calendar."""
    try:
        return within(instant + delta)
    except OverflowError:
        return None


def shifted(instant: datetime, delta: timedelta) -> datetime:
    """The sum, or the edge of the calendar that it would go beyond."""
    try:
        return min(max(instant + delta, EARLIEST), LATEST)
    except OverflowError:
        return EARLIEST if delta < timedelta() else LATEST
