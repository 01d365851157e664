"""Sums of instants at the edges of the calendar, where datetime raises."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

EARLIEST = datetime.min.replace(tzinfo=timezone.utc)
LATEST = datetime.max.replace(tzinfo=timezone.utc)


def plus(instant: datetime, delta: timedelta) -> datetime | None:
    """The sum, or None beyond the end of the calendar."""
    try:
        return instant + delta
    except OverflowError:
        return None


def shifted(instant: datetime, delta: timedelta) -> datetime:
    """The sum, or the edge of the calendar that it would go beyond."""
    try:
        return instant + delta
    except OverflowError:
        return EARLIEST if delta < timedelta() else LATEST
