"""Compute solar events, `solar sunset 51.5 -0.12`: at most one a day, none on polar days.

ephem computes them, and is imported for the first event. They are rounded to whole seconds.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from importlib import import_module
from typing import Any, NamedTuple

from celery_sqlbeat.errors import ScheduleError

SEARCHED_DAYS = 370  # an event that does not come within a year does not come at all
EXACT_DAYS = 100  # longer gaps are counted as one event a day: asking ephem for a century takes seconds
SAME_EVENT = timedelta(hours=1)  # two answers for one event, from two versions of ephem, differ by seconds

_DAY = timedelta(days=1)
_EPOCH = datetime(2000, 1, 1)  # noqa: DTZ001  # naive UTC, as everywhere below
_NUMBER = re.compile(r"[+-]?\d{1,20}(\.\d{0,30})?(e[+-]?\d{1,3})?", re.ASCII)


class _Event(NamedTuple):
    search: str
    horizon: str
    center: bool
    #: The hour of the mean solar day at which a search begins: far from the event, and before it.
    opens: int


_EVENTS = {
    "dawn_astronomical": _Event("next_rising", "-18", True, 18),
    "dawn_nautical": _Event("next_rising", "-12", True, 18),
    "dawn_civil": _Event("next_rising", "-6", True, 18),
    "sunrise": _Event("next_rising", "-0:34", False, 18),
    "solar_noon": _Event("next_transit", "0", False, 0),
    "sunset": _Event("next_setting", "-0:34", False, 6),
    "dusk_civil": _Event("next_setting", "-6", True, 6),
    "dusk_nautical": _Event("next_setting", "-12", True, 6),
    "dusk_astronomical": _Event("next_setting", "-18", True, 6),
}


@dataclass(frozen=True, slots=True)
class Solar:
    """Fires at an event of the sun, as seen from a latitude and longitude in degrees."""

    event: str
    latitude: float
    longitude: float

    def __post_init__(self) -> None:
        if self.event not in _EVENTS:
            raise ScheduleError(self.event, f"the event is one of {', '.join(_EVENTS)}")
        for name, limit in (("latitude", 90), ("longitude", 180)):
            degrees = float(getattr(self, name)) + 0.0  # adding zero turns -0.0 into 0.0
            if not abs(degrees) <= limit:
                raise ScheduleError(degrees, f"the {name} lies between -{limit} and {limit} degrees")
            object.__setattr__(self, name, degrees)

    def __str__(self) -> str:
        return f"solar {self.event} {self.latitude!r} {self.longitude!r}".replace(".0 ", " ").removesuffix(".0")


def read_solar(words: list[str], text: str) -> Solar:
    """Return the event that these words (all after `solar`) name."""
    if len(words) != 3 or not _NUMBER.fullmatch(words[1]) or not _NUMBER.fullmatch(words[2]):
        raise ScheduleError(text, f"write solar EVENT LATITUDE LONGITUDE; the event is one of {', '.join(_EVENTS)}")
    return Solar(words[0], float(words[1]), float(words[2]))


def next_event(solar: Solar, after: datetime) -> datetime | None:
    """Return the first event later than `after` (naive UTC)."""
    today = _day_of(solar, after)
    for day in range(today, today + SEARCHED_DAYS):
        event = _event_on(solar, day)
        if event is not None and event > after:
            return event
    return None


def last_event(solar: Solar, after: datetime, until: datetime) -> datetime | None:
    """Return the last event later than `after` and not later than `until` (naive UTC)."""
    today = _day_of(solar, until)
    for day in range(today, max(today - SEARCHED_DAYS, _day_of(solar, after) - 1), -1):
        event = _event_on(solar, day)
        if event is not None and event <= until:
            return event if event > after else None
    return None


def count_events(solar: Solar, first: datetime, last: datetime) -> int:
    """Count the events in [`first`, `last`]; one a day if that is more than EXACT_DAYS."""
    days = range(_day_of(solar, first), _day_of(solar, last) + 1)
    if len(days) > EXACT_DAYS:
        return len(days)
    events = (_event_on(solar, day) for day in days)
    return sum(1 for event in events if event is not None and first <= event <= last)


@lru_cache(maxsize=16384)
def _event_on(solar: Solar, day: int) -> datetime | None:
    """Return the event of a solar day, always searched from one instant: it affects the result."""
    ephem = _ephem()
    event = _EVENTS[solar.event]
    place = ephem.Observer()
    place.lat, place.lon = str(solar.latitude), str(solar.longitude)
    place.elev = place.pressure = 0
    place.horizon = event.horizon
    opens = _opening(solar, day)
    center = {"use_center": True} if event.center else {}
    try:
        instant: datetime = getattr(place, event.search)(ephem.Sun(), start=ephem.Date(opens), **center).datetime()
    except ValueError:
        return None  # ephem's CircumpolarError: the sun stays up, or down, all day
    instant = (instant + timedelta(milliseconds=500)).replace(microsecond=0)
    return instant if opens <= instant < opens + _DAY else None


def _day_of(solar: Solar, instant: datetime) -> int:
    return math.floor((instant - _opening(solar, 0)) / _DAY)


def _opening(solar: Solar, day: int) -> datetime:
    return _EPOCH + timedelta(days=day, hours=_EVENTS[solar.event].opens - solar.longitude / 15)


def _ephem() -> Any:
    try:
        return import_module("ephem")
    except ImportError:
        raise ScheduleError("solar", "solar schedules need ephem: pip install ephem (or celery[solar])") from None
