"""A schedule is one text, read leniently and written in one way.

Anything else is refused with what is allowed.
"""

from datetime import datetime, timedelta, timezone

import pytest

from celery_sqlbeat.errors import ScheduleError
from celery_sqlbeat.schedule import Cron, Every, Once, Solar, parse

UTC = timezone.utc


@pytest.mark.parametrize(
    ("text", "schedule"),
    [
        ("every 5s", Every(timedelta(seconds=5))),
        ("every 10m", Every(timedelta(minutes=10))),
        ("every 1h30m", Every(timedelta(minutes=90))),
        ("every 0.5s", Every(timedelta(milliseconds=500))),
        ("every 2d", Every(timedelta(days=2))),
        ("every 1d2h3m4.000005s", Every(timedelta(1, 7384, 5))),
        ("every 15m relative", Every(timedelta(minutes=15), relative=True)),
        ("cron */5 * * * *", Cron("*/5")),
        ("cron 0 9 1-7 jan mon", Cron("0", "9", "1-7", "jan", "mon")),
        ("solar sunset 51.5 -0.12", Solar("sunset", 51.5, -0.12)),
        ("solar solar_noon 0 180", Solar("solar_noon", 0, 180)),
        ("once 2027-01-31T09:00:00Z", Once(datetime(2027, 1, 31, 9, tzinfo=UTC))),
        ("once 2027-01-31T09:00:00.250000Z", Once(datetime(2027, 1, 31, 9, 0, 0, 250_000, tzinfo=UTC))),
    ],
)
def test_the_canonical_text_reads_back_as_the_same_schedule(text: str, schedule: object) -> None:
    assert parse(text) == schedule
    assert hash(parse(text)) == hash(schedule)
    assert str(schedule) == text


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("  EVERY   1H 30M ", "every 1h30m"),
        ("every 90m", "every 1h30m"),
        ("every 500ms", "every 0.5s"),
        ("every 0.1h Relative", "every 6m relative"),
        ("Cron 0 9 * JAN Mon-Fri", "cron 0 9 * jan mon-fri"),
        ("SOLAR Sunset +51.50 -0.0", "solar sunset 51.5 0"),
        ("once 2027-01-31 10:00+01:00", "once 2027-01-31T09:00:00Z"),
        ("once 2027-01-31t10:00:00.5 +0100", "once 2027-01-31T09:00:00.500000Z"),
        ("once 2027-01-31T03:30:00-0530", "once 2027-01-31T09:00:00Z"),
    ],
)
def test_case_and_spaces_do_not_matter(text: str, canonical: str) -> None:
    assert str(parse(text)) == canonical


def test_crontabs_that_fire_alike_are_equal_however_they_are_written() -> None:
    assert parse("cron 0,30 9 * * 1-5") == parse("cron 30,0 9 * * mon-fri")
    assert parse("cron 0,30 9 * * 1-5") != parse("cron 0,30 9 * * 1-6")
    # These two differ when the clocks change: the second follows elapsed time.
    assert parse("cron 0 0,12 * * *") != parse("cron 0 */12 * * *")


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("", "a schedule is one of"),
        ("hourly", "a schedule is one of"),
        ("*/5 * * * *", "a schedule is one of"),
        ("every", "units d h m s ms"),
        ("every 5", "units d h m s ms"),
        ("every 5 parsecs", "units d h m s ms"),
        ("every 30m1h", "units d h m s ms"),
        ("every 1h1h", "units d h m s ms"),
        ("every -5s", "units d h m s ms"),
        ("every nans", "units d h m s ms"),
        ("every 0s", "between 0.001s and 36500d"),
        ("every 0.0001s", "between 0.001s and 36500d"),
        ("every 99999d", "between 0.001s and 36500d"),
        ("every 1.0000001s", "whole number of microseconds"),
        ("cron * * * *", "five fields"),
        ("cron * * * * * *", "five fields"),
        ("cron 60 * * * *", "the minute is 0-59"),
        ("cron * 24 * * *", "the hour is 0-23"),
        ("cron * * 0 * *", "the day of month is 1-31"),
        ("cron * * * 13 *", "the month is 1-12 or jan-dec"),
        ("cron * * * * 7", "the day of week is 0-6 or sun-sat"),
        ("cron * * * * funday", "the day of week is 0-6 or sun-sat"),
        ("cron * * mon * *", "the day of month is 1-31"),
        ("cron */0 * * * *", "a step is at least 1"),
        ("cron 1-5-7 * * * *", "the minute is 0-59"),
        ("cron 5/2 * * * *", "the minute is 0-59"),
        ("cron ,5 * * * *", "the minute is 0-59"),
        ("cron 0 0 31 2 *", "no such day"),
        ("cron 0 0 31 feb,apr,jun,sep,nov *", "no such day"),
        ("solar sunset 51.5", "write solar EVENT LATITUDE LONGITUDE"),
        ("solar sunset nan 0", "write solar EVENT LATITUDE LONGITUDE"),
        ("solar sunset 1e999 0", "the latitude lies between -90 and 90"),
        ("solar sunset 90.1 0", "the latitude lies between -90 and 90"),
        ("solar sunset 0 -180.1", "the longitude lies between -180 and 180"),
        ("solar teatime 51.5 0", "the event is one of dawn_astronomical"),
        ("once", "an instant is written like"),
        ("once 2027-01-31T09:00:00", "an instant is written like"),
        ("once 2027-02-30T09:00:00Z", "no such instant"),
        ("once 2027-01-31T09:00:00+99:00", "no such instant"),
        ("once 0001-01-01T00:00:00+14:00", "the years 2 to 9998"),
    ],
)
def test_what_cannot_be_read_is_refused_with_what_is_allowed(text: str, remedy: str) -> None:
    with pytest.raises(ScheduleError) as refused:
        parse(text)
    assert remedy in str(refused.value)
    assert refused.value.value == text


@pytest.mark.parametrize(
    "text",
    [
        "every " + "9" * 5_000_000 + "s",
        "cron " + "*," * 2_000_000,
        "cron 9999999999999999 * * * *",
        "every 9" * 100,
        "\0",
    ],
)
def test_hostile_text_is_refused_at_once(text: str) -> None:
    with pytest.raises(ScheduleError) as refused:
        parse(text)
    assert len(str(refused.value)) < 1000


@pytest.mark.parametrize("value", [None, 5, b"every 5s", ["every 5s"], {}])
def test_what_is_not_text_is_refused(value: object) -> None:
    with pytest.raises(ScheduleError, match="a schedule is text"):
        parse(value)  # type: ignore[arg-type]  # a row may hold anything


def test_an_instant_without_a_zone_is_refused() -> None:
    with pytest.raises(ScheduleError, match="say the time zone"):
        Once(datetime(2027, 1, 1))  # noqa: DTZ001  # the mistake under test
