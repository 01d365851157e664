"""What a crontab does when the clocks change; see docs/design/0005-daylight-saving.md."""

from datetime import datetime, timedelta, timezone

import pytest

from celery_sqlbeat.schedule import count_between, latest_at, next_after, parse, zone_named


def fires(cron: str, zone: str, start: str, count: int) -> list[str]:
    """Return the next fires as the clock on the wall shows them, after an instant of that clock."""
    schedule, place = parse(f"cron {cron}"), zone_named(zone)
    at = datetime.fromisoformat(start).replace(tzinfo=place).astimezone(timezone.utc)
    shown = []
    for _ in range(count):
        following = next_after(schedule, at, place)
        assert following is not None
        assert latest_at(schedule, at, following, place) == following
        assert count_between(schedule, at + timedelta(microseconds=1), following, place) == 1
        at = following
        shown.append(f"{at.astimezone(place):%d %H:%M %z}")
    return shown


def test_a_gap_is_made_up_at_its_end() -> None:
    assert fires("30 2 * * *", "America/New_York", "2026-03-07 12:00", 2) == ["08 03:00 -0400", "09 02:30 -0400"]


def test_several_times_in_a_gap_are_made_up_once() -> None:
    assert fires("0,30 2 * * *", "America/New_York", "2026-03-07 12:00", 2) == ["08 03:00 -0400", "09 02:00 -0400"]


def test_the_end_of_a_gap_that_matches_by_itself_fires_once() -> None:
    assert fires("0 2,3 * * *", "America/New_York", "2026-03-07 12:00", 2) == ["08 03:00 -0400", "09 02:00 -0400"]


def test_every_hour_steps_over_a_gap() -> None:
    hourly = ["08 01:30 -0500", "08 03:30 -0400", "08 04:30 -0400"]
    assert fires("30 * * * *", "America/New_York", "2026-03-08 01:00", 3) == hourly
    assert fires("30 */1 * * *", "America/New_York", "2026-03-08 01:00", 3) == hourly
    assert fires("30 0-23 * * *", "America/New_York", "2026-03-08 01:00", 3) == hourly


def test_every_few_minutes_of_a_skipped_hour_are_not_made_up() -> None:
    assert fires("*/30 2 * * *", "America/New_York", "2026-03-08 01:00", 2) == ["09 02:00 -0400", "09 02:30 -0400"]


def test_a_repeated_time_fires_at_its_first_occurrence() -> None:
    assert fires("30 1 * * *", "America/New_York", "2026-10-31 12:00", 2) == ["01 01:30 -0400", "02 01:30 -0500"]
    assert fires("*/30 1 * * *", "America/New_York", "2026-10-31 12:00", 3) == [
        "01 01:00 -0400", "01 01:30 -0400", "02 01:00 -0500",
    ]  # fmt: skip


def test_every_hour_fires_through_both_passes_of_a_repeated_hour() -> None:
    assert fires("30 * * * *", "America/New_York", "2026-11-01 00:00", 4) == [
        "01 00:30 -0400", "01 01:30 -0400", "01 01:30 -0500", "01 02:30 -0500",
    ]  # fmt: skip


def test_every_minute_fires_every_minute_of_elapsed_time() -> None:
    schedule, place = parse("cron * * * * *"), zone_named("America/New_York")
    day = datetime(2026, 11, 1, 4, tzinfo=timezone.utc)
    assert count_between(schedule, day, day + timedelta(hours=25) - timedelta(seconds=1), place) == 1500


@pytest.mark.parametrize(
    ("zone", "cron", "start", "expected"),
    [
        # Half an hour of daylight saving.
        ("Australia/Lord_Howe", "15 2 * * *", "2026-10-03 12:00", ["04 02:30 +1100", "05 02:15 +1100"]),
        ("Australia/Lord_Howe", "45 1 * * *", "2026-04-04 12:00", ["05 01:45 +1100", "06 01:45 +1030"]),
        (
            "Australia/Lord_Howe",
            "45 * * * *",
            "2026-04-05 01:00",
            ["05 01:45 +1100", "05 01:45 +1030", "05 02:45 +1030"],
        ),
        # The midnight that does not exist, and the one that exists twice.
        ("Africa/Cairo", "0 0 * * *", "2026-04-23 12:00", ["24 01:00 +0300", "25 00:00 +0300"]),
        ("Africa/Cairo", "30 23 * * *", "2026-10-29 12:00", ["29 23:30 +0300", "30 23:30 +0200"]),
        ("America/Havana", "0 0 * * *", "2026-03-07 12:00", ["08 01:00 -0400", "09 00:00 -0400"]),
        ("America/Havana", "0 0 * * *", "2026-10-31 12:00", ["01 00:00 -0400", "02 00:00 -0500"]),
        ("America/Sao_Paulo", "30 0 * * *", "2018-11-03 12:00", ["04 01:00 -0200", "05 00:30 -0200"]),
        # A midnight of the first day of the month, made up on that day.
        ("America/Asuncion", "0 0 1 10 *", "2023-09-30 12:00", ["01 01:00 -0300", "01 00:00 -0400"]),
        # Quarters of an hour, at 02:45.
        ("Pacific/Chatham", "0 3 * * *", "2026-09-26 12:00", ["27 03:45 +1345", "28 03:00 +1345"]),
        # The 30th of December 2011 never came to Samoa.
        ("Pacific/Apia", "0 9 * * *", "2011-12-29 00:00", ["29 09:00 -1000", "31 00:00 +1400", "31 09:00 +1400"]),
        ("Pacific/Apia", "0 9 30 * *", "2011-12-01 00:00", ["31 00:00 +1400", "30 09:00 +1400"]),
        ("Pacific/Apia", "0 * * * *", "2011-12-29 22:30", ["29 23:00 -1000", "31 00:00 +1400"]),
        # Winter time is the exception in Ireland, summer time the rule; the clocks do the same as
        # elsewhere.
        ("Europe/Dublin", "30 1 * * *", "2026-03-28 12:00", ["29 02:00 +0100", "30 01:30 +0100"]),
        ("Europe/Dublin", "30 1 * * *", "2026-10-24 12:00", ["25 01:30 +0100", "26 01:30 +0000"]),
        # Morocco goes back for Ramadan and forward after it.
        ("Africa/Casablanca", "30 2 * * *", "2026-02-14 12:00", ["15 02:30 +0100", "16 02:30 +0000"]),
        ("Africa/Casablanca", "30 2 * * *", "2026-03-21 12:00", ["22 03:00 +0100", "23 02:30 +0100"]),
    ],
)
def test_zones_with_customs_of_their_own(zone: str, cron: str, start: str, expected: list[str]) -> None:
    assert fires(cron, zone, start, len(expected)) == expected


def test_an_instant_in_the_second_pass_waits_for_the_next_day() -> None:
    place = zone_named("America/New_York")
    second_pass = datetime(2026, 11, 1, 6, 10, tzinfo=timezone.utc)  # 01:10 -0500
    daily = parse("cron 30 1 * * *")
    assert next_after(daily, second_pass, place) == datetime(2026, 11, 2, 6, 30, tzinfo=timezone.utc)
    first_pass = datetime(2026, 11, 1, 5, 30, tzinfo=timezone.utc)
    assert latest_at(daily, first_pass - timedelta(days=1), second_pass, place) == first_pass
