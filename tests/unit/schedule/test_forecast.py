"""The next fires of a job, and what the change of the clocks does to them."""

import itertools
from datetime import datetime, timedelta, timezone

import pytest

from celery_sqlbeat.schedule import Timeline, parse, zone_named
from celery_sqlbeat.schedule.timeline import Forecast, forecasts

BERLIN = zone_named("Europe/Berlin")


def utc(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=timezone.utc)  # type: ignore[arg-type,misc]  # mypy counts the zone among the numbers


def next_fires(text: str, since: datetime, count: int, jitter: float = 0.0, key: str = "") -> list[Forecast]:
    timeline = Timeline(parse(text), BERLIN, jitter)
    first = timeline.first_slot(since, None, key)
    assert first is not None
    return list(itertools.islice(forecasts(timeline, first, since, key), count))


def test_fires_follow_one_another_and_show_the_time_of_the_job() -> None:
    fires = next_fires("cron 0 3 * * *", utc(2027, 6, 1), 3)
    assert [fire.at for fire in fires] == [utc(2027, 6, day, 1) for day in (1, 2, 3)]
    assert {f"{fire.local:%H:%M %Z}" for fire in fires} == {"03:00 CEST"}
    assert [fire.note for fire in fires] == [None] * 3


def test_a_time_that_does_not_exist_fires_when_the_clocks_change_and_says_so() -> None:
    before, change, after = next_fires("cron 30 2 * * *", utc(2027, 3, 27), 3)
    assert (before.note, after.note) == (None, None)
    assert (change.at, f"{change.local:%H:%M}") == (utc(2027, 3, 28, 1), "03:00")
    assert change.note is not None and "forward 1 h: the time that was asked for does not exist" in change.note


def test_a_time_that_exists_after_the_change_is_only_told_of_it() -> None:
    _, change, after = next_fires("cron 30 5 * * *", utc(2027, 3, 27), 3)
    assert (change.note, after.note) == ("the clocks have gone forward 1 h", None)


def test_a_time_that_comes_twice_says_which_of_the_two_fires() -> None:
    _, twice, after = next_fires("cron 30 2 * * *", utc(2027, 10, 30), 3)
    assert twice.at == utc(2027, 10, 31, 0, 30)
    assert twice.note == "the clocks show 02:30 twice: this is the first time"
    assert after.note == "the clocks have gone back 1 h"


def test_a_crontab_of_every_hour_fires_in_both_passes() -> None:
    fires = next_fires("cron 30 * * * *", utc(2027, 10, 31, 0), 3)
    assert [fire.note for fire in fires] == [
        "the clocks show 02:30 twice: this is the first time",
        "the clocks show 02:30 twice: this is the second time",
        None,
    ]


def test_jitter_does_not_make_a_time_look_odd() -> None:
    fires = next_fires("cron 30 5 * * *", utc(2027, 3, 27), 3, jitter=3600.0, key="some job")
    assert [fire.note for fire in fires] == [None, "the clocks have gone forward 1 h", None]
    assert fires[0].at != utc(2027, 3, 27, 4, 30)


def test_an_interval_counts_elapsed_time_and_says_so() -> None:
    fires = next_fires("every 1d", utc(2027, 3, 26, 12), 3)
    assert [fire.at for fire in fires] == [utc(2027, 3, 27, 12) + timedelta(days=at) for at in range(3)]
    assert [fire.note for fire in fires] == [
        None,
        "the clocks have gone forward 1 h; an interval counts elapsed time",
        None,
    ]


def test_the_sun_knows_no_clocks() -> None:
    pytest.importorskip("ephem")
    fires = next_fires("solar sunset 51.5 -0.12", utc(2027, 3, 26, 12), 4)
    assert [fire.note for fire in fires] == [None] * 4
    assert len({fire.at.date() for fire in fires}) == 4


def test_a_single_instant_fires_once() -> None:
    assert len(next_fires("once 2027-03-28T09:00:00Z", utc(2027, 3, 1), 10)) == 1
