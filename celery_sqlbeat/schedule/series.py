"""The slots that follow one another from a row's oldest unhandled slot on: which is next, which are missed.

Arithmetic only, bounded whatever the gap; what to do with missed slots is decided in plan.py.
"""

from __future__ import annotations

from datetime import datetime, timedelta, tzinfo
from typing import NamedTuple

from celery_sqlbeat.schedule.cron import Cron
from celery_sqlbeat.schedule.edges import plus, shifted
from celery_sqlbeat.schedule.every import Every, step
from celery_sqlbeat.schedule.grid import count_between, latest_at, next_after
from celery_sqlbeat.schedule.once import Once
from celery_sqlbeat.schedule.solar import SAME_EVENT, Solar
from celery_sqlbeat.schedule.zone import TICK


class IntervalSeries(NamedTuple):
    """The slots due, due + interval, due + 2 intervals and so on."""

    due: datetime
    every: Every
    zone: tzinfo
    cadence: str

    def following(self, slot: datetime) -> datetime | None:
        return plus(slot, self.every.interval)

    def latest(self, now: datetime) -> datetime:
        return self.due + (now - self.due) // self.every.interval * self.every.interval

    def count_before(self, slot: datetime) -> int:
        return (slot - self.due) // self.every.interval

    def preceding(self, slot: datetime) -> datetime:
        return slot - self.every.interval

    def from_end(self, count: int, latest: datetime) -> datetime:
        """The slot from which on `count` slots are left up to the latest one, or the first."""
        return latest - min(count - 1, self.count_before(latest)) * self.every.interval

    def after_fired(self, slot: datetime, now: datetime) -> tuple[datetime | None, float | None]:
        """The next slot, or the delay from the end of the run, when this slot is claimed at `now`."""
        if self.cadence == "fixed_delay":
            return None, self.every.interval.total_seconds()
        if self.cadence == "fixed_rate":
            return self.after_skipped(slot, now), None
        return self.after_skipped(now, slot), None

    def after_retried(self, slot: datetime, now: datetime) -> tuple[datetime | None, float | None]:
        if self.cadence == "fixed_rate":
            return step(self.every, slot, self.zone), None
        return self.after_fired(slot, now)

    def after_skipped(self, slot: datetime, other: datetime) -> datetime | None:
        """One interval after the slot, and if that is not later than the other instant, one interval after that."""
        following = step(self.every, slot, self.zone)
        return step(self.every, other, self.zone) if following is not None and following <= other else following


class GridSeries(NamedTuple):
    """A slot, which somebody may have moved by hand, then the grid's points later than `after`, each plus `offset`."""

    due: datetime
    after: datetime
    offset: timedelta
    schedule: Cron | Solar | Once
    zone: tzinfo

    def following(self, slot: datetime) -> datetime | None:
        after = self.after if slot == self.due else slot - self.offset
        point = next_after(self.schedule, after, self.zone)
        return None if point is None else plus(point, self.offset)

    def latest(self, now: datetime) -> datetime:
        point = latest_at(self.schedule, self.after, now - self.offset, self.zone)
        return self.due if point is None else point + self.offset

    def count_before(self, slot: datetime) -> int:
        if slot == self.due:
            return 0
        return 1 + count_between(self.schedule, self.after + TICK, slot - self.offset - TICK, self.zone)

    def preceding(self, slot: datetime) -> datetime:
        return self.latest(slot - TICK)

    def after_fired(self, slot: datetime, now: datetime) -> tuple[datetime | None, float | None]:
        return self.following(slot), None

    def after_retried(self, slot: datetime, now: datetime) -> tuple[datetime | None, float | None]:
        return self.following(slot), None

    def after_skipped(self, slot: datetime, now: datetime) -> datetime | None:
        return self.following(slot)

    def from_end(self, count: int, latest: datetime) -> datetime:
        """The slot from which on `count` slots are left up to the latest one, or the first."""
        if self.count_before(latest) < count:
            return self.due
        last = high = latest - self.offset
        low = self.after + TICK
        while high - low > timedelta(seconds=1):
            middle = low + (high - low) / 2
            if count_between(self.schedule, middle, last, self.zone) >= count:
                low = middle
            else:
                high = middle
        return self.starting_at(low + self.offset)

    def starting_at(self, instant: datetime) -> datetime:
        """The first slot not earlier than this instant, which is not later than the latest slot."""
        point = next_after(self.schedule, instant - self.offset - TICK, self.zone)
        return self.due if point is None else point + self.offset


def grid_series(schedule: Cron | Solar | Once, zone: tzinfo, due: datetime, offset: timedelta) -> GridSeries:
    """The series from `due` on, which is a point of the grid plus the offset, unless somebody moved it."""
    if isinstance(schedule, Once):
        return GridSeries(due, max(due, schedule.at), offset, schedule, zone)
    after = shifted(due, -offset)
    # Moved by hand, or the jitter is a new one: count from the slot itself, or one point would fire under two offsets.
    if offset and next_after(schedule, shifted(after, -TICK), zone) != after:
        after = due
    if isinstance(schedule, Solar):
        after = shifted(after, SAME_EVENT)
    return GridSeries(due, after, offset, schedule, zone)
