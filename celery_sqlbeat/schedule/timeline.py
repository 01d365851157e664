"""Decide what to do with a due job: the slot to fire, the gap to record, and the next slot.

Pure: `now` is the database server's clock at the claim. The caller records the answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

from celery_sqlbeat.schedule.cron import Cron
from celery_sqlbeat.schedule.cron_times import next_wall
from celery_sqlbeat.schedule.grid import GridSeries, IntervalSeries, grid_series, next_after
from celery_sqlbeat.schedule.solar import Solar
from celery_sqlbeat.schedule.text import Every, Once, Schedule, step
from celery_sqlbeat.schedule.zone import TICK, plus

NO_OFFSET = timedelta()


@lru_cache(maxsize=65536)
def offset_of(key: str, jitter: float) -> timedelta:
    """Return the job's share of the jitter (seconds): the same in every process, evenly spread."""
    fraction = int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), "big")
    return timedelta(microseconds=fraction * int(jitter * 1_000_000) >> 64)


OVERLAP = "overlap"  # why a slot did not run: the run before it went on
DEFAULT_GRACE = 60.0  # seconds; a slot later than this is skipped under misfire=skip, where the job does not say


class Misfire(NamedTuple):
    """The policy for late slots."""

    policy: str = "coalesce"
    grace: float | None = None
    """In seconds, for `skip`; None: the default."""
    catch_up_limit: int = 10
    deadline: float | None = None
    """Celery's `beat_cron_starting_deadline` in seconds, which counts for crontabs only."""


COALESCE = Misfire()


class Gap(NamedTuple):
    """Slots that never fire, as one record; the reason is that of the first."""

    first: datetime
    last: datetime
    count: int  # type: ignore[assignment]  # nobody counts in a gap as one does in a tuple
    reason: str


class Fire(NamedTuple):
    """Fire this slot. `delay` (seconds after the run) stands for a next slot not known yet."""

    slot: datetime
    next_slot: datetime | None
    delay: float | None
    gap: Gap | None


class Skip(NamedTuple):
    """Fire nothing. Without a gap it was no slot: a custom schedule says that it is not due yet."""

    gap: Gap | None
    next_slot: datetime | None


@dataclass(frozen=True, slots=True)
class Timeline:
    """The slots of one job: a schedule in a time zone, with a jitter in seconds and a cadence."""

    schedule: Schedule
    zone: tzinfo
    jitter: float = 0.0
    cadence: str = "from_start"

    def first_slot(self, added_at: datetime, start: datetime | None = None, key: str = "") -> datetime | None:
        """Return the slot that a new job begins with."""
        schedule = self.schedule
        if isinstance(schedule, Once):
            slot: datetime | None = schedule.at
        elif not isinstance(schedule, Every):
            slot = next_after(schedule, start - TICK if start and start > added_at else added_at, self.zone)
        elif start is None:
            slot = step(schedule, added_at, self.zone)
        else:
            passed = max(0, -((start - added_at) // schedule.interval))
            slot = plus(start, passed * schedule.interval)
        return None if slot is None else plus(slot, self.offset(key))

    def plan(
        self,
        due: datetime,
        now: datetime,
        last_run: datetime | None = None,
        misfire: Misfire = COALESCE,
        key: str = "",
    ) -> Fire | Skip:
        """Decide about the oldest open slot of a job claimed at `now`, and those missed since."""
        series = self._series(due, key)
        following = series.following(due)
        slot = latest = due
        if following is not None and following <= now:
            slot = latest = series.latest(now)
            if misfire.policy == "catch_up":
                slot = series.from_end(max(1, misfire.catch_up_limit), latest)
        patience = self._patience(misfire)
        if patience is not None:
            if (now - latest).total_seconds() > patience:
                gap = Gap(due, latest, series.count_before(latest) + 1, _reason(due, last_run))
                return Skip(gap, series.after_skipped(latest, now))
            if (now - slot).total_seconds() > patience and isinstance(series, GridSeries):
                slot = series.starting_at(now - timedelta(seconds=patience))
        gap_before = None
        if slot != due:
            gap_before = Gap(due, series.preceding(slot), series.count_before(slot), _reason(due, last_run))
        if slot != latest:
            return Fire(slot, series.following(slot), None, gap_before)
        return Fire(slot, *series.after_fired(slot, now), gap_before)

    def passed_by(self, due: datetime, until: datetime, key: str = "") -> Skip:
        """Return the slots from `due` to `until`, which are skipped because a run was going on."""
        series = self._series(due, key)
        last = series.latest(max(due, until))
        return Skip(Gap(due, last, series.count_before(last) + 1, OVERLAP), series.after_skipped(last, until))

    def next_after_retry(self, slot: datetime, now: datetime, key: str = "") -> tuple[datetime | None, float | None]:
        """Return the next slot, or the delay after the run, for a later attempt claimed at `now`.

        On a grid it is the next point even if that has passed; its plan records what was missed.
        """
        return self._series(slot, key).after_retried(slot, now)

    def following(self, slot: datetime, key: str = "") -> datetime | None:
        """Return the slot after this one, if its run ends in time."""
        if isinstance(self.schedule, Every):
            return step(self.schedule, slot, self.zone)
        return self._series(slot, key).following(slot)

    def offset(self, key: str) -> timedelta:
        """Return the job's own share of the jitter."""
        return offset_of(key, self.jitter) if self.jitter else NO_OFFSET

    def _series(self, due: datetime, key: str) -> IntervalSeries | GridSeries:
        schedule = self.schedule
        if isinstance(schedule, Every):
            return IntervalSeries(due, schedule, self.zone, self.cadence)
        return grid_series(schedule, self.zone, due, self.offset(key))

    def _patience(self, misfire: Misfire) -> float | None:
        """Return how late, in seconds, a slot may still fire; None for any lateness."""
        limits = []
        if misfire.policy == "skip":
            limits.append(DEFAULT_GRACE if misfire.grace is None else misfire.grace)
        if misfire.deadline is not None and isinstance(self.schedule, Cron):
            limits.append(misfire.deadline)
        return min(limits) if limits else None


def _reason(first: datetime, last_run: datetime | None) -> str:
    """Return why slots were missed: the previous run went on, or no beat fired."""
    return OVERLAP if last_run is not None and first <= last_run else "misfire"


_MINUTE = timedelta(minutes=1)


class Forecast(NamedTuple):
    """One fire to come."""

    at: datetime
    local: datetime
    """The same instant in the job's time zone."""
    note: str | None
    """What is odd about it: the clocks change."""


def forecasts(timeline: Timeline, slot: datetime, since: datetime, key: str = "") -> Iterator[Forecast]:
    """Yield the fires from this slot on, if each run ends in time; `since` is the present."""
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
