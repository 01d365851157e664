"""Celery's own schedule objects to ours and back, for a `beat_schedule` and for the way back to stock beat.

The only module of this room that imports Celery; custom schedule classes stay what they are (None: not text).
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any

from celery import schedules

from celery_sqlbeat.errors import FieldError, ScheduleError
from celery_sqlbeat.schedule.cron import Cron
from celery_sqlbeat.schedule.every import Every
from celery_sqlbeat.schedule.fields import FIELDS, MONTH_OF_YEAR, Field, read_field, write_field
from celery_sqlbeat.schedule.once import Once
from celery_sqlbeat.schedule.solar import Solar
from celery_sqlbeat.schedule.text import Schedule, parse

_FAR = timedelta(days=1)  # how long stock beat waits before it looks again at a `once` that has fired


class once(schedules.BaseSchedule):  # type: ignore[misc]  # noqa: N801  # Celery is untyped; its schedules are lower case
    """A single instant, for stock beat."""

    def __init__(self, at: datetime, nowfun: Any = None, app: Any = None) -> None:
        super().__init__(nowfun=nowfun, app=app)
        self.at = at

    def remaining_estimate(self, last_run_at: datetime) -> timedelta:
        left: timedelta = self.at - self.maybe_make_aware(self.now())
        return left if self.maybe_make_aware(last_run_at) < self.at else _FAR

    def is_due(self, last_run_at: datetime) -> tuple[bool, float]:
        left = self.remaining_estimate(last_run_at)
        return (False, left.total_seconds()) if left > timedelta() else (True, _FAR.total_seconds())

    def __repr__(self) -> str:
        return f"<once: {self.at.isoformat()}>"

    def __eq__(self, other: object) -> bool:
        return self.at == other.at if isinstance(other, once) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.at)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.at, self.nowfun)


def from_celery(value: Any, relative: bool = False) -> Schedule | None:
    """The schedule that means the same; None for a custom class, which cannot be written as text.

    `relative` is the entry's, and counts as in stock beat: for numbers and timedeltas only.
    """
    if isinstance(value, Every | Cron | Solar | Once):
        return value
    if isinstance(value, str):
        return parse(value)
    if isinstance(value, timedelta):
        return Every(value, bool(relative))
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _every_seconds(value, bool(relative))
    if type(value) is schedules.schedule:
        return Every(value.run_every, bool(value.relative))
    if type(value) is schedules.crontab:
        return _cron(value)
    if type(value) is schedules.solar:
        return Solar(value.event, value.lat, value.lon)
    if type(value) is once:
        return Once(value.at)
    if callable(getattr(value, "is_due", None)):
        return None
    raise ScheduleError(value, "a schedule is a number of seconds, a timedelta, a schedule object of Celery, or text")


def to_celery(schedule: Schedule, app: Any = None) -> schedules.BaseSchedule:
    """The stock schedule object that means the same; a crontab counts in the app's time zone."""
    if isinstance(schedule, Every):
        stock = schedules.schedule(schedule.interval, schedule.relative)
    elif isinstance(schedule, Cron):
        stock = schedules.crontab(
            minute=schedule.minute,
            hour=schedule.hour,
            day_of_week=schedule.day_of_week,
            day_of_month=schedule.day_of_month,
            # Plain numbers, as Celery before 5.5 knows no names of months.
            month_of_year=write_field(MONTH_OF_YEAR, (month for month in range(1, 13) if schedule.months >> month & 1)),
        )
    elif isinstance(schedule, Solar):
        stock = schedules.solar(schedule.event, schedule.latitude, schedule.longitude)
    else:
        stock = once(schedule.at)
    if app is not None:
        stock.app = app
    return stock


def zone_of(value: Any) -> str | None:
    """The time zone that a stock crontab brings along (its own `tz` or `nowfun`); None where it is the app's."""
    if type(value) is not schedules.crontab or not (value.nowfun or "tz" in vars(value)):
        return None
    # Whether a nowfun's zone counts differs between versions of Celery: ask the installed one which it reads in.
    zone = value.remaining_delta(value.now())[0].tzinfo
    return _zone_name(zone)


def _zone_name(zone: tzinfo | None) -> str:
    name = getattr(zone, "key", None) or getattr(zone, "zone", None)
    if isinstance(name, str):
        return name
    if zone == timezone.utc:
        return "UTC"
    raise FieldError("TimeZone", zone, "use a zone with a name, such as zoneinfo.ZoneInfo('Europe/London')")


def _every_seconds(seconds: float, relative: bool) -> Every:
    try:
        return Every(timedelta(seconds=seconds), relative)
    except (OverflowError, ValueError):  # ValueError: not a number
        raise ScheduleError(seconds, "an interval in seconds lies between 0.001 and 3153600000") from None


def _cron(value: schedules.crontab) -> Cron:
    fields = (
        (value._orig_minute, value.minute),
        (value._orig_hour, value.hour),
        (value._orig_day_of_month, value.day_of_month),
        (value._orig_month_of_year, value.month_of_year),
        (value._orig_day_of_week, value.day_of_week),
    )
    return Cron(*(_field_text(field, text, values) for field, (text, values) in zip(FIELDS, fields, strict=True)))


def _field_text(field: Field, text: object, values: set[int]) -> str:
    """The field as it was written if we read it as Celery does, else its values one by one."""
    if isinstance(text, str):
        try:
            bits, _ = read_field(field, text.lower())
        except ScheduleError:
            return write_field(field, values)
        if bits == sum(1 << value for value in values):
            return text
    return write_field(field, values)
