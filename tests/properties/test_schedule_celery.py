"""Where Celery's own schedules are right, ours agree with them to the instant."""
# ruff: noqa: DTZ001  # hypothesis takes its bounds without a zone

from datetime import datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery import VERSION, Celery
from celery.schedules import crontab, schedule, solar
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from celery_sqlbeat.celery_bridge.schedules import from_celery, to_celery
from celery_sqlbeat.schedule import Cron, Every, Solar, next_after, parse
from celery_sqlbeat.schedule.cron import FIELDS, Field
from tests.support.stock import in_zone, untyped

UTC = timezone.utc
APP = Celery("agreement", set_as_current=False)
ZONES = [ZoneInfo(name) for name in ("UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Pacific/Chatham")]
INSTANTS = st.datetimes(datetime(1995, 1, 1), datetime(2037, 1, 1), timezones=st.just(UTC))


def parts(field: Field) -> st.SearchStrategy[str]:
    number = st.integers(field.low, field.high)
    value = number.map(str)
    if field.names:
        value |= number.map(lambda n: field.names[n - field.low][:3])
    spans = st.tuples(value, value).map("-".join) | st.just("*")
    return value | spans | st.tuples(spans, st.integers(1, 70).map(str)).map("/".join)


def texts(field: Field) -> st.SearchStrategy[str]:
    return st.just("*") | st.lists(parts(field), min_size=1, max_size=3).map(",".join)


# Earlier ones fail in the polar night, and lose or gain an hour when the clocks change.
since_celery_5_7 = pytest.mark.skipif(VERSION[:2] < (5, 7), reason="corrected in Celery 5.7")

CRONTABS = st.tuples(*(texts(field) for field in FIELDS))


def stock_crontab(fields: tuple[str, ...], zone: ZoneInfo) -> Any:
    minute, hour, day, month, weekday = fields
    try:
        stock = crontab(minute, hour, weekday, day, month, nowfun=lambda: datetime.now(UTC), app=APP)
    except ValueError:
        return None
    return in_zone(stock, zone)


@settings(max_examples=600, deadline=None)
@given(CRONTABS, st.sampled_from(ZONES), INSTANTS)
def test_a_crontab_fires_when_celerys_does(fields: tuple[str, ...], zone: ZoneInfo, instant: datetime) -> None:
    stock = stock_crontab(fields, zone)
    assume(stock is not None)
    assert stock is not None
    stock.nowfun = lambda: instant.astimezone(zone)
    last, delta, _ = stock.remaining_delta(instant.astimezone(zone))
    expected = (last + delta).astimezone(UTC)
    # What happens around a change of the clocks is ours to decide, see test_daylight_saving.py.
    noons = [instant + timedelta(days=days) for days in range(-2, min((expected - instant).days, 400) + 3)]
    assume(len({noon.astimezone(zone).utcoffset() for noon in noons}) == 1)
    assert next_after(Cron(*fields), instant, zone) == expected


@given(CRONTABS)
def test_a_crontab_is_read_as_celery_reads_it_and_converts_both_ways(fields: tuple[str, ...]) -> None:
    stock = stock_crontab(fields, ZONES[0])
    assume(stock is not None)
    assert stock is not None
    ours = Cron(*fields)
    assert ours.clock == (sum(1 << minute for minute in stock.minute), sum(1 << hour for hour in stock.hour))
    assert from_celery(stock) == ours == parse(str(ours))
    again: Any = to_celery(ours, APP)
    again.nowfun = stock.nowfun
    assert again == stock


@since_celery_5_7
@settings(max_examples=400, deadline=None)
@given(
    st.timedeltas(timedelta(milliseconds=1), timedelta(days=40))
    | st.integers(1, 100_000).map(lambda s: timedelta(0, s)),
    st.sampled_from(ZONES) | st.sampled_from([ZoneInfo("Australia/Lord_Howe"), ZoneInfo("America/Havana")]),
    INSTANTS
    | st.timedeltas(timedelta(), timedelta(days=3)).map(lambda t: datetime(2026, 10, 31, tzinfo=UTC) + t)
    | st.timedeltas(timedelta(), timedelta(days=3)).map(lambda t: datetime(2026, 3, 7, tzinfo=UTC) + t)
    | st.timedeltas(timedelta(), timedelta(days=3)).map(lambda t: datetime(2026, 4, 4, tzinfo=UTC) + t),
)
def test_a_relative_interval_ends_when_celerys_does(interval: timedelta, zone: ZoneInfo, instant: datetime) -> None:
    start = instant.astimezone(zone)
    stock = schedule(interval, relative=True, nowfun=lambda: start, app=APP)
    due, seconds = stock.is_due(start)
    expected = instant + timedelta(seconds=seconds)
    assert next_after(Every(interval, relative=True), instant, zone) == expected, due


EVENTS = sorted(untyped(solar)._all_events)


@since_celery_5_7
@settings(max_examples=100, deadline=None)
@given(st.sampled_from(EVENTS), st.floats(-60, 60), st.floats(-180, 180), INSTANTS)
def test_the_sun_rises_and_sets_when_celery_says(event: str, lat: float, lon: float, instant: datetime) -> None:
    stock = solar(untyped(event), lat, lon, nowfun=lambda: instant, app=APP)
    expected = instant + stock.remaining_estimate(instant)
    ours = next_after(Solar(event, lat, lon), instant, UTC)
    assert ours is not None
    # Within seconds of an event its two computations may fall on either side of the instant asked
    # about.
    assume(expected - instant > timedelta(seconds=5) and ours - instant > timedelta(seconds=5))
    assert abs(ours - expected) <= timedelta(seconds=2)
