"""Celery's schedule objects: to ours and back, by which clock they count, and a fingerprint.

A custom schedule class stays what it is: it has no text. A fingerprint is the same in every process
that runs the same code: it contains no hash(), repr() or address.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any
from uuid import UUID

from celery import schedules
from celery.beat import BeatLazyFunc, ScheduleEntry, Scheduler

from celery_sqlbeat.errors import FieldError, ScheduleError
from celery_sqlbeat.schedule.cron import FIELDS, MONTH_OF_YEAR, Cron, Field, read_field, write_field
from celery_sqlbeat.schedule.custom import Custom
from celery_sqlbeat.schedule.grid import next_after
from celery_sqlbeat.schedule.solar import Solar
from celery_sqlbeat.schedule.text import Every, Once, Schedule, parse

_FAR = timedelta(days=1)  # how long stock beat waits before it asks a `once` that has fired again
_LITERALS = (type(None), bool, int, str)
_SPOKEN = (date, time, timedelta, Decimal, UUID, PurePath, float)  # their str() says all
_CRON_PARTS = ("_orig_minute", "_orig_hour", "_orig_day_of_month", "_orig_month_of_year", "_orig_day_of_week")
# What Celery's own schedules are made of; what a subclass adds may differ from process to process.
_SCHEDULE_PARTS = ("run_every", "relative", *_CRON_PARTS, "event", "lat", "lon", "nowfun")


class once(schedules.BaseSchedule):  # noqa: N801  # Celery's schedules are lower case
    """A single instant, for stock beat, whose file has this class by its module's path."""

    nowfun: Any

    def __init__(self, at: datetime, nowfun: Any = None, app: Any = None) -> None:
        super().__init__(nowfun=nowfun, app=app)
        self.at = at

    def remaining_estimate(self, last_run_at: datetime) -> timedelta:
        """Return the time until the instant; zero once it has passed."""
        left: timedelta = self.at - self.maybe_make_aware(self.now())
        return left if self.maybe_make_aware(last_run_at) < self.at else _FAR

    def is_due(self, last_run_at: datetime) -> Any:
        """Return whether the instant has come, and when to ask again."""
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


class custom(schedules.BaseSchedule):  # noqa: N801  # Celery's schedules are lower case
    """A schedule of a kind that others have added, for stock beat and for tools that ask."""

    nowfun: Any

    def __init__(self, text: str, nowfun: Any = None, app: Any = None) -> None:
        super().__init__(nowfun=nowfun, app=app)
        self.text = text

    def remaining_estimate(self, last_run_at: datetime) -> timedelta:
        """Return the time until the next instant; a day where there is none."""
        since = self.maybe_make_aware(last_run_at).astimezone(timezone.utc)
        at = next_after(parse(self.text), since, self.tz)  # type: ignore[arg-type]  # a gap in the stubs
        return _FAR if at is None else at - self.maybe_make_aware(self.now())

    def is_due(self, last_run_at: datetime) -> Any:
        """Return whether an instant has come, and when to ask again."""
        left = self.remaining_estimate(last_run_at)
        if left > timedelta():
            return False, left.total_seconds()
        return True, max(0.0, self.remaining_estimate(self.maybe_make_aware(self.now())).total_seconds())

    def __eq__(self, other: object) -> bool:
        return self.text == other.text if isinstance(other, custom) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.text)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.text, self.nowfun)


def from_celery(value: Any, relative: bool = False) -> Schedule | None:
    """Return the schedule that means the same; None for a custom class, which has no text.

    `relative` is the entry's, and counts as in stock beat: for numbers and timedeltas only.
    """
    if isinstance(value, Every | Cron | Solar | Once | Custom):
        return value
    if isinstance(value, str):
        return parse(value)
    if isinstance(value, timedelta):
        return Every(value, bool(relative))
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _every_seconds(value, bool(relative))
    if type(value) is schedules.schedule:
        return Every(value.run_every, bool(value.relative))  # type: ignore[attr-defined]  # a gap in the stubs
    if type(value) is schedules.crontab:
        return _cron(value)
    if type(value) is schedules.solar:
        return Solar(value.event, value.lat, value.lon)
    if type(value) in (once, custom):
        return Once(value.at) if type(value) is once else parse(value.text)
    if callable(getattr(value, "is_due", None)):
        return None
    raise ScheduleError(value, "a schedule is a number of seconds, a timedelta, a schedule object of Celery, or text")


def to_celery(schedule: Schedule, app: Any = None, zone: tzinfo | None = None) -> Any:
    """Return the stock schedule object that means the same, in this time zone or the app's."""
    stock: Any
    if isinstance(schedule, Every):
        stock = schedules.schedule(schedule.interval, schedule.relative)
    elif isinstance(schedule, Cron):
        stock = schedules.crontab(
            minute=schedule.minute,
            hour=schedule.hour,
            day_of_week=schedule.day_of_week,
            day_of_month=schedule.day_of_month,
            # Plain numbers: Celery before 5.5 knows no names of months.
            month_of_year=write_field(MONTH_OF_YEAR, (month for month in range(1, 13) if schedule.months >> month & 1)),
        )
    elif isinstance(schedule, Solar):
        event: Any = schedule.event  # one of the words that Celery knows
        stock = schedules.solar(event, schedule.latitude, schedule.longitude)
    elif isinstance(schedule, Custom):
        stock = custom(str(schedule))
    else:
        stock = once(schedule.at)
    if app is not None:
        stock.app = app
    if zone is not None:
        stock.tz = zone
    return stock


def is_schedule(value: object) -> bool:
    """Return whether this is a schedule object of Celery's, or of a subclass."""
    return isinstance(value, schedules.BaseSchedule)


def has_own_clock(schedule: Any) -> bool:
    """Return whether a schedule brings a function along that says what time it is."""
    return getattr(schedule, "nowfun", None) is not None


def is_in_app_zone(schedule: Any) -> bool:
    """Return whether a schedule counts in the time zone of its app."""
    return not has_own_clock(schedule) and bool(schedule.tz == schedule.app.timezone)


def shown_time(schedule: Any) -> datetime:
    """Return the present time by the schedule's own clock, in its zone."""
    shown: datetime = schedule.maybe_make_aware(schedule.now())
    return shown


@contextmanager
def clock_set(schedule: Any, now: datetime) -> Iterator[None]:
    """Set the clock of a schedule to this instant, unless it brings one along."""
    if not is_schedule(schedule) or has_own_clock(schedule):
        yield
        return
    schedule.nowfun = lambda: now.astimezone(schedule.app.timezone)
    try:
        yield
    finally:
        schedule.nowfun = None


def zone_of(value: Any) -> str | None:
    """Return the zone of a crontab with its own `tz` or `nowfun`; None where the app's counts."""
    if type(value) is not schedules.crontab or not (has_own_clock(value) or "tz" in vars(value)):
        return None
    # Versions of Celery differ in whether the zone of a nowfun counts: ask the installed one.
    zone = value.remaining_delta(value.now())[0].tzinfo
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


def _cron(value: Any) -> Cron:
    fields = zip(FIELDS, _CRON_PARTS, strict=True)
    return Cron(
        *(
            _field_text(field, getattr(value, part), getattr(value, part.removeprefix("_orig_")))
            for field, part in fields
        )
    )


def _field_text(field: Field, text: object, values: set[int]) -> str:
    """Return the field as it was written if both read it alike, else its values one by one."""
    if isinstance(text, str):
        try:
            bits, _ = read_field(field, text.lower())
        except ScheduleError:
            return write_field(field, values)
        if bits == sum(1 << value for value in values):
            return text
    return write_field(field, values)


def schedule_entry(**fields: Any) -> Any:
    """Make an entry as Celery's scheduler does."""
    return ScheduleEntry(**fields)


def default_entries(app: Any, names: Collection[str]) -> dict[Any, Any]:
    """Return the entries that Celery itself adds to these, as celery.backend_cleanup."""
    scheduler: Any = Scheduler(app, schedule={}, lazy=True)
    scheduler.install_default_entries(names)
    return dict(scheduler.schedule)


def is_lazy(value: object) -> bool:
    """Return whether Celery's beat works this argument out when it sends the message."""
    return isinstance(value, BeatLazyFunc)


def digest(*values: object) -> str:
    """Return a fingerprint of these values."""
    text = json.dumps([_shape(value) for value in values], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _shape(value: Any, inside: tuple[int, ...] = ()) -> Any:
    """Reduce a value to plain data that every process knows of it."""
    kind = type(value)
    if kind is int:  # Python refuses to write one of thousands of digits otherwise
        return value if abs(value) < 2**63 else hex(value)
    if kind in _LITERALS:
        return value
    if id(value) in inside:
        return ["itself"]
    inside = (*inside, id(value))
    if isinstance(value, Enum):
        return [_name(kind), value.name]
    if isinstance(value, datetime) and value.microsecond:
        return [_name(kind)]  # when the configuration was read, which differs from process to process
    if isinstance(value, _SPOKEN):
        return [_name(kind), str(value)]
    if isinstance(value, bytes | bytearray):
        return [_name(kind), value.hex()]
    if isinstance(value, list | tuple):
        return [_name(kind), [_shape(item, inside) for item in value]]
    if isinstance(value, set | frozenset):
        return [_name(kind), sorted(_line(item, inside) for item in value)]
    if isinstance(value, Mapping):
        return [_name(kind), sorted([_line(key, inside), _shape(item, inside)] for key, item in value.items())]
    if isinstance(value, functools.partial):
        return [_name(kind), _shape((value.func, value.args, value.keywords), inside)]
    held = vars(value) if hasattr(value, "__dict__") else {}
    if is_lazy(value):
        return [_name(kind), _shape((held.get("_func"), held.get("_func_params"), None), inside)]
    if is_schedule(value):
        return [_name(kind), [_shape(held.get(part), inside) for part in _SCHEDULE_PARTS]]
    if inspect.isroutine(value) or inspect.isclass(value):
        return _name(value)
    return [_name(kind)]


def _line(value: object, inside: tuple[int, ...]) -> str:
    return json.dumps(_shape(value, inside), sort_keys=True)


def _name(value: Any) -> str:
    return f"{getattr(value, '__module__', None)}.{getattr(value, '__qualname__', None)}"
