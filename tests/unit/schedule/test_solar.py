"""The sun's events: at most one a day, and none where the sun does not rise or set."""

import sys
from datetime import datetime, timedelta, timezone
from itertools import pairwise

import pytest

from celery_sqlbeat.errors import ScheduleError
from celery_sqlbeat.schedule import Solar, Timeline, count_between, latest_at, next_after, parse
from celery_sqlbeat.schedule import solar as solar_module
from celery_sqlbeat.schedule.timeline import Fire

UTC = timezone.utc
LONDON_SUNSET = parse("solar sunset 51.5 -0.12")
NORTH_CAPE_SUNRISE = Solar("sunrise", 71.17, 25.78)


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def test_a_sunset_over_london_is_exact_to_the_minute() -> None:
    sunset = next_after(LONDON_SUNSET, utc("2026-06-21 12:00"), UTC)
    assert sunset is not None and abs(sunset - utc("2026-06-21 20:21:30")) < timedelta(minutes=1)
    assert sunset.microsecond == 0


@pytest.mark.parametrize("event", sorted(solar_module._EVENTS))
@pytest.mark.parametrize("longitude", [-180.0, -75.0, 0.0, 113.3, 180.0])
def test_an_event_comes_once_a_day_whatever_the_longitude(event: str, longitude: float) -> None:
    schedule, first = Solar(event, -23.5, longitude), utc("2026-03-01 00:00")
    at, found = first, []
    while (following := next_after(schedule, at, UTC)) and following <= first + timedelta(days=20):
        assert latest_at(schedule, at, following, UTC) == following
        found.append(following)
        at = following
    assert len(found) == count_between(schedule, first, first + timedelta(days=20), UTC)
    day = timedelta(days=1)
    assert all(
        abs(later - earlier - day) < timedelta(minutes=3) for earlier, later in pairwise([*found, found[-1] + day])
    )
    assert found[0] < first + day + timedelta(minutes=3) and found[-1] > first + 19 * day


def test_asking_from_any_instant_gives_the_same_event() -> None:
    sunset = next_after(LONDON_SUNSET, utc("2026-06-21 12:00"), UTC)
    assert sunset is not None
    for minutes in range(0, 1380, 7):
        assert next_after(LONDON_SUNSET, sunset - timedelta(minutes=minutes, microseconds=1), UTC) == sunset
        assert latest_at(LONDON_SUNSET, utc("2026-06-01 00:00"), sunset + timedelta(minutes=minutes), UTC) == sunset


def test_the_polar_night_is_slept_through() -> None:
    last_of_autumn = latest_at(NORTH_CAPE_SUNRISE, utc("2026-06-01 00:00"), utc("2026-12-21 00:00"), UTC)
    first_of_winter = next_after(NORTH_CAPE_SUNRISE, utc("2026-12-21 00:00"), UTC)
    assert last_of_autumn is not None and last_of_autumn.month == 11
    assert first_of_winter is not None and (first_of_winter.year, first_of_winter.month) == (2027, 1)


def test_an_event_that_never_comes_has_no_next_slot() -> None:
    assert next_after(Solar("sunrise", 90, 0), utc("2026-06-21 00:00"), UTC) is None


def test_a_long_gap_is_counted_by_the_day() -> None:
    assert count_between(LONDON_SUNSET, utc("1900-01-01 00:00"), utc("2026-01-01 00:00"), UTC) in (46021, 46022)


def test_a_slightly_different_answer_for_the_same_sunset_does_not_fire_it_again() -> None:
    sunset = next_after(LONDON_SUNSET, utc("2026-06-21 12:00"), UTC)
    assert sunset is not None
    stored = sunset - timedelta(seconds=2)  # as another version of ephem had it
    plan = Timeline(LONDON_SUNSET, UTC).plan(stored, sunset + timedelta(seconds=5))
    assert isinstance(plan, Fire) and plan.gap is None
    assert plan.next_slot is not None and plan.next_slot > sunset + timedelta(hours=20)


def test_without_ephem_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ephem", None)
    with pytest.raises(ScheduleError, match="pip install ephem"):
        next_after(parse("solar sunset 51.5 33.21"), utc("2026-06-21 12:00"), UTC)
