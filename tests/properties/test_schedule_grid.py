"""The grid of a crontab, against a second reading of the rule that looks at every minute."""
# ruff: noqa: DTZ001  # hypothesis takes its bounds without a zone

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone, tzinfo
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from celery_sqlbeat.schedule import Cron, Once, Schedule, count_between, latest_at, next_after, zone_named

UTC = timezone.utc
MINUTE = timedelta(minutes=1)
TICK = timedelta(microseconds=1)

# An instant at, or shortly before, a change of the clocks in each zone (UTC).
CHANGES = [
    ("America/New_York", datetime(2026, 3, 8, 7)),
    ("America/New_York", datetime(2026, 11, 1, 6)),
    ("Australia/Lord_Howe", datetime(2026, 4, 4, 15)),  # half an hour
    ("Australia/Lord_Howe", datetime(2026, 10, 3, 15, 30)),
    ("Africa/Cairo", datetime(2026, 4, 23, 22)),  # the midnight that does not exist
    ("Africa/Cairo", datetime(2026, 10, 29, 21)),  # the midnight that exists twice
    ("America/Havana", datetime(2026, 3, 8, 5)),
    ("America/Havana", datetime(2026, 11, 1, 5)),
    ("Pacific/Chatham", datetime(2026, 4, 4, 14)),
    ("Pacific/Chatham", datetime(2026, 9, 26, 14)),
    ("Pacific/Apia", datetime(2011, 12, 30, 10)),  # a day that does not exist
    ("America/Sao_Paulo", datetime(2018, 11, 4, 3)),
    ("America/Sao_Paulo", datetime(2019, 2, 17, 2)),
    ("Europe/Dublin", datetime(2026, 3, 29, 1)),
    ("Europe/Dublin", datetime(2026, 10, 25, 1)),
    ("Africa/Casablanca", datetime(2026, 2, 15, 2)),
    ("Africa/Casablanca", datetime(2026, 3, 22, 2)),
    ("America/Recife", datetime(2000, 10, 8, 3)),  # a summer of a week
    ("Pacific/Kwajalein", datetime(1993, 8, 21, 12)),
    ("UTC", datetime(2026, 1, 1)),
]

HOURS = ["*", "*/2", "*/5", "0-23/3", "0", "1", "2", "3", "23", "0,2", "1-3", "22-2", "0-2,12"]
MINUTES = ["*", "*/7", "*/30", "0", "15", "30", "59", "0,30", "5-50/15", "0-59/20"]
DAYS = [
    ("*", "*", "*"),
    ("*", "*", "sun"),
    ("1", "*", "*"),
    ("*", "*", "1-5"),
    ("29-31", "10,12", "*"),
    ("8", "3", "*"),
]
CRONTABS = st.builds(
    lambda minute, hour, days: Cron(minute, hour, *days),
    st.sampled_from(MINUTES),
    st.sampled_from(HOURS),
    st.sampled_from(DAYS),
)


def matches(cron: Cron, wall: datetime) -> bool:
    minutes, hours = cron.clock
    first_weekday = wall.replace(day=1).isoweekday() % 7
    on_day = cron.months >> wall.month & 1 and cron.days[first_weekday] >> wall.day & 1
    return bool(on_day and hours >> wall.hour & 1 and minutes >> wall.minute & 1)


def fires(cron: Cron, zone: tzinfo, first: datetime, last: datetime) -> Iterator[datetime]:
    """Yield the fires by the slow way: walk through the minutes and read the clock on the wall."""
    at = first
    while at <= last:
        wall = at.astimezone(zone)
        before = (at - MINUTE).astimezone(zone)
        skipped = before.replace(tzinfo=None) + MINUTE
        made_up = False
        while cron.makes_up and skipped < wall.replace(tzinfo=None):
            made_up = made_up or matches(cron, skipped)
            skipped += MINUTE
        if made_up or (matches(cron, wall) and (cron.every_hour or not wall.fold)):
            yield at
        at += MINUTE


@st.composite
def windows(draw: st.DrawFn) -> tuple[Cron, tzinfo, datetime, list[datetime]]:
    name, change = draw(st.sampled_from(CHANGES))
    zone, cron = zone_named(name), draw(CRONTABS)
    first = change.replace(tzinfo=UTC) - timedelta(hours=draw(st.integers(0, 30)))
    return cron, zone, first, list(fires(cron, zone, first, first + timedelta(hours=56)))


@settings(max_examples=150, deadline=None)
@given(windows(), st.data())
def test_next_latest_and_count_agree_with_a_walk_through_the_minutes(
    window: tuple[Cron, tzinfo, datetime, list[datetime]], data: st.DataObject
) -> None:
    cron, zone, first, expected = window
    found, at = [], first - TICK
    while (following := next_after(cron, at, zone)) and following <= first + timedelta(hours=56):
        assert following > at
        found.append(following)
        at = following
    assert found == expected

    offsets = st.timedeltas(-timedelta(minutes=1), timedelta(hours=56))
    low, high = sorted(
        first + data.draw(st.sampled_from([o, o - o % MINUTE])) for o in data.draw(st.tuples(offsets, offsets))
    )
    low = max(low, first)
    assert count_between(cron, low, high, zone) == sum(low <= at <= high for at in expected)
    assert latest_at(cron, low, high, zone) == max((at for at in expected if low < at <= high), default=None)


@settings(max_examples=200, deadline=None)
@given(
    CRONTABS | st.builds(Once, st.datetimes(datetime(2, 1, 1), datetime(9998, 12, 31), timezones=st.just(UTC))),
    st.sampled_from(CHANGES),
    st.datetimes(datetime(1850, 1, 1), datetime(2150, 1, 1), timezones=st.just(UTC)),
    st.timedeltas(timedelta(), timedelta(days=900)),
)
def test_the_questions_agree_with_each_other_in_any_year(
    schedule: Schedule, change: tuple[str, datetime], instant: datetime, length: timedelta
) -> None:
    zone = zone_named(change[0])
    until = instant + length
    count = count_between(schedule, instant + TICK, until, zone)
    following = next_after(schedule, instant, zone)
    latest = latest_at(schedule, instant, until, zone)
    if count == 0:
        assert latest is None and (following is None or following > until)
        return
    assert following is not None and latest is not None and instant < following <= latest <= until
    assert next_after(schedule, latest - TICK, zone) == latest
    assert latest_at(schedule, instant, following, zone) == following
    after_latest = next_after(schedule, latest, zone)
    assert after_latest is None or after_latest > until
    middle = instant + length / 2
    halves = count_between(schedule, instant + TICK, middle, zone), count_between(schedule, middle + TICK, until, zone)
    assert sum(halves) == count


@settings(max_examples=60, deadline=None)
@given(
    CRONTABS, st.sampled_from(CHANGES), st.datetimes(datetime(1850, 1, 1), datetime(2150, 1, 1), timezones=st.just(UTC))
)
def test_the_sequence_is_strictly_increasing(cron: Cron, change: tuple[str, datetime], instant: datetime) -> None:
    zone = zone_named(change[0])
    walk = [instant]
    for _ in range(20):
        following = next_after(cron, walk[-1], zone)
        assert following is not None
        walk.append(following)
    assert all(earlier < later for earlier, later in pairwise(walk))
    assert count_between(cron, walk[1], walk[-1], zone) == 20
