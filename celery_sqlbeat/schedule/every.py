"""Intervals: `every 1h30m`, `every 0.5s relative`.

An interval has no grid of its own; whoever uses it says where the counting begins.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone, tzinfo

from celery_sqlbeat.errors import ScheduleError
from celery_sqlbeat.schedule.edges import within

SHORTEST = timedelta(milliseconds=1)  # below it beat could not keep up with a single job
LONGEST = timedelta(days=36500)  # a century; "never" is a paused job, not an interval
MICROSECOND = timedelta(microseconds=1)
ALLOWED = (
    "an interval is written like every 5s, every 1h30m or every 0.5s, in units d h m s ms, with or without relative"
)
BOUNDS = "an interval lies between 0.001s and 36500d"

_UNITS = {"d": 86_400_000_000, "h": 3_600_000_000, "m": 60_000_000, "s": 1_000_000, "ms": 1_000}  # in microseconds
_PART = re.compile(r"\s*(\d{1,15})(?:\.(\d{1,15}))?\s*(ms|[dhms])", re.ASCII)


@dataclass(frozen=True, slots=True)
class Every:
    """Fires again and again, this long apart; `relative` rounds down to the interval's own unit as Celery does."""

    interval: timedelta
    relative: bool = False

    def __post_init__(self) -> None:
        if not SHORTEST <= self.interval <= LONGEST:
            raise ScheduleError(f"every {self.interval.total_seconds():g}s", BOUNDS)

    def __str__(self) -> str:
        left = self.interval // MICROSECOND
        text = ""
        for unit in "dhm":
            count, left = divmod(left, _UNITS[unit])
            text += f"{count}{unit}" if count else ""
        if left or not text:
            text += f"{left / 1_000_000:.6f}".rstrip("0").rstrip(".") + "s"
        return f"every {text} relative" if self.relative else f"every {text}"


def read_every(words: list[str], text: str) -> Every:
    """The interval that these words (all after `every`) name."""
    relative = words[-1:] == ["relative"]
    body = " ".join(words[:-1] if relative else words)
    at = total = 0
    units: list[str] = []
    while match := _PART.match(body, at):
        whole, fraction, unit = match.groups(default="")
        scaled, rest = divmod(int(whole + fraction) * _UNITS[unit], 10 ** len(fraction))
        if rest:
            raise ScheduleError(text, "an interval is a whole number of microseconds")
        total, units, at = total + scaled, [*units, unit], match.end()
    if at == 0 or at != len(body) or units != [unit for unit in _UNITS if unit in units]:
        raise ScheduleError(text, ALLOWED)
    if not SHORTEST // MICROSECOND <= total <= LONGEST // MICROSECOND:
        raise ScheduleError(text, BOUNDS)
    return Every(timedelta(microseconds=total), relative)


def step(every: Every, start: datetime, zone: tzinfo) -> datetime | None:
    """When an interval that begins at `start` ends; None beyond the end of the calendar."""
    try:
        return within(_rounded_end(every.interval, start, zone) if every.relative else start + every.interval)
    except OverflowError:
        return None


def _rounded_end(interval: timedelta, start: datetime, zone: tzinfo) -> datetime:
    """The end of a relative interval: exactly what celery.schedules.schedule(relative=True) waits for."""
    end = start + interval
    day = interval >= timedelta(days=1)
    # Days are counted on the wall calendar: 24 elapsed hours may end on another date when the clocks change.
    wall = start.astimezone(zone) + interval if day else end.astimezone(zone)
    candidates = _occurrences(_round(wall, interval), zone)
    if day:
        return min((at for at in candidates if at > start), default=_utc(wall))
    rounded = max((at for at in candidates if at <= end), default=min(candidates))
    if rounded <= start and interval >= timedelta(minutes=1):
        # The clocks went back by less than the unit: the boundary just passed cannot be the next one.
        unit = timedelta(hours=1) if interval >= timedelta(hours=1) else timedelta(minutes=1)
        candidates += _occurrences(_round(wall + unit, interval), zone)
        candidates += _occurrences(_round(start.astimezone(zone) + interval, interval), zone)
        later = [at for at in candidates if at > start]
        rounded = max((at for at in later if at <= end), default=min(later, default=end))
    # Rounding less than a second may fall before its own start, where Celery waits for the plain interval.
    return rounded if rounded > start else end


def _round(wall: datetime, interval: timedelta) -> datetime:
    if interval >= timedelta(days=1):
        return wall.replace(hour=0, minute=0, second=0, microsecond=0)
    if interval >= timedelta(hours=1):
        return wall.replace(minute=0, second=0, microsecond=0)
    if interval >= timedelta(minutes=1):
        return wall.replace(second=0, microsecond=0)
    return wall.replace(microsecond=0)


def _occurrences(wall: datetime, zone: tzinfo) -> list[datetime]:
    """The instants at which clocks show this time: one, or two; one that never shows is moved past the gap."""
    first = _utc(wall.replace(fold=0))
    exists = first.astimezone(zone).replace(tzinfo=None) == wall.replace(tzinfo=None)
    return [first, _utc(wall.replace(fold=1))] if exists else [first]


def _utc(wall: datetime) -> datetime:
    return wall.astimezone(timezone.utc)
