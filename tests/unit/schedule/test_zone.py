"""Time zones by name, and the periods between two changes of the clocks."""

from datetime import datetime, timedelta, timezone
from itertools import pairwise
from pathlib import Path

import pytest

from celery_sqlbeat.errors import FieldError
from celery_sqlbeat.schedule import zone_named
from celery_sqlbeat.schedule.zone import periods_from, periods_of, periods_until


def test_a_zone_is_found_by_its_name_and_kept() -> None:
    assert zone_named("Europe/London").key == "Europe/London"
    assert zone_named(" America/Argentina/Buenos_Aires ") is zone_named("America/Argentina/Buenos_Aires")
    assert zone_named("Etc/GMT+12").utcoffset(datetime(2026, 1, 1, tzinfo=timezone.utc)) == timedelta(hours=-12)


@pytest.mark.parametrize(
    "name",
    [
        "", " ", "Nowhere/Land", "America", "America/", "/etc/localtime", "../../etc/passwd", "Europe/../Europe/London",
        "tzdata.zi", "leapseconds", "CON\0", "Europe\\London", "\u0415urope/London",
        "A" * 64, "A/" * 3_000_000, "UTC;DROP",
        None, 5, Path("UTC"),
    ],
)  # fmt: skip
def test_a_name_that_is_no_zone_is_refused_with_a_remedy(name: str) -> None:
    with pytest.raises(FieldError, match="a name of the tz database") as refused:
        zone_named(name)
    assert refused.value.field == "TimeZone"


def test_a_year_is_cut_where_the_clocks_change() -> None:
    winter, summer, late = periods_of(zone_named("America/New_York"), 2026)
    assert (winter.ends, summer.ends) == (datetime(2026, 3, 8, 7), datetime(2026, 11, 1, 6))  # noqa: DTZ001  # naive UTC
    assert [period.offset / timedelta(hours=1) for period in (winter, summer, late)] == [-5, -4, -5]
    assert [period.before / timedelta(hours=1) for period in (winter, summer, late)] == [-5, -5, -4]


@pytest.mark.parametrize(
    "name", ["UTC", "Europe/Dublin", "America/Recife", "Asia/Gaza", "Pacific/Apia", "Asia/Pyongyang"]
)
def test_periods_follow_each_other_without_a_hole(name: str) -> None:
    zone = zone_named(name)
    forwards = []
    for period in periods_from(zone, datetime(1990, 5, 5)):  # noqa: DTZ001  # naive UTC
        forwards.append(period)
        if period.starts.year == 2045:
            break
    assert all(a.ends == b.starts and a.offset == b.before for a, b in pairwise(forwards))
    backwards = []
    for period in periods_until(zone, forwards[-1].starts):
        backwards.append(period)
        if period == forwards[0]:
            break
    assert backwards == forwards[::-1]


def test_a_summer_of_one_week_is_seen() -> None:
    changes = [period.starts for period in periods_of(zone_named("America/Recife"), 2000)[1:]]
    assert [(change.month, change.day) for change in changes] == [(2, 27), (10, 8), (10, 15)]
