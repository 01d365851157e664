"""Crontabs, `cron */5 9-17 * * mon-fri`: the text and what it means.

A day has to match day of month, month and day of week, as in Celery.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from celery_sqlbeat.errors import ScheduleError
from celery_sqlbeat.schedule.fields import FIELDS, read_field

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
    """The crontab that these words (all after `cron`) name."""
    if len(words) != len(FIELDS):
        raise ScheduleError(text, "a crontab has five fields: minute, hour, day of month, month, day of week")
    return Cron(*words)


@lru_cache(maxsize=1024)
def _times(minutes: int, hours: int) -> tuple[int, ...]:
    """The minutes of the day, shared by all crontabs with the same clock fields."""
    return tuple(
        hour * 60 + minute for hour in range(24) if hours >> hour & 1 for minute in range(60) if minutes >> minute & 1
    )


def _dates_on(dates: int, weekdays: int, first: int) -> int:
    return sum(1 << day for day in range(1, 32) if dates >> day & 1 and weekdays >> (first + day - 1) % 7 & 1)
