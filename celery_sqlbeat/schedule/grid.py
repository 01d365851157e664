"""Count the instants of a schedule of any kind, and the slots that follow a due one.

Arithmetic only, bounded whatever the gap; what becomes of missed slots is decided in timeline.py.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from typing import NamedTuple

from celery_sqlbeat.schedule.cron import Cron
from celery_sqlbeat.schedule.cron_times import count_fires, last_fire, next_fire
from celery_sqlbeat.schedule.custom import MOST_COUNTED, Custom
from celery_sqlbeat.schedule.solar import SAME_EVENT, Solar, count_events, last_event, next_event
from celery_sqlbeat.schedule.text import Every, Once, Schedule, step
from celery_sqlbeat.schedule.zone import FIRST_YEAR, LAST_YEAR, TICK, plus, shifted

_FIRST = datetime(FIRST_YEAR, 1, 1)  # noqa: DTZ001  # naive UTC
_LAST = datetime(LAST_YEAR, 12, 31)  # noqa: DTZ001  # naive UTC


def next_after(schedule: Schedule, instant: datetime, zone: tzinfo) -> datetime | None:
    """Return the first instant of the schedule later than this one; None if there is none."""
    if isinstance(schedule, Every):
        return step(schedule, instant, zone)
    if isinstance(schedule, Once):
        return schedule.at if schedule.at > instant else None
    return _next_on_grid(schedule, instant, zone)


def latest_at(schedule: Schedule, after: datetime, until: datetime, zone: tzinfo) -> datetime | None:
    """Return the last instant of the schedule in (`after`, `until`]; None if there is none."""
    if isinstance(schedule, Every):
        passed = (until - after) // schedule.interval
        return after + passed * schedule.interval if passed > 0 else None
    if isinstance(schedule, Once):
        return schedule.at if after < schedule.at <= until else None
    if isinstance(schedule, Custom):
        return schedule.latest_at(after, until, zone)
    low, high = _naive(after), _naive(until)
    if low >= high:
        return None
    return _aware(
        last_event(schedule, low, high) if isinstance(schedule, Solar) else last_fire(schedule, low, high, zone)
    )


def count_between(schedule: Schedule, first: datetime, last: datetime, zone: tzinfo, most: int = MOST_COUNTED) -> int:
    """Count the instants of the schedule in [`first`, `last`]; see count_events for solar ones.

    Of a kind that others have added at most `most` are counted.
    """
    if first > last:
        return 0
    if isinstance(schedule, Every):
        return (last - first) // schedule.interval + 1
    if isinstance(schedule, Once):
        return int(first <= schedule.at <= last)
    if isinstance(schedule, Custom):
        return schedule.count_between(first, last, zone, most)
    low, high = _naive(first), _naive(last)
    return count_events(schedule, low, high) if isinstance(schedule, Solar) else count_fires(schedule, low, high, zone)


@lru_cache(maxsize=16384)
def _next_on_grid(schedule: Cron | Solar | Custom, instant: datetime, zone: tzinfo) -> datetime | None:
    """Return the next instant, cached: many jobs share a crontab and fire at the same instant."""
    if isinstance(schedule, Custom):
        return schedule.next_after(instant, zone)
    after = _naive(instant)
    return _aware(next_event(schedule, after) if isinstance(schedule, Solar) else next_fire(schedule, after, zone))


def _naive(instant: datetime) -> datetime:
    """Convert an instant to naive UTC, moved to the edge of the calendar if it lies beyond."""
    if instant.tzinfo is None:
        raise TypeError("an instant has a time zone")
    if instant.tzinfo is not timezone.utc:
        instant = instant.astimezone(timezone.utc)
    return min(max(instant.replace(tzinfo=None), _FIRST), _LAST)


def _aware(instant: datetime | None) -> datetime | None:
    return None if instant is None or instant >= _LAST else instant.replace(tzinfo=timezone.utc)


class IntervalSeries(NamedTuple):
    """The slots due, due + interval, due + 2 intervals and so on."""

    due: datetime
    every: Every
    zone: tzinfo
    cadence: str

    def following(self, slot: datetime) -> datetime | None:
        """Return the slot after this one."""
        return plus(slot, self.every.interval)

    def latest(self, now: datetime) -> datetime:
        """Return the last slot not later than `now`."""
        return self.due + (now - self.due) // self.every.interval * self.every.interval

    def count_before(self, slot: datetime) -> int:
        """Count the slots from `due` to before this one."""
        return (slot - self.due) // self.every.interval

    def preceding(self, slot: datetime) -> datetime:
        """Return the slot before this one."""
        return slot - self.every.interval

    def from_end(self, count: int, latest: datetime) -> datetime:
        """Return the first of the last `count` slots up to `latest`; `due` if there are fewer."""
        return latest - min(count - 1, self.count_before(latest)) * self.every.interval

    def after_fired(self, slot: datetime, now: datetime) -> tuple[datetime | None, float | None]:
        """Return the next slot, or the delay after the run, of a slot that is claimed at `now`."""
        if self.cadence == "fixed_delay":
            return None, self.every.interval.total_seconds()
        if self.cadence == "fixed_rate":
            return self.after_skipped(slot, now), None
        return self.after_skipped(now, slot), None

    def after_retried(self, slot: datetime, now: datetime) -> tuple[datetime | None, float | None]:
        """Return the next slot, or the delay from the end of the run, after a later attempt."""
        if self.cadence == "fixed_rate":
            return step(self.every, slot, self.zone), None
        return self.after_fired(slot, now)

    def after_skipped(self, slot: datetime, other: datetime) -> datetime | None:
        """Return the slot one interval after `slot`, or after `other` if that is past by then."""
        following = step(self.every, slot, self.zone)
        return step(self.every, other, self.zone) if following is not None and following <= other else following


class GridSeries(NamedTuple):
    """A slot, which may have been moved by hand, and then the points of the grid after `after`.

    Each point is shifted by `offset`.
    """

    due: datetime
    after: datetime
    offset: timedelta
    schedule: Cron | Solar | Once | Custom
    zone: tzinfo

    def following(self, slot: datetime) -> datetime | None:
        """Return the slot after this one."""
        after = self.after if slot == self.due else slot - self.offset
        point = next_after(self.schedule, after, self.zone)
        return None if point is None else plus(point, self.offset)

    def latest(self, now: datetime) -> datetime:
        """Return the last slot not later than `now`."""
        point = latest_at(self.schedule, self.after, now - self.offset, self.zone)
        return self.due if point is None else point + self.offset

    def count_before(self, slot: datetime) -> int:
        """Count the slots from `due` to before this one."""
        if slot == self.due:
            return 0
        return 1 + count_between(self.schedule, self.after + TICK, slot - self.offset - TICK, self.zone)

    def preceding(self, slot: datetime) -> datetime:
        """Return the slot before this one."""
        return self.latest(slot - TICK)

    def after_fired(self, slot: datetime, now: datetime) -> tuple[datetime | None, float | None]:
        """Return the next slot; a grid knows no delay."""
        return self.following(slot), None

    def after_retried(self, slot: datetime, now: datetime) -> tuple[datetime | None, float | None]:
        """Return the next slot; a grid knows no delay."""
        return self.following(slot), None

    def after_skipped(self, slot: datetime, now: datetime) -> datetime | None:
        """Return the next slot."""
        return self.following(slot)

    def from_end(self, count: int, latest: datetime) -> datetime:
        """Return the first of the last `count` slots up to `latest`; `due` if there are fewer."""
        if self.count_before(latest) < count:
            return self.due
        last = high = latest - self.offset
        low = self.after + TICK
        while high - low > timedelta(seconds=1):
            middle = low + (high - low) / 2
            if count_between(self.schedule, middle, last, self.zone, count) >= count:
                low = middle
            else:
                high = middle
        return self.starting_at(low + self.offset)

    def starting_at(self, instant: datetime) -> datetime:
        """Return the first slot at or after this instant, which is not after the latest slot."""
        point = next_after(self.schedule, instant - self.offset - TICK, self.zone)
        return self.due if point is None else point + self.offset


def grid_series(schedule: Cron | Solar | Once | Custom, zone: tzinfo, due: datetime, offset: timedelta) -> GridSeries:
    """Return the series from `due` on, a point of the grid plus the offset unless it was moved."""
    if isinstance(schedule, Once):
        return GridSeries(due, max(due, schedule.at), offset, schedule, zone)
    after = shifted(due, -offset)
    # Moved by hand, or shifted by another jitter: count from the slot itself. Otherwise one point
    # of the grid would fire under two offsets.
    if offset and next_after(schedule, shifted(after, -TICK), zone) != after:
        after = due
    if isinstance(schedule, Solar):
        after = shifted(after, SAME_EVENT)
    return GridSeries(due, after, offset, schedule, zone)
