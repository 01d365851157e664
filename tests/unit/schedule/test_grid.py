"""The three questions to a schedule: the next instant, the latest, how many."""

from datetime import datetime, timedelta, timezone

import pytest

from celery_sqlbeat.schedule import Every, count_between, latest_at, next_after, parse, zone_named

UTC = timezone.utc
ZONE = zone_named("America/New_York")
TICK = timedelta(microseconds=1)


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("cron", "after", "expected"),
    [
        ("*/5 * * * *", "2026-01-01 00:00", "2026-01-01 00:05"),
        ("*/5 * * * *", "2026-01-01 00:04:59.999999", "2026-01-01 00:05"),
        ("0 22-2 * * *", "2026-01-01 02:00", "2026-01-01 22:00"),
        ("0 0 * * fri-mon", "2026-01-05 00:00", "2026-01-09 00:00"),
        ("0 0 13 * fri", "2026-01-01 00:00", "2026-02-13 00:00"),
        ("0 0 29 2 *", "2096-02-29 00:00", "2104-02-29 00:00"),
        ("0 0 29 2 mon", "2008-03-01 00:00", "2016-02-29 00:00"),
        ("0 0 29 2 mon", "2072-02-29 00:00", "2112-02-29 00:00"),
        ("0 0 31 * *", "2026-01-31 00:00", "2026-03-31 00:00"),
        ("0 12 1 1 *", "2026-01-01 12:00", "2027-01-01 12:00"),
    ],
)
def test_the_next_instant_is_the_first_that_all_five_fields_match(cron: str, after: str, expected: str) -> None:
    assert next_after(parse(f"cron {cron}"), utc(after), UTC) == utc(expected)


def test_rare_days_come_within_forty_years() -> None:
    for weekday in range(7):
        leap_day = next_after(parse(f"cron 0 0 29 2 {weekday}"), utc("1896-03-01"), UTC)
        assert leap_day is not None and leap_day < utc("1936-03-01")


@pytest.mark.parametrize(
    "text", ["cron * * * * *", "cron 0 0 29 2 *", "solar sunset 51.5 0", "every 1d", "every 1h relative"]
)
def test_the_end_and_the_beginning_of_the_calendar_raise_nothing(text: str) -> None:
    schedule = parse(text)
    first, last = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
    for zone in (UTC, zone_named("Pacific/Kiritimati"), zone_named("Pacific/Pago_Pago")):
        assert next_after(schedule, last, zone) is None
        following = next_after(schedule, first, zone)
        assert following is None or following > first
        latest = latest_at(schedule, first, last, zone)
        assert latest is None or first < latest <= last
        assert count_between(schedule, first, utc("2030-01-01"), zone) > 0


@pytest.mark.parametrize("zone", [UTC, ZONE])
def test_the_minutes_of_a_century_are_counted_exactly(zone: timezone) -> None:
    """One by one they would take minutes to count."""
    first, last = utc("1900-01-01 00:00"), utc("2026-01-01 00:00") - TICK
    count = count_between(parse("cron * * * * *"), first, last, zone)
    # New York kept a local time of its own seconds until 1883: from then on every minute is one of
    # UTC.
    assert count == (last - first + TICK) / timedelta(minutes=1)


def test_an_interval_is_counted_from_the_first_instant() -> None:
    hourly, noon = Every(timedelta(hours=1)), utc("2026-01-01 12:00")
    assert next_after(hourly, noon, UTC) == utc("2026-01-01 13:00")
    assert latest_at(hourly, noon, utc("2026-01-01 15:30"), UTC) == utc("2026-01-01 15:00")
    assert latest_at(hourly, noon, utc("2026-01-01 12:30"), UTC) is None
    assert count_between(hourly, noon, utc("2026-01-01 15:00"), UTC) == 4


def test_a_single_instant_comes_once() -> None:
    once, at = parse("once 2026-01-01T12:00:00Z"), utc("2026-01-01 12:00")
    assert (next_after(once, at - TICK, UTC), next_after(once, at, UTC)) == (at, None)
    assert (latest_at(once, at - TICK, at, UTC), latest_at(once, at, at + TICK, UTC)) == (at, None)
    assert (count_between(once, at, at, UTC), count_between(once, at + TICK, at + TICK, UTC)) == (1, 0)


def test_nothing_lies_in_an_empty_stretch() -> None:
    noon = utc("2026-01-01 12:00")
    for text in ("cron * * * * *", "every 1m", "once 2026-01-01T12:00:00Z", "solar sunset 51.5 0"):
        assert count_between(parse(text), noon, noon - TICK, UTC) == 0
        assert latest_at(parse(text), noon, noon, UTC) is None


def test_an_instant_in_another_zone_is_the_same_instant() -> None:
    there = utc("2026-01-01 12:00").astimezone(zone_named("Asia/Tokyo"))
    assert next_after(parse("cron 0 * * * *"), there, ZONE) == utc("2026-01-01 13:00")


def test_a_naive_instant_is_a_mistake_of_the_program() -> None:
    with pytest.raises(TypeError, match="an instant has a time zone"):
        next_after(parse("cron * * * * *"), datetime(2026, 1, 1), UTC)  # noqa: DTZ001  # the mistake under test
