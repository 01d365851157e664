"""What to do with a due job: which slot to fire, which missed ones to record as a gap, and when the next one is.

Pure: `now` is the database server's clock at the claim. Whoever calls records the answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from typing import NamedTuple

from celery_sqlbeat.schedule.cron import Cron
from celery_sqlbeat.schedule.edges import plus
from celery_sqlbeat.schedule.every import Every, step
from celery_sqlbeat.schedule.grid import next_after
from celery_sqlbeat.schedule.jitter import NO_OFFSET, offset_of
from celery_sqlbeat.schedule.once import Once
from celery_sqlbeat.schedule.series import GridSeries, IntervalSeries, grid_series
from celery_sqlbeat.schedule.text import Schedule
from celery_sqlbeat.schedule.zone import TICK

OVERLAP = "overlap"  # why a slot did not run: the run before it went on
DEFAULT_GRACE = 60.0  # seconds; a slot later than this is skipped under misfire=skip, where the job does not say


class Misfire(NamedTuple):
    """What becomes of slots that are late."""

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
    """Fire this slot. `delay`, in seconds from the end of the run, takes the place of a next slot not known yet."""

    slot: datetime
    next_slot: datetime | None
    delay: float | None
    gap: Gap | None


class Skip(NamedTuple):
    """Fire nothing now. Without a gap it was no slot: a custom schedule says that it is not due yet."""

    gap: Gap | None
    next_slot: datetime | None


@dataclass(frozen=True, slots=True)
class Timeline:
    """The slots of one job: its schedule in its time zone, with its jitter in seconds and its cadence."""

    schedule: Schedule
    zone: tzinfo
    jitter: float = 0.0
    cadence: str = "from_start"

    def first_slot(self, added_at: datetime, start: datetime | None = None, key: str = "") -> datetime | None:
        """The slot that a new job begins with."""
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
        """What a job claimed at `now` does about its oldest unhandled slot and those missed since."""
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
        """The slots from `due` on that came until then, and were passed by because a run went on."""
        series = self._series(due, key)
        last = series.latest(max(due, until))
        return Skip(Gap(due, last, series.count_before(last) + 1, OVERLAP), series.after_skipped(last, until))

    def next_after_retry(self, slot: datetime, now: datetime, key: str = "") -> tuple[datetime | None, float | None]:
        """The next slot, or the delay from the end of the run, when a later attempt of this slot is claimed at `now`.

        On a grid it is the point after the slot even if that has passed: the plan made for it records what was missed.
        """
        return self._series(slot, key).after_retried(slot, now)

    def following(self, slot: datetime, key: str = "") -> datetime | None:
        """The slot after this one, if its run ends in time."""
        if isinstance(self.schedule, Every):
            return step(self.schedule, slot, self.zone)
        return self._series(slot, key).following(slot)

    def offset(self, key: str) -> timedelta:
        """The job's own share of the jitter."""
        return offset_of(key, self.jitter) if self.jitter else NO_OFFSET

    def _series(self, due: datetime, key: str) -> IntervalSeries | GridSeries:
        schedule = self.schedule
        if isinstance(schedule, Every):
            return IntervalSeries(due, schedule, self.zone, self.cadence)
        return grid_series(schedule, self.zone, due, self.offset(key))

    def _patience(self, misfire: Misfire) -> float | None:
        """How many seconds late a slot may still fire."""
        limits = []
        if misfire.policy == "skip":
            limits.append(DEFAULT_GRACE if misfire.grace is None else misfire.grace)
        if misfire.deadline is not None and isinstance(self.schedule, Cron):
            limits.append(misfire.deadline)
        return min(limits) if limits else None


def _reason(first: datetime, last_run: datetime | None) -> str:
    """Missed while the previous run was still going, or for want of a beat."""
    return OVERLAP if last_run is not None and first <= last_run else "misfire"
