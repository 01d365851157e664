"""Read the text of a schedule: a crontab, a solar event, an interval or a single instant.

Any text gives a schedule, or a ScheduleError that says what is allowed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone, tzinfo
from functools import lru_cache

from celery_sqlbeat.config.plugins import SCHEDULES
from celery_sqlbeat.errors import ScheduleError
from celery_sqlbeat.schedule.cron import Cron, read_cron
from celery_sqlbeat.schedule.custom import Custom, read_custom
from celery_sqlbeat.schedule.solar import Solar, read_solar
from celery_sqlbeat.schedule.zone import BOUNDS, within

SHORTEST = timedelta(milliseconds=1)  # below it beat could not keep up with a single job
LONGEST = timedelta(days=36500)  # a century; "never" is a paused job, not an interval
MICROSECOND = timedelta(microseconds=1)
INTERVAL_FORMS = (
    "an interval is written like every 5s, every 1h30m or every 0.5s, in units d h m s ms, with or without relative"
)
INTERVAL_BOUNDS = "an interval lies between 0.001s and 36500d"

_UNITS = {"d": 86_400_000_000, "h": 3_600_000_000, "m": 60_000_000, "s": 1_000_000, "ms": 1_000}  # in microseconds
_PART = re.compile(r"\s*(\d{1,15})(?:\.(\d{1,15}))?\s*(ms|[dhms])", re.ASCII)


@dataclass(frozen=True, slots=True)
class Every:
    """Fires at this interval; `relative` rounds down to the interval's unit, as Celery does."""

    interval: timedelta
    relative: bool = False

    def __post_init__(self) -> None:
        if not SHORTEST <= self.interval <= LONGEST:
            raise ScheduleError(f"every {self.interval.total_seconds():g}s", INTERVAL_BOUNDS)

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
    """Return the interval that these words (all after `every`) name."""
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
        raise ScheduleError(text, INTERVAL_FORMS)
    if not SHORTEST // MICROSECOND <= total <= LONGEST // MICROSECOND:
        raise ScheduleError(text, INTERVAL_BOUNDS)
    return Every(timedelta(microseconds=total), relative)


def step(every: Every, start: datetime, zone: tzinfo) -> datetime | None:
    """Return the end of an interval that begins at `start`; None beyond the calendar."""
    try:
        return within(_rounded_end(every.interval, start, zone) if every.relative else start + every.interval)
    except OverflowError:
        return None


def _rounded_end(interval: timedelta, start: datetime, zone: tzinfo) -> datetime:
    """Return the end of a relative interval: that of celery.schedules.schedule(relative=True)."""
    end = start + interval
    day = interval >= timedelta(days=1)
    # Days are counted on the calendar: 24 elapsed hours may end on another date when clocks change.
    wall = start.astimezone(zone) + interval if day else end.astimezone(zone)
    candidates = _occurrences(_round(wall, interval), zone)
    if day:
        return min((at for at in candidates if at > start), default=_utc(wall))
    rounded = max((at for at in candidates if at <= end), default=min(candidates))
    if rounded <= start and interval >= timedelta(minutes=1):
        # The clocks went back by less than the unit: the boundary just passed is not the next one.
        unit = timedelta(hours=1) if interval >= timedelta(hours=1) else timedelta(minutes=1)
        candidates += _occurrences(_round(wall + unit, interval), zone)
        candidates += _occurrences(_round(start.astimezone(zone) + interval, interval), zone)
        later = [at for at in candidates if at > start]
        rounded = max((at for at in later if at <= end), default=min(later, default=end))
    # Rounded to a second it may lie before its own start; Celery then waits the plain interval.
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
    """Return the one or two instants at which clocks show this time; in a gap, the one after it."""
    first = _utc(wall.replace(fold=0))
    exists = first.astimezone(zone).replace(tzinfo=None) == wall.replace(tzinfo=None)
    return [first, _utc(wall.replace(fold=1))] if exists else [first]


def _utc(wall: datetime) -> datetime:
    return wall.astimezone(timezone.utc)


INSTANT_FORMS = (
    "an instant is written like once 2027-01-31T09:00:00Z, or with an offset as in once 2027-01-31T10:00:00+01:00"
)

_ISO = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[t ](\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,6}))?)?\s?(?:z|([+-])(\d\d):?(\d\d)?)", re.ASCII
)


@dataclass(frozen=True, slots=True)
class Once:
    """Fires a single time."""

    at: datetime

    def __post_init__(self) -> None:
        if self.at.tzinfo is None:
            raise ScheduleError(
                f"once {self.at.isoformat()}", "say the time zone: add Z for UTC, or an offset as in +01:00"
            )
        try:
            at = within(self.at.astimezone(timezone.utc))
        except OverflowError:
            at = None
        if at is None:
            raise ScheduleError(f"once {self.at.isoformat()}", f"{BOUNDS}; disable a job that is never to run")
        object.__setattr__(self, "at", at)

    def __str__(self) -> str:
        return f"once {self.at.replace(tzinfo=None).isoformat()}Z"


def read_once(words: list[str], text: str) -> Once:
    """Return the instant that these words (all after `once`) name."""
    match = _ISO.fullmatch(" ".join(words))
    if match is None:
        raise ScheduleError(text, INSTANT_FORMS)
    *date, second, fraction, sign, hours, minutes = match.groups(default="0")
    offset = timedelta(hours=int(hours), minutes=int(minutes))
    try:
        zone = timezone(-offset if sign == "-" else offset)
        numbers = [int(part) for part in (*date, second, fraction.ljust(6, "0"))]
        return Once(datetime(*numbers, tzinfo=zone))  # type: ignore[arg-type,misc]  # mypy counts the zone among the numbers
    except ValueError as error:
        raise ScheduleError(text, f"no such instant ({error})") from None


Schedule = Every | Cron | Solar | Once | Custom

LONGEST_TEXT = 1000  # characters; five crontab fields with every value listed take half of it

_READERS: dict[str, Callable[[list[str], str], Schedule]] = {
    "every": read_every,
    "cron": read_cron,
    "solar": read_solar,
    "once": read_once,
}


def parse(text: str) -> Schedule:
    """Return the schedule that this text stands for; `str(schedule)` gives the text back."""
    if not isinstance(text, str):
        raise ScheduleError(text, "a schedule is text, such as every 5s")
    if len(text) > LONGEST_TEXT:
        raise ScheduleError(text[:100], f"a schedule has at most {LONGEST_TEXT} characters, this one has {len(text)}")
    return _read(text)


@lru_cache(maxsize=16384)
def _read(text: str) -> Schedule:
    kind, *words = text.lower().split() or [""]
    if kind not in _READERS:
        custom = read_custom(kind, " ".join(text.split()[1:]))
        if custom is not None:
            return custom
        others = [name for name in SCHEDULES.names() if name not in _READERS]
        raise ScheduleError(
            text,
            "a schedule is one of: every 1h30m, cron MINUTE HOUR DAY_OF_MONTH MONTH DAY_OF_WEEK, "
            "solar sunset 51.5 -0.12, once 2027-01-31T09:00:00Z"
            + (f", or of the kinds that were added: {', '.join(others)}" if others else ""),
        )
    try:
        return _READERS[kind](words, text)
    except ScheduleError as error:
        if error.value == text:
            raise
        raise ScheduleError(text, f"{error.value!r}: {error.remedy}") from None
