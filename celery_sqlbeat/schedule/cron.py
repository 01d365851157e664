"""Read crontabs, `cron */5 9-17 * * mon-fri`: `*`, numbers, names, ranges, steps and lists.

The language is that of celery.schedules.crontab, but what Celery silently ignores (`1-5-7`,
`*/5x`) is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from celery_sqlbeat.errors import ScheduleError

_PART = re.compile(r"(?:(\*)|([a-z]+|\d{1,9})-([a-z]+|\d{1,9}))(?:/(\d{1,9}))?|([a-z]+|\d{1,9})", re.ASCII)


class Field(NamedTuple):
    """One of the five fields: its name, its range, and the names its values may go by."""

    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()

    @property
    def allowed(self) -> str:
        """Say which values the field takes."""
        names = f" or {self.names[0][:3]}-{self.names[-1][:3]}" if self.names else ""
        return (
            f"the {self.name} is {self.low}-{self.high}{names}, with *, ranges a-b, steps */n or a-b/n, and lists a,b"
        )


MINUTE = Field("minute", 0, 59)
HOUR = Field("hour", 0, 23)
DAY_OF_MONTH = Field("day of month", 1, 31)
MONTH_OF_YEAR = Field(
    "month", 1, 12,
    ("january", "february", "march", "april", "may", "june",
     "july", "august", "september", "october", "november", "december"),
)  # fmt: skip
DAY_OF_WEEK = Field("day of week", 0, 6, ("sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday"))
FIELDS = (MINUTE, HOUR, DAY_OF_MONTH, MONTH_OF_YEAR, DAY_OF_WEEK)


def read_field(field: Field, text: str) -> tuple[int, bool]:
    """Return the values of a field as bits, and whether it is a wildcard (`*`, `*/n`, or all)."""
    bits = 0
    wildcard = False
    for part in text.split(","):
        values = _values(field, part)
        for value in values:
            bits |= 1 << value
        wildcard = wildcard or part.startswith("*") or len(values) == field.high - field.low + 1
    return bits, wildcard


def write_field(field: Field, values: Iterable[int]) -> str:
    """Return the shortest list of numbers and ranges for these values."""
    wanted = sorted(set(values))
    if wanted == list(range(field.low, field.high + 1)):
        return "*"
    runs: list[list[int]] = []
    for value in wanted:
        if runs and runs[-1][1] == value - 1:
            runs[-1][1] = value
        else:
            runs.append([value, value])
    return ",".join(f"{first}-{last}" if first < last else f"{first}" for first, last in runs)


def _values(field: Field, part: str) -> list[int]:
    match = _PART.fullmatch(part)
    if match is None:
        raise ScheduleError(part, field.allowed)
    star, first, last, every, single = match.groups()
    if single is not None:
        return [_number(field, single)]
    values = list(range(field.low, field.high + 1))
    if star is None:
        low, high = _number(field, first) - field.low, _number(field, last) - field.low
        # A range may run past the end, as 22-2 does through midnight.
        values = values[low : high + 1] if low <= high else values[low:] + values[: high + 1]
    if every is not None and int(every) == 0:
        raise ScheduleError(part, "a step is at least 1")
    return values[:: int(every or 1)]


def _number(field: Field, word: str) -> int:
    if word.isdigit():
        value = int(word)
        if field.low <= value <= field.high:
            return value
    elif len(word) >= 3:
        for value, name in enumerate(field.names, field.low):
            if name.startswith(word):
                return value
    raise ScheduleError(word, field.allowed)


_TEXTS = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")
LONGEST_MONTH = (0, 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


@dataclass(frozen=True, slots=True)
class Cron:
    """Fires at every minute that all five fields match, in the job's time zone."""

    minute: str = field(default="*", compare=False)
    hour: str = field(default="*", compare=False)
    day_of_month: str = field(default="*", compare=False)
    month_of_year: str = field(default="*", compare=False)
    day_of_week: str = field(default="*", compare=False)
    #: Minutes of the day.
    times: tuple[int, ...] = field(init=False, repr=False, compare=False)
    #: The matching days of a month whose first day is this weekday (Sunday is 0), one bit per day.
    days: tuple[int, ...] = field(init=False, repr=False)
    months: int = field(init=False, repr=False)
    clock: tuple[int, int] = field(init=False, repr=False)
    #: Follows elapsed time: fires through both passes of a repeated hour.
    every_hour: bool = field(init=False, repr=False)
    #: Fires at the end of a gap for the minutes that the gap swallowed.
    makes_up: bool = field(init=False, repr=False)

    def __post_init__(self) -> None:
        texts = ["".join(getattr(self, name).lower().split()) for name in _TEXTS]
        (minutes, any_minute), (hours, any_hour), (dates, _), (months, _), (weekdays, _) = map(
            read_field, FIELDS, texts
        )
        if not any(months >> month & 1 and dates & (2 << LONGEST_MONTH[month]) - 1 for month in range(1, 13)):
            raise ScheduleError(str(self), "no such day exists in any of these months: it would never fire")
        derived = {
            "times": _times(minutes, hours),
            "days": tuple(_dates_on(dates, weekdays, first) for first in range(7)),
            "months": months,
            "clock": (minutes, hours),
            "every_hour": any_hour,
            "makes_up": not any_hour and not any_minute,
        }
        for name, value in (*zip(_TEXTS, texts, strict=True), *derived.items()):
            object.__setattr__(self, name, value)

    def __str__(self) -> str:
        return f"cron {self.minute} {self.hour} {self.day_of_month} {self.month_of_year} {self.day_of_week}"


def read_cron(words: list[str], text: str) -> Cron:
    """Return the crontab that these words (all after `cron`) name."""
    if len(words) != len(FIELDS):
        raise ScheduleError(text, "a crontab has five fields: minute, hour, day of month, month, day of week")
    return Cron(*words)


@lru_cache(maxsize=1024)
def _times(minutes: int, hours: int) -> tuple[int, ...]:
    """Return the minutes of the day, shared by all crontabs with the same clock fields."""
    return tuple(
        hour * 60 + minute for hour in range(24) if hours >> hour & 1 for minute in range(60) if minutes >> minute & 1
    )


def _dates_on(dates: int, weekdays: int, first: int) -> int:
    return sum(1 << day for day in range(1, 32) if dates >> day & 1 and weekdays >> (first + day - 1) % 7 & 1)
