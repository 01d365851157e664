"""Nights in which the clocks change, on the database's clock.

Real beats, and a server clock that the test sets.
"""

from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from celery_sqlbeat.model.lifecycle import DISPATCHED
from tests.process.conftest import MakeShop
from tests.support.beats import Shop, assert_clean, assert_sent_once, wait_for

pytestmark = pytest.mark.slow

# SQLite has the clock of its host. Every process of the shop adds what stands in a file.
_SET_CLOCK = """\
import datetime as _datetime, pathlib as _pathlib
import celery_sqlbeat.store.sql.dialects.sqlite as _sqlite

_offset = _pathlib.Path({path!r})
_made = _sqlite.Sqlite.__init__


def _with_clock(self, url, statement_timeout=5.0, **ignored):
    def clock():
        return _datetime.datetime.now(_datetime.timezone.utc) + _datetime.timedelta(seconds=float(_offset.read_text()))

    _made(self, url, statement_timeout, clock=clock)


_sqlite.Sqlite.__init__ = _with_clock
"""


def set_clock(path: Path, instant: datetime) -> None:
    other = path.with_suffix(".new")
    other.write_text(str((instant - datetime.now(timezone.utc)).total_seconds()))
    other.replace(path)


def night(shop: Shop, evening: datetime, **entries: Any) -> Path:
    """Two beats on a server clock that shows this instant; crontabs are those of Berlin."""
    path = shop.folder / "offset"
    set_clock(path, evening)
    shop.write(
        extra=_SET_CLOCK.format(path=str(path)) + _CRONTABS.format(entries=entries),
        timezone="Europe/Berlin",
        sqlbeat_poll_interval=1,
    )
    for _ in range(2):
        shop.start().says("brought its beat_schedule")
    return path


_CRONTABS = """\
from celery.schedules import crontab

app.conf.beat_schedule = {{
    name: {{"task": "shop.add", "schedule": crontab(**fields)}} for name, fields in {entries!r}.items()
}}
"""


def wait_for_slot(shop: Shop, name: str, at: datetime) -> None:
    wait_for(lambda: at in slots(shop, name), 40, shop.logs)


def slots(shop: Shop, name: str) -> list[datetime]:
    return sorted(run.scheduled_for for run in shop.runs() if run.job_name == name and run.state == DISPATCHED)


def closed(shop: Shop) -> None:
    for beat in shop.beats:
        beat.stop()
    assert_clean(*shop.beats)
    assert_sent_once(shop)


def test_an_hour_that_comes_twice_fires_a_fixed_time_once(make_shop: MakeShop) -> None:
    shop = make_shop("sqlite", "redis")
    first, second = (datetime(2026, 10, 25, hour, 30, tzinfo=timezone.utc) for hour in (0, 1))  # both 02:30 in Berlin
    soon = timedelta(seconds=6)
    clock = night(
        shop, first - soon, fixed={"minute": "30", "hour": "2"}, often={"minute": "*/30"}, next={"minute": "31"}
    )
    wait_for_slot(shop, "fixed", first)
    wait_for_slot(shop, "often", first)
    set_clock(clock, second - soon)
    wait_for_slot(shop, "often", second)
    set_clock(clock, second + timedelta(seconds=58))
    wait_for_slot(shop, "next", second + timedelta(minutes=1))
    closed(shop)
    assert slots(shop, "fixed") == [first]


def test_an_hour_that_does_not_come_fires_a_fixed_time_at_its_end(make_shop: MakeShop) -> None:
    shop = make_shop("sqlite", "redis")
    end = datetime(2026, 3, 29, 1, tzinfo=timezone.utc)  # the clocks go from 02:00 to 03:00
    clock = night(shop, end - timedelta(seconds=6), fixed={"minute": "30", "hour": "2"}, next={"minute": "31"})
    wait_for_slot(shop, "fixed", end)
    set_clock(clock, end + timedelta(minutes=30, seconds=58))
    wait_for_slot(shop, "next", end + timedelta(minutes=31))
    closed(shop)
    assert slots(shop, "fixed") == [end]
